"""
The settings document: TOML with a version, read as a whole or not at all. No input or output.

A document may contain anything. All of its faults are reported at once, each with
key, value and what was wanted, and none can make the reader run for long.
"""

from __future__ import annotations

import hashlib
import tomllib
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from shepherd_core.domain.errors import ConfigError
from shepherd_core.domain.events import shown
from shepherd_core.settings.base import FILLED_IN, Settings
from shepherd_core.settings.functions.shared import ProviderChoice
from shepherd_core.settings.keys import TOP, path, table_of, tables, tables_with
from shepherd_core.settings.providers import known, names

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSION = 1
LIMIT_BYTES = 16_384
"""
More than half as long again as the longest new document. The time of the TOML parser grows with the square of the names
in one key.
"""
MAX_FAULTS = 50
"""At most so many are listed; the others are only counted."""

DEPLOYMENT = "deployment"
"""The table with the answers of a deployment, which may stand in its settings document."""

_HASH_LENGTH = 12
_PROVIDER = "provider"
_STRICT = ConfigDict(extra="forbid", strict=True)


@dataclass(frozen=True, slots=True)
class Document:
    """A settings document whose keys and values are right, each by itself."""

    hash: str
    """As ``digest``."""
    tables: Mapping[str, Mapping[str, Any]]
    """By table, as in ``keys.tables``."""
    faulty: frozenset[str] = field(default=frozenset())
    """Keys with their table whose values are wrong, and were left out of ``tables``."""
    deployment: object = None
    """What the document has as ``DEPLOYMENT``, unchecked: ``shepherdctl deploy`` reads it, and no function."""

    @property
    def provider(self) -> str | None:
        """Return the provider, if the document has the settings of one alone."""
        return self.providers[0] if len(self.providers) == 1 else None

    @property
    def providers(self) -> tuple[str, ...]:
        """Return the providers whose settings the document has."""
        return tuple(table.removeprefix("provider.") for table in self.tables if table.startswith("provider."))

    def values(self, settings_type: type[Settings]) -> dict[str, Any]:
        """Return the values that the document has for *settings_type*."""
        found = {
            name: values[name]
            for name in settings_type.model_fields
            if name in (values := self.tables.get(table_of(settings_type, name) or TOP, {}))
        }
        if self.provider is not None and ProviderChoice.model_fields.keys() & settings_type.model_fields.keys():
            found[_PROVIDER] = self.provider
        return found


@cache
def _model(*providers: str) -> type[BaseModel]:
    """Return the model of a document with the settings of *providers*: its tables are nested models."""
    known_tables = tables(*providers)

    def model(table: str, **nested: Any) -> type[BaseModel]:
        fields: Any = {
            name: (Annotated[setting.annotation, FILLED_IN], setting)
            for name, setting in known_tables.get(table, {}).items()
        }
        return create_model(table or "SettingsDocument", __config__=_STRICT, **fields, **nested)

    named: Any = {name: (model(f"{_PROVIDER}.{name}"), None) for name in providers}
    nested: Any = {table: (model(table), None) for table in known_tables if table and "." not in table}
    return model(TOP, **nested, provider=(model(_PROVIDER, **named), None))


def parse(content: bytes) -> tuple[Document, list[str]]:
    """
    Return the document, without what is wrong in it, and every fault.

    Raises:
        ConfigError: *content* is no TOML, too large, or of another version, or the package of its provider is broken:
            nothing can be said of its keys.
    """
    parsed = _toml(content)
    if "version" not in parsed:
        raise ConfigError([f"version is missing: write version = {VERSION} at the top of the document"])
    version = parsed.pop("version")
    if version != VERSION or isinstance(version, bool | float):
        raise ConfigError([f"version is {_shown(version)}: this code reads version {VERSION} of the document"])
    deployment = parsed.pop(DEPLOYMENT, None)
    wrong: dict[tuple[str, ...], str] = {}
    named = parsed.get(_PROVIDER)
    try:
        _model(*filter(known, named if isinstance(named, dict) else ())).model_validate(parsed)
    except ValidationError as error:
        for item in error.errors(include_url=False):
            if item["type"] != "missing":
                where = tuple(map(str, item["loc"]))
                wrong.setdefault(where, _fault(where, item))
    found: dict[str, dict[str, Any]] = {}
    _collect(TOP, parsed, wrong, found)
    return Document(digest(content), found, frozenset(map(".".join, wrong)), deployment), list(wrong.values())


