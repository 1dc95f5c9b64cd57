"""A settings document to fill in: every key with its meaning and its default."""

import json
import re
from typing import Any, Literal, get_origin

from pydantic.fields import FieldInfo
from shepherd_core.settings.base import PREFIX, Settings
from shepherd_core.settings.document import PLACEHOLDER, VERSION
from shepherd_core.settings.effective import FIXED, GIVEN
from shepherd_core.settings.functions import FUNCTIONS
from shepherd_core.settings.keys import BMDB, TOP, bounds, readers, tables
from shepherd_core.settings.providers import PROVIDERS
from shepherd_core.settings.rules import DOCUMENTS

_NAMES = {"agent_api": "agent API"}
_WIDTH = 100

_ABOUT = {
    TOP: "Read by several functions. A key in the table of a function applies to that function alone.",
    BMDB: "The database, for all functions.",
}


def function_name(function: str) -> str:
    """Return the name of *function* in prose."""
    return _NAMES.get(function, function.capitalize())


def document(provider: str) -> str:
    """Return a settings document for *provider*: every key with its meaning, commented out unless it is required."""
    parts = [
        f"# Settings of Shepherd with the provider {provider}.",
        "#",
        f"# A line that is commented out shows the default. Environment variables ({PREFIX} and the key in",
        "# capitals) win over this document. Write no secrets here, only their names.",
        "#",
        "#   shepherdctl settings check settings.toml",
        "#   aws s3 cp settings.toml s3://BUCKET/settings.toml",
        "",
        f"version = {VERSION}",
    ]
    for table, keys in tables().items():
        if table.startswith("provider.") and table != PROVIDERS[provider].table:
            continue
        # A key that several functions read is written at the top if its default is the same for all of them.
        own = {name: field for name, field in keys.items() if table == TOP or not at_top(name)}
        if not own:
            continue
        parts += ["", f"# {_ABOUT.get(table) or _about(table)}"]
        parts += [f"[{table}]"] if table else []
        for name, field in own.items():
            if table == TOP and not at_top(name):
                continue
            parts += ["", *(f"# {line}" for line in _wrapped(_explained(name, field))), _line(name, field)]
    return "\n".join(parts) + "\n"


def at_top(name: str) -> bool:
    """Return whether all functions that read the setting have the same default, so that it stands at the top."""
    found = [FUNCTIONS[function].model_fields[name] for function in readers(name)]
    return name in tables()[TOP] and len({(field.default, field.description) for field in found}) == 1


def _about(table: str) -> str:
    if table in FUNCTIONS:
        return f"The {function_name(table)}."
    settings_type: type[Settings] = PROVIDERS[table.removeprefix("provider.")]
    return str(settings_type.__doc__)


def _explained(name: str, field: FieldInfo) -> str:
    parts = [str(field.description)]
    if found := bounds(field):
        parts.append(f"One of {found}." if get_origin(field.annotation) is Literal else f"Range: {found}.")
    if field.is_required() and name not in GIVEN:
        parts.append("Required.")
    elif name in GIVEN | FIXED:
        parts.append("The deployment gives it.")
    return " ".join(parts)


def _line(name: str, field: FieldInfo) -> str:
    if name in GIVEN:
        return f"# {name} = …"
    if field.is_required():
        return f"{name} = {as_toml(_named_document(name, PLACEHOLDER) or PLACEHOLDER)}"
    if field.default is None:
        example = _named_document(name, "BUCKET")
        return f"# {name} = {as_toml(example) if example else '…'}"
    return f"# {name} = {as_toml(field.default)}"


def _named_document(name: str, bucket: str) -> str | None:
    """Return the usual address of the document that the setting names; None: it names no document."""
    return f"s3://{bucket}/documents/{DOCUMENTS[name][1]}" if name in DOCUMENTS else None


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
