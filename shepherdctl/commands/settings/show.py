"""The command that shows the effective settings."""

from typing import Annotated, Any

import typer
from rich.text import Text
from shepherd_core.domain.errors import ConfigError
from shepherd_core.settings.base import PREFIX, Settings
from shepherd_core.settings.deployment import CapacitySettings
from shepherd_core.settings.document import bounded
from shepherd_core.settings.effective import Effective, Value, ValueSource, effective
from shepherd_core.settings.functions import FUNCTIONS
from shepherd_core.settings.keys import BMDB, TOP, place, readers, tables
from shepherd_core.settings.providers import PROVIDERS

from shepherdctl.commands.settings.check import SourceArgument, read_document
from shepherdctl.output import printing
from shepherdctl.output.printing import Column, Form, Output, note, table

_STYLES = {ValueSource.DOCUMENT: "green", ValueSource.ENVIRONMENT: "yellow", ValueSource.DEPLOYMENT: "cyan"}


def show(
    source: SourceArgument = None,
    *,
    changed: Annotated[bool, typer.Option("--changed", help="Only values that are not the code's default.")] = False,
    output_form: Output = Form.TABLE,
) -> None:
    """
    Show the effective value of each setting, and where it comes from.

    SOURCE is default (of the code), deployment (a default that the deployment
    gives), document or environment. Settings that only the deployment gives its
    functions, and that have no value here, are left out. Exits with 1, after the
    values, if there is a fault.

    Examples:
      shepherdctl settings show settings.toml --changed
      shepherdctl settings show s3://my-bucket/settings.toml
      shepherdctl settings show -o json | jq '.settings[].key'
    """
    document, faults = read_document(source)
    found = effective(document)
    faults += found.faults
    rows = [row for row in _rows(found) if not (changed and row[1].source is ValueSource.DEFAULT)]
    if output_form is Form.JSON:
        printing.document(
            {
                "hash": document and document.hash,
                "provider": found.provider,
                "settings": [{"key": key, "value": value.value, "source": value.source} for key, value in rows],
                "faults": faults,
            }
        )
    else:
        table(
            [Column("KEY"), Column("VALUE", prose=True), Column("SOURCE")],
            [(key, _plain(value.value), Text(value.source, _STYLES.get(value.source, ""))) for key, value in rows],
        )
        if not rows:
            note("every setting has its default")
        if document is not None:
            note(f"document {document.hash}")
    if faults:
        raise ConfigError(bounded(faults))


def _rows(found: Effective) -> list[tuple[str, Value]]:
    """Return key and value of each setting, in the order of the document; the same value of several functions once."""
    rows: dict[str, Value] = {}
    for name in tables()[TOP]:
        shared = [found.values[function].get(name) for function in readers(name)]
        if shared[0] is not None and all(value == shared[0] for value in shared):
            rows[name] = shared[0]
    types: dict[str, type[Settings]] = {**FUNCTIONS, BMDB: CapacitySettings}
    if found.provider is not None:
        types["provider"] = PROVIDERS[found.provider]
    for part, of_part in found.values.items():
        for name, value in of_part.items():
            key = place(types[part], name) if part in types else None
            if name not in rows:  # else all functions have the same value
                rows.setdefault(key or PREFIX + name.upper(), value)
    order = list(tables())
    return sorted(
        rows.items(),
        key=lambda row: len(order) if row[0].startswith(PREFIX) else order.index(row[0].rpartition(".")[0]),
    )


def _plain(value: Any) -> str:
    match value:
        case None:
            return "unset"
        case bool():
            return str(value).lower()
        case float():
            return f"{value:g}"
        case _:
            return str(value)
