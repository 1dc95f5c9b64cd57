"""
The Recoverer: brings back machines whose agent has fallen silent, by a reboot and a new agent start.

Before it claims anything it asks whether that many machines can be silent by
themselves, or whether they are not heard through a fault of ours; ``breaker``
has the rule. Then it holds back, and reboots nobody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shepherd_core import telemetry
from shepherd_core.bmdb import holds
from shepherd_core.bmdb.work import finish_recovery
from shepherd_core.breaker import WHOLE, Budgets, Kind, by_number, by_share, total, where
from shepherd_core.errors import MachineNotFound
from shepherd_core.loop import Admission
from shepherd_core.machine import Process
from shepherd_core.telemetry import Metric

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from shepherd_core.backoff import Backoff
    from shepherd_core.bmdb.session import Session
    from shepherd_core.bmdb.work import Silence, Work
    from shepherd_core.clock import Deadline
    from shepherd_core.loop import Attempt
    from shepherd_core.provider import Provider

_SHORTEST_ABSENCE_SECONDS = 120
"""Schedules tick once a minute at most; who was away for no longer than this was there."""


class Recoverer:
    """Reboots silent machines. Does not wait for them: the Initializer comes back when they should be up."""

    process = Process.RECOVERY

    def __init__(
        self,
        provider: Provider,
        *,
        silence: Silence,
        settle_seconds: float,
        backoff: Backoff,
        budgets: Budgets | None = None,
    ) -> None:
        """*settle_seconds*: how long a machine takes to come up; *budgets*: how many may be silent at once."""
        self.silence = silence
        self.backoff = backoff
        self._provider = provider
        self._settle_seconds = settle_seconds
        self._budgets = budgets or Budgets()

    def admit(self, session: Session) -> Admission:
        """Hold back where too many machines are silent, and admit as many as were counted elsewhere."""
        provider = self._provider.name
        figures = holds.figures(session, provider, self.silence)
        held, claimable = self._judge(session, figures)
        for location in holds.record(session, provider, held):
            telemetry.info("recovery is held back no more", where=where(location))
        for location, reason in held.items():
            telemetry.warning("recovery is held back", where=where(location), reason=reason)
        quiet = total(figures.cells.values()).quiet
        counts = {
            Metric.HELD_BACK: len(held),
            Metric.SILENT: quiet[Kind.SILENT],
            Metric.NEVER_REPORTED: quiet[Kind.NEVER],
        }
        words = tuple(f"{where(location)}: {reason}" for location, reason in sorted(held.items()))
        return Admission(claimable, words, counts)

    def _judge(self, session: Session, figures: holds.Figures) -> tuple[dict[str, str], int]:
        """Return where to hold back and why, and how many machines can be claimed elsewhere."""
        longest = max(self.silence.silence_seconds / 2, _SHORTEST_ABSENCE_SECONDS)
        if figures.unwatched_seconds > longest:
            # Else those that are the last to report again after an outage of the BMDB would be rebooted for it.
            return {WHOLE: f"nobody looked for {figures.unwatched_seconds:.0f} s, at most {longest:g} s may pass"}, 0
        held = by_share(figures.cells, self._budgets)
        while WHOLE not in held:
            claimable = holds.survey(session, self._provider.name, self.silence, held, figures.cells)
            over = by_number(figures.cells, self._budgets, held)
            if not over:
                return held, claimable
            held = over if WHOLE in over else held | over
        return held, 0

    def prepare(self, deadline: Deadline) -> None:
        """Nothing is needed."""

    def work_on(self, attempt: Attempt) -> None:
        """Ask the provider for a reboot. A second one, after a crash in between, costs a silent machine nothing."""
        if attempt.work.provider_id is None:
            message = "the machine is not provided by anyone"
            raise MachineNotFound(message)
        attempt.deadline.check()
        self._provider.reboot(attempt.work.provider_id, attempt.deadline)

    def finish(self, session: Session, done: Mapping[Work, None]) -> set[UUID]:
        """Drop the tags of the agent that is gone, so that the machine needs an agent start."""
        return finish_recovery(session, list(done), self._settle_seconds)
