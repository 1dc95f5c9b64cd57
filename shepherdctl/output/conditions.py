"""The conditions of a fleet, as people and as programs read them."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from rich.text import Text

from shepherdctl.descriptions.condition import Condition, Severity
from shepherdctl.descriptions.conditions import few
from shepherdctl.output.formats import relative
from shepherdctl.output.json_fields import in_words
from shepherdctl.output.printing import Column, counted, note, table

_EACH = 5
"""Conditions of the same name that are shown."""


def print_conditions(found: Sequence[Condition], now: datetime) -> None:
    """Print a line for each condition, and what to do about it; of many with the same name, the first."""
    shown, more = few(found, _EACH)
    table(
        [Column("CONDITION"), Column("SINCE"), Column("WHAT IS WRONG", prose=True)],
        [
            (
                Text(each.name, "red" if each.name.severity is Severity.URGENT else ""),
                each.since and relative(each.since, now),
                each.text,
            )
            for each in shown
        ],
    )
    for name, left in more.items():
        note(f"and {left} more of {name}: -o json has all")
    for name, cure in dict.fromkeys((each.name, each.cure) for each in shown):
        note(f"{name}: {cure} (docs/conditions#{name})")


def note_pauses(number: int) -> None:
    """Print how many pauses keep loops from machines, if there are any."""
    if number:
        note(f"{counted(number, 'pause')} in force: see shepherdctl pauses")


def described(found: Sequence[Condition]) -> list[dict[str, Any]]:
    """Return the conditions for a JSON document."""
    return [{**in_words(each), "severity": each.name.severity} for each in found]
