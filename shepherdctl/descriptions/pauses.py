"""What a pause covers, in words: pure."""

from collections.abc import Mapping
from typing import Any

from shepherdctl.output.formats import loop_name


def scope_in_words(pause: Mapping[str, Any]) -> str:
    """Return the machines and loops that a pause covers, in words."""
    parts = (
        pause["machine_id"] and f"machine {pause['machine_id']}",
        pause["process"] and f"loop {loop_name(pause['process'])}",
        pause["provider"] and f"provider {pause['provider']}",
    )
    return ", ".join(filter(None, parts)) or "everything"
