"""One machine, for operators: which one a name stands for, and everything that is known about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shepherd_core.domain.errors.bmdb import MachineUnknown

if TYPE_CHECKING:
    from uuid import UUID

    from shepherd_core.bmdb.connection import Connection


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
