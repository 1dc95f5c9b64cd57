"""
The Provisioner's part of the BMDB: the lock, intents, penalties, and the machines of the provider.

Beginning, recording or abandoning a creation requires the provider's lock and a
live session. The statements check both, so that an expired Provisioner can do
none of it. Penalties and pauses may be written late, because they only prevent work.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

from shepherd_core.domain.errors import cause_of
from shepherd_core.domain.errors.bmdb import SessionExpired
from shepherd_core.domain.record import record
from shepherd_core.domain.records import Intent, Ledger, Provided, Tombstone

if TYPE_CHECKING:
    from shepherd_core.bmdb.connection import Connection
    from shepherd_core.bmdb.session import Session
    from shepherd_core.domain.machine import Machine

_LOOP = "provisioner"
"""As its pauses name it."""


@record
class PreviousInvocation:
    """The records of earlier invocations, for the one that takes the lock; an age is infinite if there is none."""

    idle_seconds: float = float("inf")
    """Since the last creation."""
    waiting: int = 0
    """Number of places that waited for the limit of machines."""
    waiting_seconds: float = float("inf")
    """Since that was recorded."""


def take_lock(session: Session, provider: str) -> PreviousInvocation | None:
    """
    Become the one Provisioner of *provider* until the session ends; return what the previous invocation recorded.

    None: another live session holds the lock. May run twice.
    """
    return next(iter(session.fetch(PreviousInvocation, "take_lock", provider=provider)), None)


def ledger(connection: Connection, provider: str) -> Ledger:
    """Return what the BMDB knows about *provider*. Only the holder of the lock changes it."""

    def unit() -> Ledger:
        unusual = {each.machine_id: each for each in connection.fetch(Provided, "unusual_machines", provider=provider)}
        machines = connection.fetch(Provided, "provided_machines", provider=provider)
        return Ledger(
            provided=tuple(unusual.get(each.machine_id, each) for each in machines) if unusual else tuple(machines),
            intents=tuple(connection.fetch(Intent, "intents", provider=provider)),
            penalized=frozenset(connection.fetch(str, "penalized_capacity", provider=provider)),
            tombstones=tuple(connection.fetch(Tombstone, "tombstones", provider=provider)),
        )

    return connection.transact(unit)


def paused(connection: Connection, provider: str, loop: str = _LOOP) -> str | None:
    """Return who paused the Provisioner of *provider*, or another loop, and why; None: it is not paused."""
    return next(iter(connection.fetch(str, "loop_paused", provider=provider, process=loop)), None)


def record_waiting(session: Session, provider: str, waiting: int, max_machines: int) -> None:
    """Record for operators how many places at *provider* wait for the limit of *max_machines*. May run twice."""
    session.connection.run(
        "record_waiting", session_id=session.session_id, provider=provider, waiting=waiting, max_machines=max_machines
    )


@record
class Waiting:
    """How many places at a provider wait for the limit of machines."""

    provider: str
    waiting: int
    max_machines: int
    seen_at: datetime


def waiting(connection: Connection) -> list[Waiting]:
    """Return the providers where places wait for the limit, as the Provisioner saw within the last day."""
    return connection.fetch(Waiting, "waiting")


def create_intent(
    session: Session, provider: str, capacity_id: str | None, *, respect_pauses: bool = True
) -> UUID | None:
    """
    Record that a machine is about to be created on the capacity; return its id, the token at the provider.

    None: creations were paused meanwhile, and *respect_pauses* is set. Create nothing.

    Raises:
        SessionExpired: the session or the lock is lost. Create nothing.
        CommitUnknown: the connection broke. Create nothing; a later invocation sees whether the intent exists.
    """
    try:
        return run_locked(
            session,
            "create_intent",
            provider=provider,
            capacity_id=capacity_id,
            process=_LOOP,
            respect_pauses=respect_pauses,
        )
    except SessionExpired:
        if not respect_pauses or paused(session.connection, provider) is None:
            raise
        return None


def provide(
    session: Session,
    provider: str,
    machine_id: UUID,
    machine: Machine,
    *,
    created: bool = False,
    boot_seconds: float = 0.0,
) -> None:
    """
    Record that *machine* exists at the provider; its agent is started after *boot_seconds*.

    If it was *created* for this, the interval until the next creation starts now. If
    the provider reports its SSH host key, that is pinned, so that even the first
    contact is verified.

    Raises:
        SessionExpired: the session or the lock is lost. A later invocation finds the machine by its token.
        StatementFailed: the BMDB has the provider id already, for another machine.
    """
    run_locked(
        session,
        "provide",
        provider=provider,
        machine_id=machine_id,
        **_listed(machine),
        capacity_id=machine.capacity_id,
        host_key=machine.host_key,
        created=created,
        boot_seconds=boot_seconds,
    )


def rebind(session: Session, provider: str, machine_id: UUID, machine: Machine, reason: str) -> None:
    """
    Record that the provider lists the machine as *machine* now, under another id; may run twice.

    Raises:
        SessionExpired: the session or the lock is lost; nothing was written.
        StatementFailed: the BMDB has the provider id already, for another machine.
    """
    run_locked(session, "rebind", provider=provider, machine_id=machine_id, **_listed(machine), reason=reason)


def _listed(machine: Machine) -> dict[str, str | None]:
    """Return the parameters for what the provider lists about a machine."""
    return {
        "provider_id": machine.provider_id,
        "provider_reservation_id": machine.reservation_id,
        "provider_ip_address": None if machine.address is None else str(machine.address),
        "provider_location": machine.location,
        "provider_status": machine.status,
        "provider_failure": machine.failure,
        "provider_hardware": machine.hardware,
        "provider_labels": json.dumps(dict(machine.labels)),
    }


def adopt(
    session: Session, provider: str, machine: Machine, intended: UUID | None = None, *, operator: str | None = None
) -> UUID | None:
    """
    Add a machine that exists at the provider to the BMDB, as the creation *intended* or as a new one; return its id.

    In one transaction. May run twice: a machine that is in the BMDB already stays
    as it is. An *operator* does so despite a pause, and is written to the machine's
    history. None: creations are paused.

    Raises:
        SessionExpired: the session or the lock is lost; nothing was written.
        CommitUnknown: the connection broke again, or what was sent is still running.
    """

    def unit() -> UUID | None:
        found = session.connection.fetch(UUID, "find_provided", provider=provider, provider_id=machine.provider_id)
        if found:
            return found[0]
        machine_id = intended or create_intent(session, provider, machine.capacity_id, respect_pauses=operator is None)
        if machine_id is not None:
            provide(session, provider, machine_id, machine)
        if operator is not None:
            session.connection.run("record_adoption", machine_id=machine_id, owner=operator)
        return machine_id

    return session.transact(unit)


def delete_intent(session: Session, provider: str, intent: Intent) -> None:
    """
    Delete an intent, and the row of its machine, which never existed.

    Raises:
        SessionExpired: the session or the lock is lost.
    """
    run_locked(session, "delete_intent", provider=provider, machine_id=intent.machine_id)


def penalize(session: Session, provider: str, capacity_id: str, seconds: float, error: Exception) -> None:
    """Do not use the capacity for *seconds*, because of *error*. May run twice."""
    cause = cause_of(error)
    session.connection.run(
        "penalize", provider=provider, capacity_id=capacity_id, seconds=seconds, kind=cause.kind, cause=cause.text
    )


def set_aside(session: Session, machine_id: UUID, reason: str) -> None:
    """Pause a machine that the provider does not list, for all loops. May run twice."""
    session.connection.run("set_aside", machine_id=machine_id, reason=reason)


def take_back(session: Session, machine_id: UUID) -> None:
    """End that pause: the provider lists the machine again. May run twice."""
    session.connection.run("take_back", machine_id=machine_id)


def run_locked(session: Session, statement: str, **parameters: object) -> UUID:
    """
    Run a statement that writes only while the provider's lock is held, and return the machine id in its row.

    Raises:
        SessionExpired: the session or the lock is lost; nothing was written.
    """
    rows = session.fetch_once(UUID, statement, **parameters)
    if not rows:
        raise SessionExpired
    return rows[0]
