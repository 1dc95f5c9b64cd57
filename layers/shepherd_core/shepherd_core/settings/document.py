"""
The settings document: TOML with a version, read as a whole or not at all. No input or output.

A document may contain anything. All of its faults are reported at once, each with
key, value and what was wanted, and none can make the reader run for long.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from datetime import date, time
from typing import TYPE_CHECKING, Any

from shepherd_core.domain.errors import ConfigError
from shepherd_core.domain.events import shown
from shepherd_core.settings.functions import FUNCTIONS
from shepherd_core.settings.functions.shared import ProviderChoice
from shepherd_core.settings.keys import TOP, kind, path, places, tables
from shepherd_core.settings.providers import PROVIDERS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shepherd_core.settings.base import Settings

VERSION = 1
LIMIT_BYTES = 65_536
MAX_PARTS = 8
"""Names in one key, such as the two of ``provider.static``. The time of the parser grows with their square."""
MAX_FAULTS = 50
"""At most so many are listed; the others are only counted."""

PLACEHOLDER = "FIXME"
"""Stands in a new document for what its operator must fill in; refused in every value."""

_HASH_LENGTH = 12
_PROVIDER = "provider"
_TEXT = re.compile(  # a string of TOML, or a comment; one that is not closed ends with its line, or with the document
    r'''"""(?:\\.|[^\\])*?(?:"{3,5}|\\?\Z)|'{3}.*?(?:'{3,5}|\Z)|"(?:\\.|[^"\\\n])*"?|'[^'\n]*'?|\#[^\n]*''', re.DOTALL
)
_KINDS = {str: "text in quotes", int: "a whole number", float: "a number", bool: "true or false"}


@dataclass(frozen=True, slots=True)
class Document:
    """A settings document whose keys and types are right."""

    hash: str
    """As ``digest``."""
    tables: Mapping[str, Mapping[str, Any]]
    faulty: frozenset[tuple[str, str]] = field(default=frozenset())
    """Table and key of values that are wrong, and were left out of ``tables``."""

    @property
    def provider(self) -> str | None:
        """Return the provider, if the document has the settings of one alone."""
        found = [name for name, settings_type in PROVIDERS.items() if settings_type.table in self.tables]
        return found[0] if len(found) == 1 else None

    def values(self, settings_type: type[Settings]) -> dict[str, Any]:
        """Return the values that the document has for *settings_type*."""
        found = {
            name: self.tables[table][name]
            for name in settings_type.model_fields
            if (table := self._table(settings_type, name)) is not None
        }
        if self.provider is not None and ProviderChoice.model_fields.keys() & settings_type.model_fields.keys():
            found[_PROVIDER] = self.provider
        return found

    def path(self, settings_type: type[Settings], name: str) -> str:
        """Return where the document has a value that ``values`` returned."""
        return path(self._table(settings_type, name) or TOP, name)

    def is_faulty(self, settings_type: type[Settings], name: str) -> bool:
        """Return whether the document has a value that is wrong for the setting."""
        return any((table, name) in self.faulty for table in places(settings_type, name))

    def _table(self, settings_type: type[Settings], name: str) -> str | None:
        return next((table for table in places(settings_type, name) if name in self.tables.get(table, {})), None)


def parse(content: bytes) -> tuple[Document, list[str]]:
    """
    Return the document, without what is wrong in it, and every fault.

    Raises:
        ConfigError: *content* is no TOML, too large, or of another version: nothing can be said of its keys.
    """
    parsed = _toml(content)
    if "version" not in parsed:
        raise ConfigError([f"version is missing: write version = {VERSION} at the top of the document"])
    version = parsed.pop("version")
    if version != VERSION or isinstance(version, bool | float):
        raise ConfigError([f"version is {_shown(version)}: this code reads version {VERSION} of the document"])
    found: dict[str, dict[str, Any]] = {}
    faulty: set[tuple[str, str]] = set()
    faults: list[str] = []
    for table, values in _by_table(parsed, faults):
        found[table] = {}
        for name, value in values.items():
            fault = _fault(table, name, value)
            if fault is None:
                found[table][name] = value
            else:
                faulty.add((table, name))
                faults.append(fault)
    return Document(digest(content), found, frozenset(faulty)), faults


def digest(content: bytes) -> str:
    """Return the name of a document in logs: the beginning of the SHA-256 of its text."""
    return hashlib.sha256(content).hexdigest()[:_HASH_LENGTH]


def unknown(table: str, name: str) -> str:
    """Return that *table*, which is one of ours, has no key *name*, and which key was probably meant."""
    return f"{path(table, shown(name)[1:-1])} is unknown{_hint(table, name)}"


def bounded(faults: list[str]) -> list[str]:
    """Return *faults*; if there are more than ``MAX_FAULTS``, the first of them and the number of the others."""
    if len(faults) <= MAX_FAULTS:
        return faults
    return [*faults[:MAX_FAULTS], f"and {len(faults) - MAX_FAULTS} more"]


def _toml(content: bytes) -> dict[str, Any]:
    import tomllib  # noqa: PLC0415 - only where there is a document

    if len(content) > LIMIT_BYTES:
        raise ConfigError([f"the document has {len(content)} bytes: it may have at most {LIMIT_BYTES}"])
    try:
        text = content.decode("utf-8-sig").replace("\r\n", "\n")
        _refuse_long_keys(text)
        return tomllib.loads(text)
    except RecursionError as error:
        raise ConfigError(["the document is nested too deep: a table of settings holds plain values only"]) from error
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            [f"the document is not UTF-8: line {line} has the byte 0x{content[error.start]:02x}"]
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([f"the document is not TOML: {shown_text(str(error))}"]) from error
    except ValueError as error:
        raise ConfigError(["the document has a number with thousands of digits, which no setting accepts"]) from error


def _refuse_long_keys(text: str) -> None:
    bare = _TEXT.sub(lambda found: "_" + "\n" * found[0].count("\n"), text)
    wanted = f"a key may have at most {MAX_PARTS} names with dots between them"
    for number, line in enumerate(bare.split("\n"), start=1):
        parts = 1 + max(each.count(".") for each in re.split(r"[=,\[\]{}]", line))
        if parts > MAX_PARTS:
            raise ConfigError([f"line {number} of the document has a key of {parts} names: {wanted}"])


def shown_text(text: str) -> str:
    """Return *text* on one line, shortened if it is long."""
    line = " ".join(text.split())
    return line if len(line) <= 200 else f"{line[:199]}…"  # noqa: PLR2004 - enough for a message


def _by_table(parsed: Mapping[str, Any], faults: list[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the tables of a document, its top first, and add what is no table of ours to *faults*."""
    named = {name: value for name, value in parsed.items() if isinstance(value, dict)}
    yield TOP, {name: value for name, value in parsed.items() if name not in named}
    providers = named.pop(_PROVIDER, {})
    for name, value in providers.items():
        if name not in PROVIDERS:
            faults.append(f"[provider.{shown(name)[1:-1]}] is unknown: the providers are {', '.join(PROVIDERS)}")
        elif not isinstance(value, dict):
            faults.append(f"provider.{name} is {_shown(value)}: it must be a table, [provider.{name}]")
        else:
            yield PROVIDERS[name].table, value
    for name, value in named.items():
        if name in tables():
            yield name, value
        elif name in tables()[TOP]:
            faults.append(f"{name} is a table: it must be {_KINDS[kind(tables()[TOP][name].annotation)]}")
        else:
            faults.append(
                f"[{shown(name)[1:-1]}] is unknown: the tables are bmdb, {', '.join(FUNCTIONS)}, provider.NAME"
            )


def _fault(table: str, name: str, value: Any) -> str | None:
    """Return what is wrong with a key or the type of its value. The value of an unknown key may be a secret."""
    setting = tables()[table].get(name)
    if setting is None:
        return unknown(table, name)
    if isinstance(value, str) and PLACEHOLDER in value:
        return f"{path(table, name)} is {shown(value)}: fill it in. {setting.description}"
    wanted = kind(setting.annotation)
    accepted = (int, float) if wanted is float else (wanted,)
    if type(value) in accepted:
        return None
    return f"{path(table, name)} is {_shown(value)}: it must be {_KINDS[wanted]}. {setting.description}"


def _shown(value: object) -> str:
    """Return a value as the document has it, shortened if it is long."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, date | time) else shown(value)


def _hint(table: str, name: str) -> str:
    """Return where the key belongs, or the one that was probably meant."""
    if table == TOP and name == _PROVIDER:
        return ": name the provider by its table, such as [provider.static], or in SHEPHERD_PROVIDER"
    if table == TOP and name in tables():
        return f": it must be a table, [{name}]"
    elsewhere = [other for other, keys in tables().items() if name in keys]
    if elsewhere:
        return ": it belongs " + " or ".join(f"in [{other}]" if other else "at the top" for other in elsewhere)
    from difflib import get_close_matches  # noqa: PLC0415 - only for a mistake

    names = {name: path(other, name) for other, keys in tables().items() for name in keys}
    names |= {name: name for name in tables()[table]}
    longer = [each for each in names if each.startswith(f"{name}_")]
    similar = longer or get_close_matches(name[:60], tables()[table], n=1) or get_close_matches(name[:60], names, n=1)
    return f": did you mean {names[similar[0]]}?" if similar else ": shepherdctl settings init prints all keys"
