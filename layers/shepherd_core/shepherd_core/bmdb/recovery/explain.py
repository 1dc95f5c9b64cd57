"""Explains to operators why a machine is worked on, or is not, by the view that claims read."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from shepherd_core.domain.errors.bmdb import MachineUnknown
from shepherd_core.domain.errors.kinds import FailureKind
from shepherd_core.domain.machine import Process
from shepherd_core.domain.record import record

if TYPE_CHECKING:
    from uuid import UUID

    from shepherd_core.bmdb.connection import Connection


class Block(StrEnum):
    """Why a claim would not take a machine; of several reasons the first, in this order."""

    NOT_PROVIDED = "not_provided"
    QUARANTINED = "quarantined"
    INSTALLED = "installed"
    FAILED = "failed"
    NOT_NEEDED = "not_needed"
    LOCKED = "locked"
    PAUSED = "paused"
    BACKOFF = "backoff"
    NOT_DUE = "not_due"


@record
class Verdict:
    """Whether a claim of *process* would take the machine now."""

    process: Process
    blocked_by: Block | None
    """None: it would take it."""
    because: str
    """The reason, as text, without the times."""
    until: datetime | None
    """When the block ends; None: unknown, or nothing blocks."""
    next_at: datetime | None
    """When the machine will be claimed if nothing else happens; None: unknown."""
    kind: FailureKind | None
    """The failure, if it is the reason."""

    @property
    def eligible(self) -> bool:
        """Return whether a claim would take it."""
        return self.blocked_by is None


def why(connection: Connection, machine_id: UUID) -> list[Verdict]:
    """
    Return the verdict for each process of a loop.

    Raises:
        MachineUnknown: the BMDB has no such machine.
    """
    found = connection.fetch(Verdict, "why", machine_id=machine_id)
    if not found:
        raise MachineUnknown(f"the BMDB has no machine {machine_id}")
    return found
