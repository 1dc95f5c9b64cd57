"""
What the gaps between the Recoverer's looks mean for how long a machine must be silent: a pure rule.

Whoever looks finds no heartbeats of a time in which the BMDB was away, and
cannot tell such a time from one in which a machine was silent: both ended
before it looked. An outage that lay wholly between two looks is seen by nobody.
So a machine is not recovered for what it did not say in a long gap, nor for
what it did not say shortly before or after one: it must have been silent for
some time before the gap began, or until some time after the gap ended.

That time follows from the gap itself, not from a setting: an agent that cannot
report waits longer after each attempt, for about half of the time that it has
been trying, and at most for some heartbeats. So the rule holds for schedules of
any rate, regular or not, and nothing has to be learned when the schedule changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_SHARE_OF_GAP = 0.6
_SHARE_OF_PATIENCE = 0.15
"""How late an agent may be that could not report in a gap: the pauses of the agent, its jitter included."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A time in which nobody looked."""

    seconds: float
    ended_ago: float = 0.0
    """0: now, by the look that asks."""

    @property
    def began_ago(self) -> float:
        """Return how many seconds ago somebody looked before it."""
        return self.seconds + self.ended_ago


def patience(seconds: float, gaps: Iterable[Gap]) -> float:
    """
    Return for how long a machine must have said nothing to be recovered, if that is *seconds* without gaps.

    At most the longest of the *gaps* and twice *seconds*. Gaps of up to half of
    *seconds* make no difference.
    """
    return max([seconds, *(gap.began_ago + _doubt(gap, seconds) for gap in _doubtful(seconds, gaps))])


def overdue(seconds: float, gaps: Iterable[Gap]) -> float:
    """
    Return for how long a machine must have been overdue that was told to come back, where *seconds* are silence.

    The function that starts agents may have been away when we were, so it must
    have been overdue before the gap began, as long as the gap is in doubt.
    """
    return max([0.0, *(gap.began_ago for gap in _doubtful(seconds, gaps))])


def doubt_left(seconds: float, gaps: Iterable[Gap]) -> float | None:
    """Return in how many seconds ``patience`` and ``overdue`` may ask for less than now; None: they never will."""
    return min((_doubt(gap, seconds) - gap.ended_ago for gap in _doubtful(seconds, gaps)), default=None)


def _doubtful(seconds: float, gaps: Iterable[Gap]) -> list[Gap]:
    """Return the gaps that are longer than what *seconds* cover by themselves, and that ended lately."""
    return [
        gap for gap in gaps if gap.seconds + _doubt(gap, seconds) > seconds and gap.ended_ago < _doubt(gap, seconds)
    ]


def _doubt(gap: Gap, seconds: float) -> float:
    """Return for how long before and after the gap silence says nothing."""
    return min(seconds, _SHARE_OF_GAP * gap.seconds + _SHARE_OF_PATIENCE * seconds)
