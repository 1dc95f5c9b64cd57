"""
The due index: what each machine may need next, and not before when.

It is derived from the facts and believed by the claims. Whoever changes a fact
that decides what a machine needs does so in ``change``, or says in ``sql/due.sql``
why not; a list of all of them is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar
from uuid import UUID, uuid4

from shepherd_core.domain.errors import CommitUnknown

if TYPE_CHECKING:
    from collections.abc import Callable

    from shepherd_core.bmdb.connection import Connection

T = TypeVar("T")


def change(connection: Connection, machine_id: UUID, step: Callable[[], T]) -> T:
    """
    Run *step*, which changes facts about a machine, and bring its due row up to date; return what *step* returns.

    To be called in a transaction, before anything else in it. Whoever changes
    the machine at the same time has done so, or waits. Where *step* returns
    something false it has changed nothing.
    """
    connection.run("lock_due_rows", machine_ids=[machine_id])
    result = step()
    if result:
        connection.run("reschedule", machine_ids=[machine_id])
    return result


def inconsistencies(connection: Connection, provider: str, start: UUID | None = None) -> dict[UUID, str]:
    """
    Return machines of *provider* whose due rows disagree with the facts, and how: none, unless something is broken.

    Looks at 500 machines or so, those from the id *start* on, or from anywhere.
    """
    return _found(connection, provider, start=start or uuid4(), machine_ids=[])


def repair(connection: Connection, provider: str, start: UUID | None = None) -> dict[UUID, str]:
    """
    Mend what ``inconsistencies`` finds, and return what was wrong. May run twice, and needs no session.

    Nothing is taken for wrong that somebody is just changing: it is judged again
    when that is done.
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
