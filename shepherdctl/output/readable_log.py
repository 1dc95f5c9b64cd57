"""Log lines of functions in human-readable form."""

import io
import json
from collections.abc import Mapping
from typing import Any

from shepherd_core.telemetry import COUNTS

from shepherdctl.output.printing import note, one_line

_TECHNICAL = frozenset({"level", "location", "message", "timestamp", "service", "code", "exception", "exception_name"})


def record_of(line: str) -> dict[str, Any] | None:
    """Return the record in a JSON log line; None: it is something else."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and "message" in record else None


def described(record: Mapping[str, Any], hidden: frozenset[str] = frozenset()) -> str:
    """Return the level, message, facts and error of a log line on one line, without the *hidden* facts."""
    facts = ", ".join(f"{name} {value}" for name, value in record.items() if name not in _TECHNICAL | hidden)
    level = "" if record.get("level") == "INFO" else f"{str(record.get('level')).lower()}: "
    error = str(record.get("exception") or "").strip().rpartition("\n")[2]
    return one_line(f"{level}{record['message']}" + (f" ({facts})" if facts else "") + (f": {error}" if error else ""))


class ReadableLog(io.TextIOBase):
    """A stream that prints the JSON log lines written to it as messages; metrics are left out."""

    def __init__(self) -> None:
        """Start with an empty line."""
        super().__init__()
        self._rest = ""

    def write(self, text: str) -> int:
        """Print the lines that *text* completes."""
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            record = record_of(line)
            if record is None:
                note(line)
            elif record["message"] != COUNTS:
                note(described(record))
        return len(text)
