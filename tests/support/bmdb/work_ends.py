from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from shepherd_core.bmdb.recovery import remediation
from shepherd_core.bmdb.session import Session
from shepherd_core.bmdb.work import work
from shepherd_core.bmdb.work.ticks import TickEnd, TickHead
from shepherd_core.bmdb.work.work import AgentStarted, Failure
from shepherd_core.domain.clock import SystemClock
from shepherd_core.domain.errors import NoLongerDue, ShepherdError
from shepherd_core.domain.errors.machine import SshRefused
from shepherd_core.domain.machine import Process
from shepherd_core.domain.remediation import REBOOT, NextStep, Step, StepKind, Timeouts

from tests.support import defaults
from tests.support.bmdb.fleet import PROVIDER, Fleet, claimed

KEY = bytes(range(32))
STEP = NextStep(Step(REBOOT, 1, defaults.TIMEOUTS), 1)


@dataclass(frozen=True)
class End:
    process: Process
    event: str
    """What history says."""
    end: Callable[[Session, Sequence[work.Work]], set[UUID]]

    def due_machine(self, fleet: Fleet) -> UUID:
        return fleet.unhealthy_machine() if self.process is Process.RECOVERY else fleet.provided_machine()


def _finish_agent_start(session: Session, held: Sequence[work.Work]) -> set[UUID]:
    return work.finish_agent_start(session, {each: AgentStarted(KEY, "host key") for each in held})


def attempt(session: Session, held: Iterable[work.Work], step: NextStep = STEP) -> list[work.Work]:
    return remediation.record_attempts(session, dict.fromkeys(held, step))


def finish_recovery(
    session: Session,
    held: Iterable[work.Work],
    boot_wait: float = 60,
    grace: float = 3600,
    cooldown: float = 0,
    kind: StepKind = REBOOT,
) -> set[UUID]:
    step = Step(kind, 1, Timeouts(boot_wait=boot_wait, grace=grace, cooldown=cooldown))
    return work.finish_recovery(session, dict.fromkeys(held), step)


def _fail(session: Session, held: Sequence[work.Work]) -> set[UUID]:
    return work.fail(session, {each: Failure(ShepherdError("no luck"), 60) for each in held})


def failed(
    fleet: Fleet,
    error: Exception | None = None,
    interval: int = 600,
    process: Process = Process.AGENT_START,
    provider: str = PROVIDER,
) -> UUID:
    """Return a machine on which the work of *process* has just failed."""
    recovers = process is Process.RECOVERY
    machine_id = fleet.unhealthy_machine() if recovers else fleet.provided_machine(provider)
    session = fleet.open_session()
    failure = Failure(error or SshRefused("nothing listens"), interval)
    work.fail(session, dict.fromkeys(claimed(session, process, provider=provider), failure))
    session.close()
    return machine_id


def ticked(fleet: Fleet, loop: str, error: ShepherdError | None = None, **counts: float) -> None:
    head = TickHead(loop, PROVIDER, "5e771465", "c0de")
    Session.open(fleet.connection, SystemClock(), head, "1", 60).close(end=TickEnd(counts, error))


def _leave_alone(session: Session, held: Sequence[work.Work]) -> set[UUID]:
    reason = NoLongerDue("its agent reports again", recovered=True)
    return remediation.leave_alone(session, dict.fromkeys(held, reason), defaults.RULES.backoff)


ENDS = {
    "finish_agent_start": End(Process.AGENT_START, "Finished", _finish_agent_start),
    "finish_recovery": End(Process.RECOVERY, "Finished", finish_recovery),
    "leave_alone": End(Process.RECOVERY, "Recovered", _leave_alone),
    "end_undone (failed)": End(Process.AGENT_START, "Failed", _fail),
    "end_undone (canceled)": End(Process.AGENT_START, "Canceled", work.cancel),
}
