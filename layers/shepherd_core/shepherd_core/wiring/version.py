"""
The version of the code: a hash of its source.

The build of the layer runs this file and keeps what it prints, so that a function need not read its source.
"""

from __future__ import annotations

import hashlib
import sys
from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]
_BUILT = _PACKAGE / "VERSION"
_LENGTH = 12


@cache
def code_version() -> str:
    """Return the version of this package: what the build of the layer wrote, else computed."""
    return _BUILT.read_text(encoding="ascii").strip() if _BUILT.exists() else source_hash()


def source_hash() -> str:
    """Return the beginning of the SHA-256 of the names and contents of the package's Python and SQL files."""
    digest = hashlib.sha256()
    for file in sorted(file for kind in ("*.py", "*.sql") for file in _PACKAGE.rglob(kind)):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(_PACKAGE)} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:_LENGTH]


if __name__ == "__main__":
    sys.stdout.write(f"{source_hash()}\n")
