"""
What the shell offers for names that are in the BMDB.

Nothing is offered where the BMDB cannot be reached, or does not answer: whoever presses the Tab key gets no error.
"""

from collections.abc import Callable

from shepherd_core.bmdb.connection import Connection
from shepherd_core.bmdb.machines import lookup, overview, pauses
from shepherd_core.domain.errors import ShepherdError

from shepherdctl.database import bmdb

_MOST = 50
"""Names that are offered: more help nobody to choose."""


class _Name(str):
    """A name that was begun in any case: Typer drops what does not begin as it was typed."""

    __slots__ = ()

    def startswith(self, *_: object) -> bool:
        return True


def _offered(read: Callable[[Connection, str], list[str]]) -> Callable[[str], list[str]]:
    def complete(incomplete: str) -> list[str]:
        try:
            with bmdb() as connection:
                return [_Name(each) for each in read(connection, incomplete)[:_MOST]]
        except ShepherdError:
            return []

    return complete


def _begins(name: str, typed: str) -> bool:
    return name.lower().startswith(typed.lower())


def _machines(connection: Connection, typed: str) -> list[str]:
    found = lookup.find_machines(connection, typed, _MOST)
    by_name = [each.provider_id for each in found if _begins(each.provider_id or "", typed)]
    return [name for name in by_name if name] or [str(each.machine_id) for each in found]


machine_names = _offered(_machines)
location_names = _offered(
    lambda connection, typed: [each for each in overview.locations(connection) if _begins(each, typed)]
)
pause_ids = _offered(
    lambda connection, typed: [
        str(each.pause_id) for each in pauses.pauses_in_force(connection) if _begins(str(each.pause_id), typed)
    ]
)
