"""The files in which the kernel describes the machine."""

from __future__ import annotations

from pathlib import Path

_LONGEST_FILE = 1 << 20
_LONGEST_TEXT = 200
_MOST_WARNINGS = 100
_LARGEST = (1 << 63) - 1
# Placeholders that manufacturers leave in the fields of the firmware.
_PLACEHOLDERS = {
    "", "0123456789", "123456789", "default string", "n/a", "none", "not available", "not specified", "o.e.m.",
    "system manufacturer", "system product name", "system serial number", "to be filled by o.e.m.", "unknown",
}  # fmt: skip


class Kernel:
    """The folders /proc and /sys, and the warnings about what could not be read there."""

    def __init__(self, proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> None:
        self.proc = proc
        self.sys = sys
        self.warnings: list[str] = []

    def warn(self, warning: str) -> None:
        """Record what could not be found out, and why; at most a hundred warnings."""
        if len(self.warnings) < _MOST_WARNINGS:
            self.warnings.append(warning)

    def content(self, path: Path) -> bytes | None:
        """Return the first megabyte of the file *path*; None, with a warning, if it cannot be read."""
        try:
            with path.open("rb") as file:
                return file.read(_LONGEST_FILE)
        except OSError as error:
            self.warn(f"{path}: {error.strerror}")
            return None

    def text(self, path: Path) -> str:
        """Return the text in *path*, truncated if long; empty, with a warning, if it cannot be read."""
        return clean(self.content(path) or b"")

    def optional(self, path: Path) -> str:
        """Return the text in *path*; empty, without a warning, if it cannot be read or is a placeholder."""
        try:
            with path.open("rb") as file:
                return meaningful(clean(file.read(_LONGEST_FILE)))
        except OSError:
            return ""

    def number(self, path: Path, largest: int = _LARGEST) -> int:
        """Return the number in *path*; 0, with a warning, if it has no number from 0 to *largest*."""
        content = self.content(path)
        if content is None:
            return 0
        number = natural(clean(content), largest)
        if number is None:
            self.warn(f"{path}: {clean(content)!r} is not a number from 0 to {largest}")
        return number or 0

    def entries(self, path: Path) -> list[Path]:
        """Return the entries of the folder *path*, sorted by name; none, with a warning, if it cannot be read."""
        try:
            return sorted(path.iterdir())
        except OSError as error:
            self.warn(f"{path}: {error.strerror}")
            return []


def clean(content: bytes) -> str:
    """Return the printable part of *content*, truncated if long."""
    text = content.decode(errors="replace")
    return "".join(each if each.isprintable() else " " for each in text).strip()[:_LONGEST_TEXT].strip()


def meaningful(text: str) -> str:
    """Return *text*, or an empty text if it is a placeholder."""
    return "" if text.lower() in _PLACEHOLDERS else text


def natural(text: str, largest: int = _LARGEST) -> int | None:
    """Return *text* as a number from 0 to *largest*; None if it is not one."""
    if not (text.isascii() and text.isdigit() and len(text) <= 20):  # noqa: PLR2004 - no int64 is longer
        return None
    number = int(text)
    return number if number <= largest else None
