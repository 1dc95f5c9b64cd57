"""Every way to end work, for the rules that hold for all of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from shepherd_core.bmdb.session import Session
from shepherd_core.bmdb.work import work
from shepherd_core.bmdb.work.work import AgentStarted, Failure
from shepherd_core.domain.errors import ShepherdError
from shepherd_core.domain.machine import Process

from tests.support.bmdb.fleet import Fleet

KEY = bytes(range(32))


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


def _finish_recovery(session: Session, held: Sequence[work.Work]) -> set[UUID]:
    return work.finish_recovery(session, held, 60)


def _fail(session: Session, held: Sequence[work.Work]) -> set[UUID]:
    return work.fail(session, {each: Failure(ShepherdError("no luck"), 60) for each in held})


ENDS = {
    "finish_agent_start": End(Process.AGENT_START, "Finished", _finish_agent_start),
    "finish_recovery": End(Process.RECOVERY, "Finished", _finish_recovery),
    "fail": End(Process.AGENT_START, "Failed", _fail),
    "cancel": End(Process.AGENT_START, "Canceled", work.cancel),
}