def digest(content: bytes) -> str:
    """Return the name of a document in logs: the beginning of the SHA-256 of its text."""
    return hashlib.sha256(content).hexdigest()[:_HASH_LENGTH]


def unknown(table: str, name: str) -> str:
    """Return that *table* has no key *name*, and which key was probably meant."""
    from difflib import get_close_matches  # noqa: PLC0415 - only for a mistake

    found = tables_with(table)
    keys = {key: path(other, key) for other, each in found.items() for key in each}
    if table == TOP and name == _PROVIDER:
        hint = "name the provider by its table, such as [provider.static], or in SHEPHERD_PROVIDER"
    elif table == _PROVIDER:
        hint = f"the providers are {', '.join(names())}"
    elif name in keys:
        hint = f"it belongs in [{keys[name].rpartition('.')[0]}]" if "." in keys[name] else "it belongs at the top"
    elif similar := get_close_matches(name[:60], [*found.get(table, {}), *keys]):
        hint = f"did you mean {keys[similar[0]]}?"
    else:
        hint = "shepherdctl settings init prints all keys"
    return f"{path(table, shown(name)[1:-1])} is unknown: {hint}"


def bounded(faults: list[str]) -> list[str]:
    """Return *faults*; if there are more than ``MAX_FAULTS``, the first of them and the number of the others."""
    if len(faults) <= MAX_FAULTS:
        return faults
    return [*faults[:MAX_FAULTS], f"and {len(faults) - MAX_FAULTS} more"]


def _toml(content: bytes) -> dict[str, Any]:
    if len(content) > LIMIT_BYTES:
        raise ConfigError([f"the document has {len(content)} bytes: it may have at most {LIMIT_BYTES}"])
    try:
        return tomllib.loads(content.removeprefix(b"\xef\xbb\xbf").decode())
    except RecursionError as error:
        raise ConfigError(["the document is nested too deep: a table of settings holds plain values only"]) from error
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            [f"the document is not UTF-8: line {line} has the byte 0x{content[error.start]:02x}"]
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([f"the document is not TOML: {shown(str(error))[1:-1]}"]) from error
    except ValueError as error:
        raise ConfigError(["the document has a number with thousands of digits, which no setting accepts"]) from error


def _fault(where: tuple[str, ...], item: Any) -> str:
    """Return what is wrong with a key or its value. The value of an unknown key may be a secret."""
    table, name = ".".join(where[:-1]), where[-1]
    if item["type"] == "extra_forbidden":
        return unknown(table, name)
    key = path(table, name)
    if item["type"] == "model_type":
        return f"{key} is {_shown(item['input'])}: it must be a table, [{key}]"
    wrong = item["msg"].removeprefix("Value error, ")
    return f"{key} is {_shown(item['input'])}: {wrong}. {tables_with(table)[table][name].description}"


def _shown(value: object) -> str:
    """Return a value as the document has it, shortened if it is long."""
    return str(value).lower() if isinstance(value, bool) else shown(value)


def _collect(table: str, values: Mapping[str, Any], wrong: Any, found: dict[str, dict[str, Any]]) -> None:
    """Put what is right of *values*, the content of *table*, into *found*."""
    for name, value in values.items():
        key = path(table, name)
        if tuple(key.split(".")) in wrong:
            continue
        if isinstance(value, dict):
            found.setdefault(key, {})
            _collect(key, value, wrong, found)
        else:
            found.setdefault(table, {})[name] = value
