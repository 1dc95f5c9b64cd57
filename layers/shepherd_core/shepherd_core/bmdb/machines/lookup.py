"""One machine, for operators: which one a name stands for, and everything that is known about it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

from shepherd_core.bmdb.machines.search import FoundMachine
from shepherd_core.domain.errors.bmdb import MachineUnknown
from shepherd_core.domain.errors.kinds import FailureKind
from shepherd_core.domain.machine import HostKeyOrigin, ProviderId
from shepherd_core.domain.record import record

if TYPE_CHECKING:
    from shepherd_core.bmdb.connection import Connection


_MOST_NAMED = 10
"""Machines that a name may stand for, which are listed."""


@record
class NamedMachine:
    """A machine that a name may stand for."""

    machine_id: UUID
    provider_id: ProviderId | None
    provider_location: str | None = None
    exact: bool = True
    """The name is its whole id, provider id or address."""

    def __str__(self) -> str:
        """Return how people call it."""
        place = f" at {self.provider_location}" if self.provider_location else ""
        return f"{self.provider_id or 'no provider id'} ({self.machine_id}){place}"


def find_machines(connection: Connection, name: str, limit: int) -> list[NamedMachine]:
    """Return the machines that *name*, in any case, may stand for; those that it stands for exactly come first."""
    return connection.fetch(NamedMachine, "find_machines", name=name.lower(), limit=limit)


def provider_ids(connection: Connection, machine_ids: Iterable[UUID | str]) -> dict[str, str]:
    """Return what their provider calls these machines, by their ids as text; without those that it does not have."""
    wanted = sorted({str(each) for each in machine_ids})
    found = connection.fetch(NamedMachine, "provider_ids", machine_ids=wanted) if wanted else []
    return {str(each.machine_id): each.provider_id for each in found if each.provider_id}


def find_machine(connection: Connection, name: str) -> UUID:
    """
    Return the id of the machine that *name* stands for: id, provider id, the beginning of one, or address; in any case.

    Raises:
        MachineUnknown: no machine matches, or several do, which the message lists.
    """
    found = find_machines(connection, name, _MOST_NAMED + 1) if name else []
    chosen = [each for each in found if each.exact] or found
    if not chosen:
        raise MachineUnknown(f"no machine matches {name!r}")
    if len(chosen) > 1:
        more = ["and more"] if len(chosen) > _MOST_NAMED else []
        names = "\n  ".join([*map(str, chosen[:_MOST_NAMED]), *more])
        raise MachineUnknown(f"more than one machine matches {name!r}:\n  {names}")
    return chosen[0].machine_id


@record
class MachineBackoff:
    """Until when a process leaves the machine alone, and why."""

    process: str
    until: datetime
    kind: FailureKind | None
    """The failure; None: nothing failed."""
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
    provider_failure: str | None
    """The provider's word for a failure for good."""
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
        raise MachineUnknown(f"the BMDB has no machine {machine_id}")
    return replace(
        found[0],
        backoffs=connection.fetch(MachineBackoff, "backoffs", machine_id=machine_id),
        work=connection.fetch(MachineWork, "work_on_machine", machine_id=machine_id),
    )
