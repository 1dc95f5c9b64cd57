"""
The due index: what each machine may need next, and not before when.

It is derived from the facts and believed by the claims. Whoever changes a fact
that decides what a machine needs does so in ``change``, or says in ``sql/due.sql``
why not; a list of all of them is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from shepherd_core.bmdb.connection import Connection

T = TypeVar("T")


def change(connection: Connection, machine_id: UUID, step: Callable[[], T]) -> T:
    """
    Run *step*, which changes facts about a machine, and bring its due row up to date; return what *step* returns.

    To be called in a transaction, before anything else in it. Whoever changes
    the machine at the same time has done so, or waits. Where *step* returns
    something false it has changed nothing.
    """
    connection.run("lock_due", machine_ids=[machine_id])
    result = step()
    if result:
        connection.run("rearm", machine_ids=[machine_id])
    return result
