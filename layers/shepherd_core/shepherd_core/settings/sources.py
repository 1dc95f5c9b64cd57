"""
Reads the values of settings from their sources.

A setting is read from the environment variable ``SHEPHERD_`` + its name in
capitals (that of a provider: ``SHEPHERD_PROVIDER_``), else from the settings
document, else from ``SHEPHERD_DEFAULT_`` + its name, by which a deployment gives a
default of its own. Without all of them it has the default of its type.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from shepherd_core.domain.errors import ConfigError
from shepherd_core.domain.events import shown
from shepherd_core.settings.base import PREFIX, Settings, variable

if TYPE_CHECKING:
    from shepherd_core.settings.document import Document

DEFAULT_PREFIX = "SHEPHERD_DEFAULT_"

S = TypeVar("S", bound=Settings)


def load(*settings_types: type[S], document: Document | None = None) -> list[S]:
    """
    Return one object for each of *settings_types*, read from the environment of this process and from *document*.

    Raises:
        ConfigError: settings are missing or wrong; lists every fault of all types.
    """
    loaded: list[S] = []
    found: list[str] = []
    for settings_type in settings_types:
        try:
            loaded.append(settings_type(**given(settings_type, document)))
        except ValidationError as error:
            found += [fault for _, fault in faults(settings_type, error, document) if fault not in found]
    if found:
        raise ConfigError(found)
    return loaded


def given(settings_type: type[Settings], document: Document | None) -> dict[str, Any]:
    """Return the values of *settings_type*: of the environment, else of *document*, else the deployment's defaults."""
    from_document = {} if document is None else document.values(settings_type)
    return {**named(settings_type, DEFAULT_PREFIX), **from_document, **named(settings_type, PREFIX)}


def named(settings_type: type[Settings], prefix: str) -> dict[str, str]:
    """Return the values that variables with *prefix* have for *settings_type*, by the name of the setting."""
    found = variables(prefix)
    names = {name: variable(settings_type, name).removeprefix(PREFIX).lower() for name in settings_type.model_fields}
    return {name: found[own] for name, own in names.items() if own in found}


def variables(prefix: str) -> dict[str, str]:
    """Return the environment variables with *prefix* that are not empty, by the rest of their names in lower case."""
    return {
        name[len(prefix) :].lower(): value
        for name, value in os.environ.items()  # noqa: TID251 - the one place that reads the environment
        if value and name.upper().startswith(prefix)
    }


def library_path() -> dict[str, str]:
    """Return the environment variable by which a new process finds the libraries of this Python, as in Lambda."""
    name = "LD_LIBRARY_PATH"
    path = os.environ.get(name)  # noqa: TID251 - the one place that reads the environment
    return {name: path} if path else {}


def faults(settings_type: type[Settings], error: ValidationError, document: Document | None) -> list[tuple[str, str]]:
    """Return for each fault the setting, and a line: where it stands, its value, its description. None is a secret."""
    from shepherd_core.settings.keys import place  # noqa: PLC0415 - it imports the settings of every function

    from_document = {} if document is None else document.values(settings_type)
    environment = named(settings_type, PREFIX)
    lines = []
    for item in error.errors(include_url=False):
        name = str(item["loc"][0])
        own, key = variable(settings_type, name), place(settings_type, name)
        wrong = item["msg"].removeprefix("Value error, ")
        if item["type"] == "missing":
            text = f"{own} is not set" + (f", nor is {key} in the document" if document and key else "")
        elif key and document and name not in environment and (name in from_document or item["input"] is None):
            text = f"{key} is {'unset' if item['input'] is None else shown(item['input'])}: {wrong}"
        else:
            text = f"{own} is {item['input']!r}: {wrong}"
        lines.append((name, f"{text}. {settings_type.model_fields[name].description}"))
    return lines
