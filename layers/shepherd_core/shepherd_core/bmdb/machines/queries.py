"""Queries for operators, and facts that are written outside of work: heartbeats and pauses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shepherd_core.bmdb.connection import sanitize_for_db
from shepherd_core.bmdb.machines import due
from shepherd_core.domain.errors.bmdb import MachineUnknown

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

    from shepherd_core.bmdb.connection import Connection
    from shepherd_core.domain.machine import Process

_SUMS = ("hardware_threads", "memory_bytes", "disks", "disk_bytes")


def record_heartbeat(connection: Connection, machine_id: UUID) -> bool:
    """Record a heartbeat now; False: the machine has no started agent. May run twice."""
    return bool(connection.run("record_heartbeat", machine_id=machine_id))


def find_machine(connection: Connection, name: str) -> UUID:
    """
    Return the id of the machine that *name* stands for: the beginning of its id, or its provider id.

    Raises:
        MachineUnknown: no machine matches, or more than one.
    """
    rows = connection.run("find_machines", name=name.lower(), provider_id=name) if name else []
    if len(rows) != 1:
        message = f"{'more than one machine is' if rows else 'no machine is'} called {name!r}"
        raise MachineUnknown(message)
    found: UUID = rows[0][0]
    return found


def count_machines(connection: Connection) -> list[dict[str, Any]]:
    """
    Return how many machines there are, one record for each provider and state that has any. Reads all machines.

    Each has ``provider``, ``state`` (a value of ``domain.states.State``), ``machines``,
    and of these the number ``being_worked_on``, ``backing_off`` and ``paused`` (to
    which a pause applies, their own or a wider one).
    """
    return connection.records("count_machines")


def show_machine(connection: Connection, machine_id: UUID) -> dict[str, Any]:
    """
    Return everything that is known about one machine; ``backoffs`` and ``work`` are lists of records.

    ``pause_ids`` are as in ``search.Found.machines``.

    Raises:
        MachineUnknown: the BMDB has no such machine.
    """
    found = connection.records("show_machine", machine_id=machine_id)
    if not found:
        message = f"the BMDB has no machine {machine_id}"
        raise MachineUnknown(message)
    return {
        **found[0],
        "backoffs": connection.records("backoffs", machine_id=machine_id),
        "work": connection.records("work_on_machine", machine_id=machine_id),
    }


def hardware_report(connection: Connection, machine_id: UUID) -> tuple[bytes, datetime] | None:
    """Return the machine's last AgentHardwareReport, serialized, and when it arrived; None: it never sent one."""
    rows = connection.run("hardware_report", machine_id=machine_id)
    return (rows[0][0], rows[0][1]) if rows else None


def inventory(
    connection: Connection, *, provider: str | None = None, location: str | None = None
) -> list[dict[str, Any]]:
    """
    Return the hardware at each provider and location, sorted; machines without a location have a record of their own.

    Each record has ``provider``, ``location`` and these whole numbers:
    ``machines``, ``unreported`` (those of them without a hardware report), and the
    sums over the others: ``hardware_threads``, ``memory_bytes``, ``disks`` and
    ``disk_bytes``. Reads all machines.
    """
    # PostgreSQL returns sums of bigint as numeric, which the driver turns into Decimal.
    return [
        {name: int(value) if name in _SUMS else value for name, value in record.items()}
        for record in connection.records("inventory", provider=provider, location=location)
    ]


def history(connection: Connection, machine_id: UUID, limit: int = 100) -> list[dict[str, Any]]:
    """Return the history of one machine, newest first."""
    return connection.records("history", machine_id=machine_id, limit=limit)


def delete_old_history(connection: Connection, days: int) -> int:
    """Delete history older than *days*, about 1,000 rows at a time; return how many rows. May run twice."""
    return len(connection.run("delete_old_history", days=days))


def pause(
    connection: Connection,
    *,
    owner: str,
    reason: str,
    machine_id: UUID | None = None,
    process: Process | None = None,
    provider: str | None = None,
    seconds: float | None = None,
) -> UUID:
    """
    Pause a machine, a process, a provider, or any combination of them, and return the pause's id.

    With none of them, everything is paused. Work in progress continues; nothing new
    is claimed. Ends after *seconds*, or by ``resume``.
    """
    rows = connection.run(
        "pause",
        machine_id=machine_id,
        process=process,
        provider=provider,
        owner=owner,
        reason=reason,
        seconds=seconds,
    )
    found: UUID = rows[0][0]
    return found


def pauses(connection: Connection) -> list[dict[str, Any]]:
    """Return the pauses in force, oldest first."""
    return connection.records("pauses_in_force")


def resume(connection: Connection, pause_id: UUID, owner: str | None = None) -> bool:
    """
    End a pause; its machine can be claimed again at once. False: there is no such pause. May run twice.

    That an operator, *owner*, did so is written to the machine's history.
    """

    def unit() -> bool:
        return bool(connection.run("resume", pause_id=pause_id, owner=owner))

    def ended() -> bool:
        rows = connection.run("machine_of_pause", pause_id=pause_id)
        if not rows or rows[0][0] is None:  # a pause of many machines does not change their due rows
            return unit()
        return due.change(connection, rows[0][0], unit)

    return connection.transact(ended)


def forget_host_key(connection: Connection, machine_id: UUID, reason: str) -> bool:
    """
    Delete the pinned host key: the next takeover pins a new one. False: none was pinned.

    *reason* is written to the history if one was. May run twice.
    """
    return bool(connection.run("forget_host_key", machine_id=machine_id, reason=sanitize_for_db(reason)))


def pin_host_key(
    connection: Connection, machine_id: UUID, host_key: str, *, reason: str, replace: bool = False
) -> tuple[str | None, bool] | None:
    """
    Pin the *host_key* that an operator names, ``ssh-ed25519 AAAA...``, in place of another only if *replace*.

    Returns the key that was pinned before, and whether this one is now; None: the
    machine is not provided. *reason* is written to the history. May run twice.
    """
    rows = connection.run(
        "pin_host_key", machine_id=machine_id, host_key=host_key, replace=replace, reason=sanitize_for_db(reason)
    )
    return (rows[0][0], rows[0][1]) if rows else None


def oldest_transaction(connection: Connection, seconds: float) -> dict[str, Any] | None:
    """
    Return the oldest transaction that keeps dead rows of the BMDB, if it is older than *seconds*.

    ``kind`` (open or prepared), ``pid`` (None if prepared), ``owner``, ``application``
    (of a prepared one, its name), ``state`` as PostgreSQL calls it, and ``seconds``. As
    long as it lasts, claims and snapshots read the old places of all rows that moved.
    Sees open transactions of other users only where ``sees_transactions``.
    """
    found = connection.records("find_oldest_transaction", seconds=seconds)
    return found[0] if found else None


def sees_transactions(connection: Connection) -> tuple[str, bool]:
    """Return the database's user, and whether it sees the transactions of others: it is in pg_read_all_stats."""
    user, sees = connection.run("sees_transactions")[0]
    return user, sees


def now(connection: Connection) -> datetime:
    """Return the database's time, with which all times in the BMDB are compared."""
    found: datetime = connection.run("now")[0][0]
    return found
