"""
Trees of /proc and /sys, each written down in one file of ``tests/data/trees``, after what kernels show.

A line is ``path = text`` with Python's escapes, ``path : bytes`` in hexadecimal,
``path -> target`` for a link, or a comment after ``#``.
"""

from pathlib import Path

TREES = Path(__file__).parents[2] / "data" / "trees"


def unfold(name: str, folder: Path) -> None:
    """Write the tree *name* into *folder*."""
    for line in (TREES / f"{name}.txt").read_text().splitlines():
        if line.startswith("#"):
            continue
        path, kind, content = line.split(" ", 2) if line.count(" ") > 1 else (*line.split(" "), "")
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if kind == "->":
            file.symlink_to(content)
        elif kind == ":":
            file.write_bytes(bytes.fromhex(content))
        else:
            assert kind == "="
            file.write_bytes(content.encode("latin-1").decode("unicode_escape").encode())
