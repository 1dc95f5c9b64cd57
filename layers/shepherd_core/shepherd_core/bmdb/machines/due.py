"""
The due index: the process that each machine may need next, and its time.

It is derived from the facts, and claims search it. A fact that decides what a
machine needs is changed through ``change``; ``due.sql`` lists every write, and
why a few of them do not need that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar
from uuid import UUID, uuid4

from shepherd_core.domain.errors.bmdb import CommitUnknown

if TYPE_CHECKING:
    from collections.abc import Callable

    from shepherd_core.bmdb.connection import Connection

T = TypeVar("T")


def change(connection: Connection, machine_id: UUID, step: Callable[[], T]) -> T:
    """
    Run *step*, which changes facts about a machine; update its due row; return the result of *step*.

    Call it in a transaction, before anything else in it. A concurrent change of the
    machine has either committed before *step* runs, or waits. If *step* returns
    something false, it must have changed nothing.
    """
    connection.run("lock_due_rows", machine_ids=[machine_id])
    result = step()
    if result:
        connection.run("reschedule", machine_ids=[machine_id])
    return result


def inconsistencies(connection: Connection, provider: str, start: UUID | None = None) -> dict[UUID, str]:
    """
    Return machines of *provider* whose due row contradicts the facts, and how; empty, unless something is broken.

    Examines about 500 machines, from the id *start* on, or from a random one.
    """
    return _found(connection, provider, start=start or uuid4(), machine_ids=[])


def repair(connection: Connection, provider: str, start: UUID | None = None) -> dict[UUID, str]:
    """
    Correct what ``inconsistencies`` finds, and return what was wrong. May run twice, and needs no session.

    Machines that are being changed at this moment are not reported: each is
    evaluated again under the lock on its due row.
    """
    suspects = list(inconsistencies(connection, provider, start))
    wrong: dict[UUID, str] = {}

    def unit() -> None:
        connection.run("lock_due_rows", machine_ids=suspects)
        wrong.update(_found(connection, provider, start=None, machine_ids=suspects))
        connection.run("delete_orphaned_due_rows", machine_ids=list(wrong))
        connection.run("reschedule", machine_ids=list(wrong))

    if suspects:
        try:
            connection.transact(unit)
        except CommitUnknown:
            connection.transact(unit)
    return wrong


def _found(connection: Connection, provider: str, **where: object) -> dict[UUID, str]:
    return {row[0]: row[1] for row in connection.run("find_due_inconsistencies", provider=provider, **where)}
