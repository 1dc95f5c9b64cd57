"""A settings document to fill in: every key with its meaning and its default."""

import json
import re
from collections.abc import Collection, Mapping
from typing import Any, Literal, get_origin

from pydantic.fields import FieldInfo
from shepherd_core.settings.base import PLACEHOLDER, PREFIX
from shepherd_core.settings.document import DEPLOYMENT, VERSION
from shepherd_core.settings.effective import FIXED, GIVEN
from shepherd_core.settings.functions.specs import FUNCTIONS
from shepherd_core.settings.keys import TOP, bounds, path, tables
from shepherd_core.settings.providers import find
from shepherd_core.settings.rules import DOCUMENTS

_NAMES = {"agent_api": "agent API"}
_WIDTH = 100

_ABOUT = {
    TOP: "Read by several functions.",
    DEPLOYMENT: "The deployment: read by shepherdctl deploy alone. Leave it out if you deploy with SAM.",
    "bmdb": "The database, for all functions.",
}


def function_name(function: str) -> str:
    """Return the name of *function* in prose."""
    return _NAMES.get(function, function.capitalize())


def document(provider: str, answers: Mapping[str, FieldInfo]) -> str:
    """
    Return a settings document for *provider*: every key with its meaning, commented out unless it is required.

    *answers* are the keys of the table with the answers of a deployment.
    """
    parts = [
        f"# Settings of Shepherd with the provider {provider}.",
        "#",
        f"# A line that is commented out shows the default. Environment variables ({PREFIX} and the key in",
        "# capitals) win over this document. Write no secrets here, only their names.",
        "#",
        "#   shepherdctl settings check shepherd.toml",
        "#   shepherdctl deploy shepherd.toml",
        "",
        f"version = {VERSION}",
    ]
    spec = find(provider)
    every = tables(provider)
    by_table = {spec.settings.table: spec.given, DEPLOYMENT: ()}
    for table, keys in {TOP: every[TOP], DEPLOYMENT: answers, **every}.items():
        given = by_table.get(table, GIVEN)
        parts += ["", f"# {_ABOUT.get(table) or _about(table)}"]
        parts += [f"[{table}]"] if table else []
        for name, field in keys.items():
            told = _explained(name, field, given)
            parts += ["", *(f"# {line}" for line in _wrapped(told)), _line(table, name, field, given)]
    return "\n".join(parts) + "\n"


def _about(table: str) -> str:
    if table in FUNCTIONS:
        return f"The {function_name(table)}."
    return str(find(table.removeprefix("provider.")).settings.__doc__)


def _explained(name: str, field: FieldInfo, given: Collection[str]) -> str:
    parts = [str(field.description)]
    if found := bounds(field):
        parts.append(f"One of {found}." if get_origin(field.annotation) is Literal else f"Range: {found}.")
    if field.is_required() and name not in given:
        parts.append("Required.")
    elif name in given or name in FIXED:
        parts.append("The deployment gives it.")
    return " ".join(parts)


def _line(table: str, name: str, field: FieldInfo, given: Collection[str]) -> str:
    if name in given:
        return f"# {name} = …"
    if field.is_required():
        return f"{name} = {as_toml(_named_document(path(table, name), PLACEHOLDER) or PLACEHOLDER)}"
    if field.default is None:
        example = _named_document(path(table, name), "BUCKET")
        return f"# {name} = {as_toml(example) if example else '…'}"
    return f"# {name} = {as_toml(field.default)}"


def _named_document(key: str, bucket: str) -> str | None:
    """Return the usual address of the document that the setting names; None: it names no document."""
    return f"s3://{bucket}/documents/{DOCUMENTS[key]}" if key in DOCUMENTS else None


def as_toml(value: Any) -> str:
    """Return a value in TOML, which is the same as in JSON."""
    return json.dumps(value, ensure_ascii=False)


def _wrapped(text: str) -> list[str]:
    lines = [""]
    for word in re.findall(r"[<>≤≥] \S+|\S+", text):
        if len(lines[-1]) + len(word) >= _WIDTH:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines
