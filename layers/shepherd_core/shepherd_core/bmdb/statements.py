"""
The SQL of the BMDB, by name.

Each statement stands in a ``*.sql`` file beside the module that uses it: a line
``-- name: claim``, comment lines that say why, one statement. Parameters are
written ``:like_this``. Names are unique over all files; ``Connection.run`` takes
the name. What several statements share, such as the check of the session, is a
fragment in ``fragments.sql``; a statement names it ``{like_this}``.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent
_MARK = "-- name: "
_FRAGMENT_MARK = "-- fragment: "

CHANGED = re.compile(
    r"\bINSERT\s+INTO\s+(\w+)|(?<!FOR )(?<!KEY )(?<!DO )\bUPDATE\s+(?!OF\b)(\w+)|\bDELETE\s+FROM\s+(\w+)", re.IGNORECASE
)
"""In a statement without comments: the tables that it changes."""


@cache
def statements() -> dict[str, str]:
    """Return every statement by its name, comments included. The files are read once per process."""
    found: dict[str, str] = {}
    for file in sorted([*_FOLDER.glob("*.sql"), *_FOLDER.glob("*/*.sql")]):
        for part in file.read_text(encoding="utf-8").split(_MARK)[1:]:
            name, _, text = part.partition("\n")
            if name in found:
                raise AssertionError(f"two statements are named {name}")
            found[name] = _filled(text.strip().removesuffix(";"), fragments())
    return found


@cache
def changes(name: str) -> bool:
    """Return whether the statement *name* changes anything."""
    return CHANGED.search(re.sub(r"--.*", "", statements()[name])) is not None


@cache
def fragments() -> dict[str, str]:
    """Return the text of every fragment by its name, without its comment."""
    found: dict[str, str] = {}
    for part in (_FOLDER / "fragments.sql").read_text(encoding="utf-8").split(_FRAGMENT_MARK)[1:]:
        name, _, text = part.partition("\n")
        lines = [line for line in text.splitlines() if not line.startswith("--")]
        found[name] = _filled("\n".join(lines).strip(), found)
    return found


def _filled(text: str, known: dict[str, str]) -> str:
    """Return *text* with the fragments that it names."""
    return re.sub(r"\{(\w+)\}", lambda match: known[match[1]], text)
