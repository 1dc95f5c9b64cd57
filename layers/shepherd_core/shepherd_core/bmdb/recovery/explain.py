"""
Explains to operators why a machine is worked on, or is not, from the views that claims use.

Only the words are made here: the statement ``why`` says whether a claim would take
the machine, and a test compares that with claims.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from shepherd_core.domain.errors import Fault
from shepherd_core.domain.errors.bmdb import MachineUnknown
from shepherd_core.domain.errors.kinds import FailureKind
from shepherd_core.domain.machine import Process

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime
    from uuid import UUID

    from shepherd_core.bmdb.connection import Connection


class Block(StrEnum):
    """Why a claim would not take a machine; of several reasons the first, in this order."""

    NOT_PROVIDED = "not_provided"
    QUARANTINED = "quarantined"
    INSTALLED = "installed"
    NOT_NEEDED = "not_needed"
    LOCKED = "locked"
    PAUSED = "paused"
    BACKOFF = "backoff"
    NOT_DUE = "not_due"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a claim of *process* would take the machine now."""

    process: Process
    blocked_by: Block | None
    """None: it would take it."""
    because: str
    """The reason, as text, without the times."""
    until: datetime | None = None
    """When the block ends; None: unknown, or nothing blocks."""
    next_at: datetime | None = None
    """When the machine will be claimed if nothing else happens; None: unknown."""
    kind: FailureKind | None = None
    """What failed, if that is the reason."""

    @property
    def eligible(self) -> bool:
        """Return whether a claim would take it."""
        return self.blocked_by is None


def why(connection: Connection, machine_id: UUID) -> tuple[list[Verdict], datetime]:
    """
    Return the verdict for each process of a loop, and the database's time at which they hold.

    Raises:
        MachineUnknown: the BMDB has no such machine.
    """
    records = connection.records("why", machine_id=machine_id)
    if not records:
        message = f"the BMDB has no machine {machine_id}"
        raise MachineUnknown(message)
    return [evaluate(record) for record in records], records[0]["now"]


def evaluate(known: Mapping[str, Any]) -> Verdict:
    """Return the verdict on a record of the statement ``why``."""
    process, now = Process(known["process"]), known["now"]
    if reason := _outside(known, process):
        return Verdict(process, *reason, kind=_kind(known, reason[0]))
    if known["taken"]:
        return Verdict(process, None, "due", None, now)
    due_at: datetime | None = known["due_at"]
    blocks: list[tuple[Block, str, datetime | None]] = []
    if known["locked_until"] is not None:
        session = f"{known['locked_by']} ({known['locked_info']})"
        blocks.append((Block.LOCKED, f"being worked on by {session}", known["locked_until"]))
    if known["pause_id"] is not None:
        who = f"paused by {known['pause_owner']}: {known['pause_reason']}"
        blocks.append((Block.PAUSED, who, known["pause_expires_at"]))
    if known["backoff_until"] is not None and known["backoff_until"] > now:
        kind = "waiting" if known["last_interval_seconds"] is None else "backing off"
        blocks.append((Block.BACKOFF, f"{kind}: {known['backoff_cause']}", known["backoff_until"]))
    if not blocks or due_at is None or due_at > now:
        blocks.append((Block.NOT_DUE, _why_not_due(known, process), due_at))
    ends = [end for _, _, end in blocks]
    next_at = None if None in ends else max(end for end in ends if end is not None)
    return Verdict(process, *blocks[0], next_at, _kind(known, blocks[0][0]))


def _kind(known: Mapping[str, Any], block: Block) -> FailureKind | None:
    kinds = {Block.QUARANTINED: "quarantine_kind", Block.BACKOFF: "backoff_kind"}
    if block is Block.NOT_DUE and known["since"] is None:
        kinds[Block.NOT_DUE] = "start_kind"
    found = known.get(kinds.get(block, ""))
    return None if found is None else FailureKind(found)


def _outside(known: Mapping[str, Any], process: Process) -> tuple[Block, str] | None:
    """Return why the machine cannot need the process at all; None: it can."""
    if known["provider"] is None:
        return Block.NOT_PROVIDED, "not provided yet"
    if known["quarantined_at"] is not None:
        return Block.QUARANTINED, f"in quarantine: {known['quarantine_cause']}"
    if known["installed"]:
        return Block.INSTALLED, "the requested system is installed: no loop works on it any more"
    if known["wanted"]:
        return None
    if process is Process.AGENT_START:
        return Block.NOT_NEEDED, "its agent was started"
    return Block.NOT_NEEDED, "it has no agent that could be unhealthy"


def _why_not_due(known: Mapping[str, Any], process: Process) -> str:
    if known["since"] is None:
        return _not_overdue(known)
    if known["overdue"]:
        return "it is expected back, and its grace is not over"
    if process is Process.AGENT_START:
        return "it may still be booting: its boot wait is not over"
    return "its agent reports" if known["reported"] else "its agent was started recently, and has not reported yet"


def _not_overdue(known: Mapping[str, Any]) -> str:
    """Return why a machine that is expected is not known to have failed to come."""
    if known["start_fault"] in {Fault.ACCESS, Fault.PROVIDER, Fault.OURS}:
        return f"its agent start fails for a reason that no reboot can remove: {known['start_cause']}"
    if known["grace_until"] is None:
        return "it never came up, and no agent start has failed"
    return "it is expected back, and no agent start has failed since"
