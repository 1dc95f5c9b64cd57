"""One machine, for operators: which one a name stands for, and everything that is known about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

from shepherd_core.bmdb.machines.search import FoundMachine
from shepherd_core.domain.errors.bmdb import MachineUnknown
from shepherd_core.domain.errors.kinds import FailureKind
from shepherd_core.domain.machine import HostKeyOrigin
from shepherd_core.domain.records import record

if TYPE_CHECKING:
    from shepherd_core.bmdb.connection import Connection


def find_machine(connection: Connection, name: str) -> UUID:
    """
    Return the id of the machine that *name* stands for: the beginning of its id, or its provider id.

    Raises:
        MachineUnknown: no machine matches, or more than one.
    """
    found = connection.fetch(UUID, "find_machines", name=name.lower(), provider_id=name) if name else []
    if len(found) != 1:
        message = f"{'more than one machine is' if found else 'no machine is'} called {name!r}"
        raise MachineUnknown(message)
    return found[0]


@record
class MachineBackoff:
    """Until when a process leaves the machine alone, and why."""

    process: str
    until: datetime
    kind: FailureKind | None
    """What failed; None: nothing did."""
    cause: str
    last_interval_seconds: int | None
    deaths: int
    """How often in a row its function died."""


@record
class MachineWork:
    """The work in progress on the machine; its session is alive until the deadline."""

    process: str
    component_name: str
    runtime_info: str
    deadline: datetime


@record
class ShownMachine(FoundMachine):
    """Everything that is known about one machine."""

    provider_reservation_id: str | None
    agent_public_key: str | None
    host_key: str | None
    host_key_origin: HostKeyOrigin | None
    host_key_pinned_at: datetime | None
    rebooted_at: datetime | None
    boot_wait_until: datetime | None
    intended_at: datetime | None
    release_asked_at: datetime | None
    release_asked_by: str | None
    release_reason: str | None
    release_accepted_at: datetime | None
    decommissioned_how: str | None
    decommissioned_at: datetime | None
    decommissioned_by: str | None
    decommissioned_reason: str | None
    decommissioned_provider: str | None
    decommissioned_provider_id: str | None
    unhealthy_at: datetime | None
    grace_until: datetime | None
    quarantine_kind: FailureKind | None
    failure_kinds: list[str]
    """Of its backoffs and, in quarantine, of what failed before."""
    quarantine_cause: str | None
    quarantine_evidence: list[str] | None
    backoffs: Sequence[MachineBackoff] = ()
    work: Sequence[MachineWork] = ()


def show_machine(connection: Connection, machine_id: UUID) -> ShownMachine:
    """
    Return everything that is known about one machine.

    Raises:
        MachineUnknown: the BMDB has no such machine.
    """
    found = connection.fetch(ShownMachine, "show_machine", machine_id=machine_id)
    if not found:
        message = f"the BMDB has no machine {machine_id}"
        raise MachineUnknown(message)
    return replace(
        found[0],
        backoffs=connection.fetch(MachineBackoff, "backoffs", machine_id=machine_id),
        work=connection.fetch(MachineWork, "work_on_machine", machine_id=machine_id),
    )
