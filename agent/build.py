"""
Build the agent: one executable file that needs only Python 3.9 or newer.

    python agent/build.py OUTPUT

writes it and prints its SHA-256, for the setting ``agent_sha256``. The build is
reproducible: the same sources give the same bytes, on any machine.
"""

from __future__ import annotations

import hashlib
import os
import sys
import zipfile
from io import BytesIO
from pathlib import Path

_PACKAGE = Path(__file__).parent / "shepherd_agent"
_START = b"import sys\nfrom shepherd_agent.__main__ import main\nsys.exit(main())\n"
_SHEBANG = b"#!/usr/bin/env python3\n"
_EPOCH = (1980, 1, 1, 0, 0, 0)


def build(output: Path) -> str:
    """Write the executable to *output*, atomically, and return its SHA-256."""
    archive = BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as zipped:  # compression differs between versions of zlib
        _add(zipped, "__main__.py", _START)
        for source in sorted(_PACKAGE.rglob("*.py")):
            _add(zipped, source.relative_to(_PACKAGE.parent).as_posix(), source.read_bytes())
    output.parent.mkdir(parents=True, exist_ok=True)
    unfinished = output.with_name(f".{output.name}.{os.getpid()}")
    content = _SHEBANG + archive.getvalue()
    unfinished.write_bytes(content)
    unfinished.chmod(0o755)
    unfinished.replace(output)
    return hashlib.sha256(content).hexdigest()


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.create_system = 3  # Unix, on whatever system it is built
    entry.external_attr = 0o644 << 16
    archive.writestr(entry, content)


def main() -> int:
    """Run the command line and return the exit status."""
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):  # noqa: PLR2004 - the program and OUTPUT
        print("usage: python agent/build.py OUTPUT", file=sys.stderr)
        return 2
    print(build(Path(sys.argv[1])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
