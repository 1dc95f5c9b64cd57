"""The whole fleet, for operators: counts, what holds machines back, and what fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shepherd_core.bmdb.work.ticks import last_ticks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shepherd_core.bmdb.connection import Connection

_EXCEPTIONS = 10_000
"""Beyond that, evaluating all machines of a fleet at once is faster than each exception by itself."""
_NOTICES = 200


def fleet_counts(connection: Connection, ages: Sequence[float]) -> list[dict[str, Any]]:
    """
    Return the number of ``machines`` by ``provider``, ``location`` and ``state``, and by age of the last heartbeat.

    A record of the second kind has no ``state``, but an ``age_class``: n is a last heartbeat that is younger than n of
    *ages*, in seconds and whole minutes. Machines that need no recovery or have no agent are left out there.
    """
    return connection.records("fleet_counts", ages=list(ages), exceptions=_EXCEPTIONS)


def count_machines(connection: Connection) -> list[dict[str, Any]]:
    """
    Return how many machines there are, one record for each provider and state that has any. Reads all machines.

    Each has ``provider``, ``state`` (a value of ``domain.states.State``), ``machines``,
    and of these the number ``being_worked_on``, ``backing_off`` and ``paused`` (to
    which a pause applies, their own or a wider one).
    """
    return connection.records("count_machines")


def fleet_notices(connection: Connection) -> list[dict[str, Any]]:
    """
    Return what holds machines back, at most 200 records. The one of the ``kind`` now has in ``since`` the present time.

    The other kinds are suspension, ssh_outage, limit (``reason`` is the limit),
    pause and quarantine.
    """
    return connection.records("fleet_notices", limit=_NOTICES)


def failures(
    connection: Connection, *, provider: str | None = None, location: str | None = None
) -> list[dict[str, Any]]:
    """
    Return what fails now, by ``loop`` and ``kind``, a ``FailureKind``.

    ``loop`` is a process (machines whose work failed), quarantine (machines), or the
    name of a loop: provisioner for capacity under a penalty, and each loop whose last
    tick failed or expired, unless only a *location* is wanted. Each record has the
    ``count``, up to three ``examples`` (ids of machines or of capacity; of a tick, its
    provider), the newest ``cause``, and in ``failed_at`` its time, None if unknown.
    """
    found = connection.records("failures", provider=provider, location=location)
    return found + [
        {
            "loop": tick.loop,
            "kind": tick.kind,
            "count": 1,
            "examples": [tick.provider],
            "cause": tick.cause or tick.outcome,
            "failed_at": tick.ended_at,
        }
        for tick in last_ticks(connection)
        if tick.outcome != "Succeeded" and location is None and provider in (None, tick.provider)
    ]
