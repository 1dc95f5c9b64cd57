"""The labels that operators give to machines."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from shepherd_core.bmdb.connection import Connection


def set_labels(
    connection: Connection, machine_id: UUID, added: Mapping[str, str], removed: Sequence[str], *, reason: str
) -> dict[str, str] | None:
    """
    Give a machine the labels *added*, remove those of operators with the keys *removed*, and return all its labels.

    None: the machine is not provided. A label of the provider cannot be removed, but an
    operator's label of the same key wins. *reason* is written to the history. May run twice.
    """
    given = {"added": json.dumps(added), "removed": list(removed), "reason": reason}
    found = connection.fetch(dict, "set_labels", machine_id=machine_id, **given)
    return cast("dict[str, str]", found[0]) if found else None
