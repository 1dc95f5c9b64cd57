"""The keys of the settings document: each setting has one place, in the table of the class that declares it."""

from __future__ import annotations

from functools import cache
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

from shepherd_core.settings.base import Settings
from shepherd_core.settings.deployment import CapacitySettings
from shepherd_core.settings.functions.specs import FUNCTIONS
from shepherd_core.settings.providers import BUILT_IN, find, known

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic.fields import FieldInfo

TOP = ""


@cache
def tables(*providers: str) -> Mapping[str, Mapping[str, FieldInfo]]:
    """
    Return the settings of each table by key, with the tables of *providers*; the name of the top is empty.

    Raises:
        ConfigError: as ``providers.find``.
    """
    found: dict[str, dict[str, FieldInfo]] = {TOP: {}}
    types: list[type[Settings]] = [CapacitySettings, *FUNCTIONS.values(), *(find(each).settings for each in providers)]
    for settings_type in types:
        for name, field in settings_type.model_fields.items():
            table = table_of(settings_type, name)
            if table is not None:
                found.setdefault(table, {}).setdefault(name, field)
    return found


def tables_with(table: str) -> Mapping[str, Mapping[str, FieldInfo]]:
    """Return the settings of each table of Shepherd and, if *table* is a provider's of another package, of that one."""
    provider = table.removeprefix("provider.")
    return tables(*BUILT_IN, *({provider} - {*BUILT_IN} if known(provider) else ()))


def table_of(settings_type: type[Settings], name: str) -> str | None:
    """Return the table of a setting: that of the class which declares it; None: the document cannot have it."""
    declared = (
        each for each in reversed(settings_type.__mro__) if issubclass(each, Settings) and name in each.model_fields
    )
    return next(declared).table


def readers(name: str) -> tuple[str, ...]:
    """Return the functions that read the setting *name*."""
    return tuple(function for function, settings_type in FUNCTIONS.items() if name in settings_type.model_fields)


def place(settings_type: type[Settings], name: str) -> str | None:
    """Return the key of the setting, with its table; None: it cannot stand in the document."""
    table = table_of(settings_type, name)
    return None if table is None else path(table, name)


def path(table: str, name: str) -> str:
    """Return how messages name the key *name* of *table*."""
    return f"{table}.{name}" if table else name


def kind(annotation: Any) -> type:
    """Return the type of a setting's values: bool, int, float or str."""
    if get_origin(annotation) is Literal:
        return str
    if get_origin(annotation) is Annotated:
        return kind(get_args(annotation)[0])
    for part in get_args(annotation):
        if part is not NoneType:
            return kind(part)
    found: type = annotation
    return found


def bounds(setting: FieldInfo) -> str:
    """Return the values that a setting may have, if they are in its type: a range or a choice; else an empty text."""
    annotation: Any = setting.annotation
    metadata = [*setting.metadata]
    for part in (annotation, *get_args(annotation)):
        if get_origin(part) is Literal:
            return ", ".join(map(str, get_args(part)))
        if get_origin(part) is Annotated:  # of an optional setting
            metadata += [each for item in part.__metadata__ for each in getattr(item, "metadata", [item])]
    found = {name: getattr(each, name) for each in metadata for name in ("gt", "ge", "le") if hasattr(each, name)}
    if "ge" in found:
        found.pop("gt", None)
    signs = {"gt": ">", "ge": "≥", "le": "≤"}
    return ", ".join(f"{sign} {found[name]}" for name, sign in signs.items() if name in found)
