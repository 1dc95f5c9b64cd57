"""
The keys of the settings document: in which table each setting may stand.

A key of one function stands in the table of that function. A key that several
functions read may stand at the top, for all of them, or in the table of one. The
settings of the BMDB are in ``bmdb``, those of a provider in ``provider.NAME``.
"""

from __future__ import annotations

from functools import cache
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

from shepherd_core.settings.deployment import CapacitySettings
from shepherd_core.settings.functions import FUNCTIONS
from shepherd_core.settings.functions.bmdb import BmdbSettings
from shepherd_core.settings.functions.shared import ProviderChoice, SshSettings
from shepherd_core.settings.providers import PROVIDERS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic.fields import FieldInfo

    from shepherd_core.settings.base import Settings

TOP = ""
BMDB = BmdbSettings.table
_ONE_FOR_ALL = {*ProviderChoice.model_fields, *SshSettings.model_fields, *BmdbSettings.model_fields}
"""Settings that no function may have a value of its own for."""


@cache
def tables() -> Mapping[str, Mapping[str, FieldInfo]]:
    """Return the settings of each table by key; the name of the top is empty."""
    shared: dict[str, FieldInfo] = {}
    own: dict[str, dict[str, FieldInfo]] = {name: {} for name in FUNCTIONS}
    for function, settings_type in FUNCTIONS.items():
        for name, field in settings_type.model_fields.items():
            if name not in _ONE_FOR_ALL:
                own[function][name] = field
            if len(readers(name)) > 1 and name not in {*BmdbSettings.model_fields, *ProviderChoice.model_fields}:
                shared.setdefault(name, field)
    return {
        TOP: shared,
        BMDB: {**BmdbSettings.model_fields, **CapacitySettings.model_fields},
        **own,
        **{settings_type.table: dict(settings_type.model_fields) for settings_type in PROVIDERS.values()},
    }


def readers(name: str) -> tuple[str, ...]:
    """Return the functions that read the setting *name*."""
    return tuple(function for function, settings_type in FUNCTIONS.items() if name in settings_type.model_fields)


def places(settings_type: type[Settings], name: str) -> list[str]:
    """Return the tables in which the setting may stand, the one that wins first."""
    return [table for table in dict.fromkeys((settings_type.table, BMDB, TOP)) if name in tables().get(table, {})]


def place(settings_type: type[Settings], name: str) -> str | None:
    """Return the key of the setting, with its table; None: it cannot stand in the document."""
    found = places(settings_type, name)
    return path(found[0], name) if found else None


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
