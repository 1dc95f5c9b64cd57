"""
A remediation step that an operator takes on single machines, such as a reboot.

It is locked and recorded as one of the Recoverer's: no loop works on the machine meanwhile, the Recoverer counts the
attempt as one of its own, and waits for its outcome if this process is killed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shepherd_core import telemetry
from shepherd_core.bmdb.machines.lookup import show_machine
from shepherd_core.bmdb.recovery import remediation
from shepherd_core.bmdb.session import Session
from shepherd_core.bmdb.work.work import cancel, start_work
from shepherd_core.domain.clock import Deadline, Permission
from shepherd_core.domain.errors import ShepherdError, cause_of
from shepherd_core.domain.errors.bmdb import WorkConflict
from shepherd_core.domain.errors.provider import NotSupported
from shepherd_core.domain.machine import WorkEvent
from shepherd_core.domain.remediation import NextStep
from shepherd_core.operator.adopt_forget import ActionOutcome, ActionResult
from shepherd_core.recovery import Taken, position

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from shepherd_core.bmdb.connection import Connection
    from shepherd_core.bmdb.machines.search import FoundMachine
    from shepherd_core.bmdb.recovery.remediation import RecoveryRecord
    from shepherd_core.domain.clock import Clock
    from shepherd_core.domain.provider import Provider
    from shepherd_core.domain.remediation import Step
    from shepherd_core.recovery import Steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Reboot:
    """Takes one step on machines that an operator chose, one after the other."""

    provider: Provider
    connection: Connection
    clock: Clock
    step: Step
    steps: Steps
    reset_after_seconds: float
    machine_seconds: float
    session_seconds: float

    def __post_init__(self) -> None:
        """Raise ``NotSupported`` if the provider cannot take the step."""
        needed = self.step.kind.needs
        if needed is not None and needed not in self.provider.capabilities:
            message = f"the provider {self.provider.name} cannot {needed} machines: use the provider's own tools"
            raise NotSupported(message)

    def evaluate(self, machine: FoundMachine) -> ActionOutcome:
        """Return whether the step can be taken on a *machine*. Its health does not matter."""
        outcome = ActionOutcome(ActionResult.READY, self.step.name, machine.provider_id, machine.machine_id)
        if machine.provider_id is None:
            return outcome.with_result(ActionResult.REFUSED, "it is not provided yet")
        if machine.provider != self.provider.name:
            text = f"it is of {machine.provider}: use the settings of that provider"
            return outcome.with_result(ActionResult.REFUSED, text)
        return outcome

    def carry_out(
        self, machines: Sequence[FoundMachine], seen_at: datetime, remark: str, runtime_info: str
    ) -> Iterator[ActionOutcome]:
        """
        Take the step on each of *machines*, as they were seen at *seen_at*, and yield the outcomes as they come.

        A machine is refused if somebody works on it, or if its state changed or a step on it was begun since then.
        *remark*, who wants it and why, is written to the history.

        Raises:
            SessionExpired, BmdbError: the outcome for this machine is in its history, or is not known.
        """
        session = Session.open(
            self.connection, self.clock, f"shepherdctl/{self.provider.name}", runtime_info, self.session_seconds
        )
        try:
            for machine in machines:
                session.renew()
                yield self._take(session, machine, seen_at, remark)
        finally:
            session.close()

    def _take(self, session: Session, machine: FoundMachine, seen_at: datetime, remark: str) -> ActionOutcome:
        outcome = self.evaluate(machine)
        if outcome.result is not ActionResult.READY:
            return outcome
        try:
            work = start_work(session, machine.machine_id, remark)
        except WorkConflict as error:
            return outcome.with_result(ActionResult.REFUSED, f"{error}: see shepherdctl machine show")
        record = remediation.recovery_records(session, [work])[work]
        if changed := self._changed(machine, record, seen_at):
            cancel(session, [work])
            return outcome.with_result(ActionResult.REFUSED, changed)
        attempts, until = position(record, self.reset_after_seconds)
        number = 1 + sum(attempt.step == self.step.name for attempt in attempts)
        decision = NextStep(self.step, number, healthy_until=until)
        if not remediation.record_attempts(session, {work: decision}):
            return outcome.with_result(ActionResult.REFUSED, "its work was lost: nothing was done")
        telemetry.info("remediation step of an operator", machine_id=work.machine_id, step=self.step.name)
        permission = Permission(Deadline(self.clock, self.machine_seconds, session.seconds_left))
        came = session.run_renewing(lambda: self.steps.take(work, decision, permission))
        ended = self.steps.finish(session, {work: came})
        if came.error is None and ended:
            return outcome.with_result(ActionResult.DONE, "the provider accepted")
        if came.error is not None and not isinstance(came.error, ShepherdError):
            raise came.error
        trouble = "the provider accepted, but the work was lost: see its history"
        if came.error is not None:
            unknown = "it is unknown whether the provider accepted: " if isinstance(came, Taken) else ""
            trouble = f"{unknown}{cause_of(came.error)}"
        return outcome.with_result(ActionResult.REFUSED, trouble)

    def _changed(self, machine: FoundMachine, record: RecoveryRecord, seen_at: datetime) -> str | None:
        """Return what happened to the machine since it was seen; None: nothing. No other session works on it now."""
        now = show_machine(self.connection, machine.machine_id)
        if now.state != machine.state:
            return f"it was {machine.state} and is {now.state} now: check it again"
        begun = [line for line in record.history if line.event == WorkEvent.ATTEMPTED and line.at > seen_at]
        return f"{begun[-1].step} was begun by another session meanwhile: check it again" if begun else None
