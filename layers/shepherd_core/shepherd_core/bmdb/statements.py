"""
The SQL of the BMDB, by name.

Each statement stands in a ``*.sql`` file beside the module that uses it: a line
``-- name: claim``, comment lines that say why, one statement. Parameters are
written ``:like_this``. Names are unique over all files; ``Connection.run`` takes
the name.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

_MARK = "-- name: "


@cache
def statements() -> dict[str, str]:
    """Return every statement by its name, comments included. The files are read once per process."""
    found: dict[str, str] = {}
    folder = Path(__file__).parent
    for file in sorted([*folder.glob("*.sql"), *folder.glob("*/*.sql")]):
        for part in file.read_text(encoding="utf-8").split(_MARK)[1:]:
            name, _, text = part.partition("\n")
            if name in found:
                msg = f"two statements are named {name}"
                raise AssertionError(msg)
            found[name] = text.strip().removesuffix(";")
    return found
