"""
How gaps between two health snapshots of the Recoverer extend the timeouts: the rule of machine_due_at, in Python.

With it the rule can be tried on many schedules; tests hold the view to it.

A snapshot that finds no heartbeats from a period in which the BMDB was down
cannot tell that period from one in which the machine was unhealthy: both ended
before the snapshot. An outage that lies wholly between two snapshots is not
seen at all. So a machine is not recovered for heartbeats that are missing
within a long gap, or shortly before or after one: it must have been unhealthy
for some time before the gap began, or until some time after the gap ended.

That time follows from the gap itself, not from a setting, and holds also for an
agent that waits longer after each attempt, for about half of the time that it has
been trying (Shepherd's own tries again within a minute). The last heartbeat before the gap
may be an interval older than it. So the rule holds for
schedules of any rate, regular or not, and nothing must be relearned when the
schedule changes.
"""

from collections.abc import Iterable
from dataclasses import dataclass

_SHARE_OF_GAP = 0.6
_SHARE_OF_TIMEOUT = 0.15
_SHARE_OF_INTERVAL = 0.85
"""How late an agent may be that could not report in a gap: the pauses of the agent, its jitter included."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A period without a health snapshot."""

    seconds: float
    ended_ago: float = 0.0
    """Seconds; 0: the snapshot that is being taken ends it."""

    @property
    def began_ago(self) -> float:
        """Return how many seconds ago the snapshot before the gap was taken."""
        return self.seconds + self.ended_ago


def extended_timeout(seconds: float, gaps: Iterable[Gap], interval: float = 0) -> float:
    """
    Return after how many seconds without a heartbeat a machine is recovered, where the timeout is *seconds*.

    *interval* is how often its agent reports, in seconds.

    At most the longest of the *gaps* and twice *seconds*. Gaps of up to half of
    *seconds* make no difference.
    """
    return max(
        [seconds, *(gap.began_ago + _doubt(gap, seconds, interval) for gap in _doubtful(seconds, gaps, interval))]
    )


def required_overdue(seconds: float, gaps: Iterable[Gap], interval: float = 0) -> float:
    """
    Return how many seconds a machine that was to come back must be overdue to be recovered; *seconds* is the timeout.

    The function that starts agents may have been down when the Recoverer was, so
    the machine must have been overdue before the gap began, as long as the gap is in doubt.
    """
    return max([0.0, *(gap.began_ago for gap in _doubtful(seconds, gaps, interval))])


def _doubtful(seconds: float, gaps: Iterable[Gap], interval: float) -> list[Gap]:
    """Return the gaps that are longer than the timeout covers by itself, and that ended recently."""
    return [
        gap
        for gap in gaps
        if gap.seconds + _doubt(gap, seconds, interval) > seconds and gap.ended_ago < _doubt(gap, seconds, interval)
    ]


def _doubt(gap: Gap, seconds: float, interval: float) -> float:
    """Return for how many seconds before and after the gap a missing heartbeat proves nothing."""
    return min(seconds, _SHARE_OF_GAP * gap.seconds + max(_SHARE_OF_TIMEOUT * seconds, _SHARE_OF_INTERVAL * interval))
