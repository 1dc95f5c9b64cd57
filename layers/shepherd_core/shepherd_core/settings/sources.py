"""
Reads the values of settings from their sources.

A setting is read from the environment variable ``SHEPHERD_`` + its name in
capitals, else from the settings document, else from ``SHEPHERD_DEFAULT_`` + its
name, by which a deployment gives a default of its own. Without all of them it
has the default of its type.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from shepherd_core.domain.errors import ConfigError
from shepherd_core.domain.events import shown
from shepherd_core.settings.base import PREFIX, Settings
from shepherd_core.settings.keys import place

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
    """Return the values of *settings_type* that are not in the environment: the document's and the deployment's."""
    values: dict[str, Any] = dict(variables(DEFAULT_PREFIX))
    if document is not None:
        values |= document.values(settings_type)
    environment = variables(PREFIX)
    return {name: values[name] for name in settings_type.model_fields if name in values and name not in environment}


def variables(prefix: str) -> dict[str, str]:
    """Return the environment variables with *prefix* that are not empty, by the name of the setting."""
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
    from_document = given(settings_type, document).keys() & (document.values(settings_type).keys() if document else ())
    lines = []
    for item in error.errors(include_url=False):
        name = str(item["loc"][0])
        variable, key = PREFIX + name.upper(), place(settings_type, name)
        wrong = item["msg"].removeprefix("Value error, ")
        if item["type"] == "missing":
            text = f"{variable} is not set" + (f", nor is {key} in the document" if document and key else "")
        elif document and name in from_document:
            text = f"{document.path(settings_type, name)} is {shown(item['input'])}: {wrong}"
        elif document and key and item["input"] is None:
            text = f"{key} is unset: {wrong}"
        else:
            text = f"{variable} is {item['input']!r}: {wrong}"
        lines.append((name, f"{text}. {settings_type.model_fields[name].description}"))
    return lines
