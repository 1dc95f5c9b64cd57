"""What several commands do to machines."""

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass, replace
from uuid import UUID

from shepherd_core.bmdb.connection import Connection
from shepherd_core.bmdb.machines import pauses
from shepherd_core.domain.clock import Deadline
from shepherd_core.domain.machine import ProviderId
from shepherd_core.operator.adopt_forget import ActionOutcome, OperatorAction
from shepherd_core.operator.drift_repair import DriftRepair
from shepherd_core.rules.drift import Comparison

from shepherdctl.interrupts import DONE, tell
from shepherdctl.output.readable_log import ReadableLog

_SECONDS = 600.0
"""The time limit of a comparison, and of the actions after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPause:
    """A pause to make; with an id when it is made."""

    pause_id: UUID | None = None
    machine_id: UUID | None = None
    provider_id: ProviderId | None = None
    process: str | None = None
    provider: str | None = None
    location: str | None = None
    with_labels: Sequence[str] | None = None
    owner: str
    reason: str
    seconds: float | None = None


def pause(connection: Connection, new: Sequence[NewPause]) -> list[NewPause]:
    """Make these pauses, all or none, and return them with their ids."""

    def one(each: NewPause) -> NewPause:
        said = {name: value for name, value in asdict(each).items() if name not in {"pause_id", "provider_id"}}
        return replace(each, pause_id=pauses.pause(connection, **said))

    return connection.transact(lambda: [one(each) for each in new])


def compare(repair: DriftRepair) -> Comparison:
    """Return a comparison of the provider and the BMDB, which changes nothing."""
    return repair.compare(Deadline(repair.clock, _SECONDS))


@contextmanager
def told_as_done() -> Iterator[None]:
    """Tell what is done to each machine as it is done; an interrupted command points to that, and to the history."""
    tell("the lines above say what was done; of the machine after them, shepherdctl history says it")
    with redirect_stdout(ReadableLog()):
        yield
    tell(DONE)


def carry_out(repair: DriftRepair, action: OperatorAction, confirmed: Sequence[ActionOutcome]) -> list[ActionOutcome]:
    """Apply *action* where it was ready when the operator *confirmed* and still is. See ``DriftRepair.carry_out``."""
    deadline = Deadline(repair.clock, _SECONDS)
    with told_as_done():
        return repair.carry_out(action, confirmed, deadline, f"shepherdctl on {socket.gethostname()}")
