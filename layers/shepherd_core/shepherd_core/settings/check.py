"""
The rules between settings, also between those of different functions: pure.

Each says what goes wrong if it is broken. A setting that is missing or faulty
breaks no rule: that is a fault of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shepherd_core.settings.base import PREFIX
from shepherd_core.settings.deployment import CapacitySettings
from shepherd_core.settings.functions import FUNCTIONS
from shepherd_core.settings.keys import place
from shepherd_core.settings.providers import PROVIDERS
from shepherd_core.settings.rules import RULES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shepherd_core.settings.rules import SettingsRule

    All = Mapping[str, Mapping[str, Any]]
    """
    The settings of each function by its name, with those of ``bmdb`` and of the ``provider``.

    Those of a loop also have ``loop_minutes`` (0: off), and those of the ``deployment`` its own. Three values are not
    settings: ``capabilities`` of the ``provider``, what it can do with at least some machines; of the ``deployment``,
    ``agent_api_connections`` and ``enabled``, the loops that can work with these capabilities. A loop that cannot has
    no settings here.
    """


def check(settings: All) -> list[str]:
    """Return a line for each rule that *settings* break: the settings, their values, what goes wrong, what to do."""
    return [fault for rule in RULES for fault in _faults(rule, settings)]


def _faults(rule: SettingsRule, settings: All) -> Iterator[str]:
    parts = [key.partition(".")[::2] for key in (*rule.keys, *rule.facts)]
    if not all(name in settings.get(function, {}) for function, name in parts):
        return
    values = [settings[function][name] for function, name in parts]
    if text := rule.broken(*values):
        settable = list(zip(parts, values, strict=True))[: len(rule.keys)]
        named = [f"{_name(*part)} is {_plain(value)}" for part, value in settable]
        yield f"{' and '.join(part for part in (', '.join(named[:-1]), named[-1]) if part)}: {text}"


def _name(function: str, name: str) -> str:
    """Return how an operator knows a setting: by its key in the document or, without one, by its variable."""
    if name == "loop_minutes" and function in FUNCTIONS:
        return f"minutes between two runs of the {function} ({PREFIX}LOOP_MINUTES)"
    for settings_type in (FUNCTIONS.get(function), CapacitySettings, *PROVIDERS.values()):
        if settings_type is not None and name in settings_type.model_fields and (key := place(settings_type, name)):
            return key
    return PREFIX + name.upper()


def _plain(value: object) -> str:
    match value:
        case None:
            return "unset"
        case float():
            return f"{value:g}"
        case dict():
            return ",".join(map(str, value.values()))
        case _:
            return str(value)
