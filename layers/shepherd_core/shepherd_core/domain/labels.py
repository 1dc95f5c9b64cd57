"""Labels: names with values that people give to machines, at their provider or here, to select them by."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from shepherd_core.domain.machine import LONGEST_TEXT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MOST = 32
"""Labels of a machine from one source: its provider, or operators."""
_KEY = re.compile(r"(?!shepherd(?:-|$))[A-Za-z0-9](?:[A-Za-z0-9._:/-]{0,61}[A-Za-z0-9])?")
"""Tags of Shepherd's own begin with ``shepherd-``, and a hyphen at the end of a key removes its label."""
WANTED = (
    "KEY or KEY=VALUE: a key of at most 63 letters, digits and . _ : / -, which begins and ends with a letter or digit "
    f"and not with shepherd-, and a value of at most {LONGEST_TEXT} printable characters"
)


def is_label(key: object, value: object) -> bool:
    """Return whether these may be the key and the value of a label."""
    if not (isinstance(key, str) and isinstance(value, str)):
        return False
    return bool(_KEY.fullmatch(key)) and len(value) <= LONGEST_TEXT and value.isprintable() and value == value.strip()


def split(text: str) -> tuple[str, str]:
    """Return key and value of *text*, KEY=VALUE or KEY alone, which need not be a label."""
    key, _, value = text.partition("=")
    return key, value


def read(text: str) -> tuple[str, str]:
    """
    Return key and value of the label *text*; KEY alone has an empty value.

    Raises:
        ValueError: it is not a label; the message says what is wanted.
    """
    if not is_label(*split(text)):
        message = f"{text!r:.80} is not a label: it must be {WANTED}"
        raise ValueError(message)
    return split(text)


def of_tags(tags: Iterable[tuple[object, object]]) -> dict[str, str]:
    """
    Return the labels among a provider's tags, keys and values; those beyond the first 32 by key are left out.

    So is what is not a label: to refuse it would block the machine.
    """
    found = {str(key): str(value) for key, value in tags if is_label(key, value)}
    return {key: found[key] for key in sorted(found)[:MOST]}


def written(labels: Mapping[str, str]) -> list[str]:
    """Return the labels as texts that ``read`` takes, by key."""
    return [f"{key}={labels[key]}" if labels[key] else key for key in sorted(labels)]
