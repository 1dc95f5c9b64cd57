"""The fleet at a glance: counts, what holds machines back, and what the loops did. For operators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shepherd_core.bmdb.connection import Connection

HALF_HOURS = 48
"""Of the day that ``tick_totals`` looks back."""
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


def fleet_notices(connection: Connection) -> list[dict[str, Any]]:
    """
    Return what holds machines back, at most 200 records; one of them has the ``kind`` now, and in ``since`` the time.

    The other kinds are suspension, ssh_outage, override (``machines`` is how many
    more it lets through), limit (``reason`` is the limit), pause and quarantine.
    """
    return connection.records("fleet_notices", limit=_NOTICES)


def tick_totals(connection: Connection) -> list[dict[str, Any]]:
    """
    Return what the ticks of the last day counted, by ``loop`` and ``half_hour`` (0, the oldest, to 47).

    ``created``, ``finished`` and ``failed`` are machines, ``lost`` the ticks that failed or expired.
    """
    return connection.records("tick_totals")
