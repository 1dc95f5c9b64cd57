"""
Why a machine is worked on, or is not: for people, from the views by which claims judge.

The words are made here, the judgement is not: what claims hand out is decided
in SQL, and a test holds the two together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from shepherd_core.bmdb.recovery import suspension
from shepherd_core.domain.errors import Fault, MachineUnknown
from shepherd_core.domain.machine import Process

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime
    from uuid import UUID

    from shepherd_core.bmdb.connection import Connection
    from shepherd_core.bmdb.work.work import HealthTimeouts


_ADVICE = {
    "SshHostKeyChanged": "find out why; if it was reinstalled, let its new key be taken: machine forget-host-key",
    "SshAuthenticationFailed": "let the machine accept our key, then: machine retry",
    "NoAddress": "have the provider name an address, then: machine retry",
}
"""What an operator can do about what no loop cures, by the name of the error."""


class Block(StrEnum):
    """What keeps a process away from a machine; the first of those that do, in this order."""

    NOT_PROVIDED = "not_provided"
    QUARANTINED = "quarantined"
    INSTALLED = "installed"
    NOT_NEEDED = "not_needed"
    LOCKED = "locked"
    PAUSED = "paused"
    RECOVERY_SUSPENDED = "recovery_suspended"
    BACKOFF = "backoff"
    NOT_DUE = "not_due"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a claim of *process* would hand the machine out now."""

    process: Process
    blocked_by: Block | None
    """None: it would."""
    because: str
    """In words; who and why, without times, which follow."""
    until: datetime | None = None
    """When that ends; None: nobody knows, or nothing blocks."""
    next_at: datetime | None = None
    """When it will be tried, if nothing else happens; None: nobody knows."""

    @property
    def eligible(self) -> bool:
        """Return whether it would be handed out."""
        return self.blocked_by is None


def why(connection: Connection, machine_id: UUID, timeouts: HealthTimeouts) -> tuple[list[Verdict], datetime]:
    """
    Return the verdict for each process that a loop works in, and the time at the database at which they held.

    Raises:
        MachineUnknown: the BMDB knows no such machine.
    """
    records = connection.records("why", machine_id=machine_id)
    if not records:
        message = f"the BMDB knows no machine {machine_id}"
        raise MachineUnknown(message)
    if provider := records[0]["provider"]:
        timeouts = replace(timeouts, gaps=suspension.gaps(connection, provider))
    return [judge(record, timeouts) for record in records], records[0]["now"]


def judge(known: Mapping[str, Any], timeouts: HealthTimeouts) -> Verdict:
    """Return the verdict on a record of the statement ``why``."""
    process, now = Process(known["process"]), known["now"]
    if reason := _outside(known, process):
        return Verdict(process, *reason)
    due_at = _due_at(known, process, timeouts)
    blocks: list[tuple[Block, str, datetime | None]] = []
    if known["locked_until"] is not None:
        session = f"{known['locked_by']} ({known['locked_info']})"
        blocks.append((Block.LOCKED, f"{known['locked_for']} is under way by {session}", known["locked_until"]))
    if known["pause_id"] is not None:
        who = f"paused by {known['pause_owner']}: {known['pause_reason']}"
        blocks.append((Block.PAUSED, who, known["pause_expires_at"]))
    if known["suspension_reason"] is not None:
        blocks.append((Block.RECOVERY_SUSPENDED, f"recovery is held back: {known['suspension_reason']}", None))
    if known["backoff_until"] is not None and known["backoff_until"] > now:
        kind = "left alone" if known["last_interval_seconds"] is None else "backing off"
        blocks.append((Block.BACKOFF, f"{kind}: {_advised(known['backoff_cause'])}", known["backoff_until"]))
    if due_at is None or due_at > now:
        blocks.append((Block.NOT_DUE, _patience(known, process, timeouts), due_at))
    if not blocks:
        return Verdict(process, None, "due", None, now)
    ends = [end for _, _, end in blocks]
    next_at = None if None in ends else max(end for end in ends if end is not None)
    return Verdict(process, *blocks[0], next_at)


def _outside(known: Mapping[str, Any], process: Process) -> tuple[Block, str] | None:
    """Return why the machine is none that the process may be needed for."""
    if known["provider"] is None:
        return Block.NOT_PROVIDED, "not provided yet"
    if known["quarantined_at"] is not None:
        return Block.QUARANTINED, f"in quarantine: {known['quarantine_cause']}"
    if known["installed"]:
        return Block.INSTALLED, "the wanted system is installed: no loop cares for it any more"
    if known["wanted"]:
        return None
    if process is Process.AGENT_START:
        return Block.NOT_NEEDED, "its agent was started"
    return Block.NOT_NEEDED, "it has no agent that could be silent"


def _due_at(known: Mapping[str, Any], process: Process, timeouts: HealthTimeouts) -> datetime | None:
    """Return from when on it is due, by its tags alone; None: something must happen first."""
    since: datetime | None = known["since"]
    if since is None or process is not Process.RECOVERY:
        return since
    if known["overdue"]:
        return since + timedelta(seconds=timeouts.min_overdue_seconds)
    patience = (
        timeouts.effective_heartbeat_timeout_seconds
        if known["reported"]
        else timeouts.effective_startup_timeout_seconds
    )
    return since + timedelta(seconds=patience)


def _patience(known: Mapping[str, Any], process: Process, timeouts: HealthTimeouts) -> str:
    if known["since"] is None:
        return _not_overdue(known)
    without_gaps = _due_at(known, process, replace(timeouts, gaps=()))
    if process is Process.RECOVERY and without_gaps is not None and without_gaps <= known["now"]:
        longest = max(gap.seconds for gap in timeouts.gaps)
        return f"it is silent, but nobody looked for {longest:.0f} s, and may have missed it: it is given more time"
    if known["overdue"]:
        return "it was told to come back, and is given time for that"
    if process is Process.AGENT_START:
        return "it was told to restart, and is given time for that"
    return "its agent reports" if known["reported"] else "its agent was started lately, and may report yet"


def _not_overdue(known: Mapping[str, Any]) -> str:
    """Return why a machine that was told to come back is not known to have failed to."""
    if known["start_fault"] in {Fault.ACCESS, Fault.PROVIDER, Fault.OURS}:
        return f"its agent start fails for a reason that no reboot cures: {_advised(known['start_cause'])}"
    if known["start_fault"] == Fault.UNREACHED and known["outage_reason"] is not None:
        return f"machines that did not come back wait: {known['outage_reason']}"
    return "it was told to come back, and no agent start has failed since"


def _advised(cause: str) -> str:
    """Return *cause*, with what an operator can do about it."""
    advice = _ADVICE.get(cause.partition(":")[0])
    return cause if advice is None else f"{cause} ({advice})"
