"""
Explains to operators why a machine is worked on, or is not, from the views that claims use.

Only the words are made here: the statement ``why`` says whether a claim would take
the machine, and a test compares that with claims.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from shepherd_core.domain.errors import Fault
from shepherd_core.domain.errors.bmdb import MachineUnknown
from shepherd_core.domain.errors.kinds import FailureKind
from shepherd_core.domain.machine import Process
from shepherd_core.domain.records import record

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


@record
class MachineFacts:
    """Everything by which a claim of *process* evaluates a machine now; what is None does not block it."""

    process: Process
    now: datetime
    taken: bool
    """A claim would take it."""
    provided: bool
    installed: bool | None
    failed: bool | None
    """At its provider, for good."""
    provider_failure: str | None
    quarantine_kind: FailureKind | None
    quarantine_cause: str | None
    grace_until: datetime | None
    wanted: bool
    overdue: bool
    since: datetime | None
    due_at: datetime | None
    reported: bool
    backoff_until: datetime | None
    backoff_cause: str | None
    backoff_kind: FailureKind | None
    last_interval_seconds: int | None
    locked_until: datetime | None
    locked_by: str | None
    paused_by: str | None
    """And why."""
    pause_expires_at: datetime | None
    start_fault: Fault | None
    start_cause: str | None
    start_kind: FailureKind | None
    """What failed when an agent start was tried last."""


def why(connection: Connection, machine_id: UUID) -> tuple[list[Verdict], datetime]:
    """
    Return the verdict for each process of a loop, and the database's time at which they hold.

    Raises:
        MachineUnknown: the BMDB has no such machine.
    """
    found = connection.fetch(MachineFacts, "why", machine_id=machine_id)
    if not found:
        message = f"the BMDB has no machine {machine_id}"
        raise MachineUnknown(message)
    return [evaluate(each) for each in found], found[0].now


def evaluate(facts: MachineFacts) -> Verdict:
    """Return the verdict that follows from the *facts*."""
    process, now, due_at = facts.process, facts.now, facts.due_at
    if reason := _outside(facts):
        kinds = {Block.QUARANTINED: facts.quarantine_kind, Block.FAILED: FailureKind.PROVISIONING_FAILED}
        return Verdict(process, *reason, kind=kinds.get(reason[0]))
    if facts.taken:
        return Verdict(process, None, "due", None, now)
    blocks: list[tuple[Block, str, datetime | None, FailureKind | None]] = []
    if facts.locked_until is not None:
        blocks.append((Block.LOCKED, f"being worked on by {facts.locked_by}", facts.locked_until, None))
    if facts.paused_by is not None:
        blocks.append((Block.PAUSED, f"paused by {facts.paused_by}", facts.pause_expires_at, None))
    if facts.backoff_until is not None and facts.backoff_until > now:
        waits = "waiting" if facts.last_interval_seconds is None else "backing off"
        blocks.append((Block.BACKOFF, f"{waits}: {facts.backoff_cause}", facts.backoff_until, facts.backoff_kind))
    if not blocks or due_at is None or due_at > now:
        failed = facts.start_kind if facts.since is None else None
        blocks.append((Block.NOT_DUE, _why_not_due(facts), due_at, failed))
    ends = [end for _, _, end, _ in blocks]
    next_at = None if None in ends else max(end for end in ends if end is not None)
    block, because, until, kind = blocks[0]
    return Verdict(process, block, because, until, next_at, kind)


def _outside(facts: MachineFacts) -> tuple[Block, str] | None:
    """Return why the machine cannot need the process at all; None: it can."""
    if not facts.provided:
        return Block.NOT_PROVIDED, "not provided yet"
    if facts.quarantine_cause is not None:
        again = ", and its agent reports again" if facts.quarantine_kind is FailureKind.REPORTS_AGAIN else ""
        return Block.QUARANTINED, f"in quarantine: {facts.quarantine_cause}{again}"
    if facts.installed:
        return Block.INSTALLED, "the requested system is installed: no loop works on it any more"
    if facts.failed:
        return Block.FAILED, f"it failed for good at its provider, and keeps its place: {facts.provider_failure or '?'}"
    if facts.wanted:
        return None
    started = facts.process is Process.AGENT_START
    return Block.NOT_NEEDED, "its agent was started" if started else "it has no agent that could be unhealthy"


def _why_not_due(facts: MachineFacts) -> str:
    if facts.since is not None:
        if facts.overdue:
            return "it is expected back, and its grace is not over"
        if facts.process is Process.AGENT_START:
            return "it may still be booting: its boot wait is not over"
        return "its agent reports" if facts.reported else "its agent was started recently, and has not reported yet"
    # It is expected, and not known to have failed to come.
    if facts.start_fault in {Fault.ACCESS, Fault.PROVIDER, Fault.OURS}:
        return f"its agent start fails for a reason that no reboot can remove: {facts.start_cause}"
    if facts.grace_until is None:
        return "it never came up, and no agent start has failed"
    return "it is expected back, and no agent start has failed since"
