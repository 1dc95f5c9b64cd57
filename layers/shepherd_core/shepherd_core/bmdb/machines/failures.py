"""What fails across the fleet, grouped by cause. For operators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shepherd_core.bmdb.work.ticks import last_ticks

if TYPE_CHECKING:
    from shepherd_core.bmdb.connection import Connection


def failures(
    connection: Connection, *, provider: str | None = None, location: str | None = None
) -> list[dict[str, Any]]:
    """
    Return what fails now, by ``loop`` and ``kind``: the name with which a cause begins, or all of one without a name.

    ``loop`` is a process (machines whose work failed), quarantine (machines), or the
    name of a loop: provisioner for capacity under a penalty, and each loop whose last
    tick failed or expired, unless only a *location* is wanted. Each record has the
    ``count``, up to three ``examples`` (ids of machines or of capacity; of a tick, its
    provider), the newest ``cause``, and in ``failed_at`` its time, None if unknown.
    """
    found = connection.records("failures", provider=provider, location=location)
    return found + [
        {
            "loop": tick["loop"],
            "kind": (tick["cause"] or tick["outcome"]).partition(":")[0],
            "count": 1,
            "examples": [tick["provider"]],
            "cause": tick["cause"] or tick["outcome"],
            "failed_at": tick["ended_at"],
        }
        for tick in last_ticks(connection)
        if tick["outcome"] != "Succeeded" and location is None and provider in (None, tick["provider"])
    ]
