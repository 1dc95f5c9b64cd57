"""
The SQL of the BMDB, by name.

It lives in ``sql/*.sql``: a line ``-- name: claim``, comment lines that say
why, one statement. Parameters are written ``:like_this``. Names are unique over
all files and are what ``Connection.run`` takes.
"""

from __future__ import annotations

from functools import cache
from importlib import resources

_MARK = "-- name: "


@cache
def statements() -> dict[str, str]:
    """Return every statement by its name, comments included; read once per process."""
    found: dict[str, str] = {}
    for file in sorted((resources.files(__package__) / "sql").iterdir(), key=lambda file: file.name):
        for part in file.read_text(encoding="utf-8").split(_MARK)[1:]:
            name, _, text = part.partition("\n")
            if name in found:
                msg = f"two statements are named {name}"
                raise AssertionError(msg)
            found[name] = text.strip().removesuffix(";")
    return found
