"""What several commands do to machines."""

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from uuid import UUID

from shepherd_core.bmdb.connection import Connection
from shepherd_core.bmdb.machines import pauses
from shepherd_core.bmdb.machines.search import FoundMachine
from shepherd_core.domain.clock import Deadline
from shepherd_core.domain.machine import ProviderId
from shepherd_core.operator.adopt_forget import ActionOutcome, OperatorAction
from shepherd_core.operator.drift_repair import DriftRepair
from shepherd_core.rules.drift import Comparison

from shepherdctl.interrupts import DONE, tell
from shepherdctl.output.readable_log import ReadableLog

_SECONDS = 600.0
"""The time limit of a comparison, and of the actions after it."""


@dataclass(frozen=True, slots=True)
class NewPause:
    """A pause that was made; in a dry run, one without an id."""

    pause_id: UUID | None
    machine_id: UUID | None
    provider_id: ProviderId | None
    process: str | None
    provider: str | None
    owner: str
    reason: str
    seconds: float | None


def pause(
    connection: Connection,
    machines: Sequence[FoundMachine | ActionOutcome],
    *,
    process: str | None,
    provider: str | None,
    owner: str,
    reason: str,
    seconds: float | None,
    dry_run: bool = False,
) -> list[NewPause]:
    """Pause these machines, all or none; without machines, what *process* and *provider* name, or everything."""

    def one(machine: FoundMachine | ActionOutcome | None) -> NewPause:
        pause_id = None
        machine_id, provider_id = (machine.machine_id, machine.provider_id) if machine else (None, None)
        if not dry_run:
            pause_id = pauses.pause(
                connection,
                owner=owner,
                reason=reason,
                machine_id=machine_id,
                process=process,
                provider=provider,
                seconds=seconds,
            )
        return NewPause(pause_id, machine_id, provider_id, process, provider, owner, reason, seconds)

    def unit() -> list[NewPause]:
        return [one(machine) for machine in machines or (None,)]

    return connection.transact(unit)


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
