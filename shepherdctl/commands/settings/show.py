"""The command that shows the effective settings."""

from typing import Annotated

import typer
from rich.text import Text
from shepherd_core.domain.errors import ConfigError
from shepherd_core.settings.base import PREFIX
from shepherd_core.settings.document import bounded
from shepherd_core.settings.effective import Effective, Value, ValueSource, effective
from shepherd_core.settings.keys import tables
from shepherd_core.settings.rules import plain

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
    rows = [row for row in _ordered(found) if not (changed and row[1].source is ValueSource.DEFAULT)]
    if output_form is Form.JSON:
        printing.document(
            {
                "settings_hash": document and document.hash,
                "provider": found.provider,
                "settings": [{"key": key, "value": value.value, "source": value.source} for key, value in rows],
                "faults": faults,
            }
        )
    else:
        table(
            [Column("KEY"), Column("VALUE", prose=True), Column("SOURCE")],
            [(key, plain(value.value), Text(value.source, _STYLES.get(value.source, ""))) for key, value in rows],
        )
        if not rows:
            note("every setting has its default")
        if document is not None:
            note(f"document {document.hash}")
    if faults:
        raise ConfigError(bounded(faults))


def _ordered(found: Effective) -> list[tuple[str, Value]]:
    """Return the settings in the order of the document; those without a key last."""
    order = list(tables(*filter(None, [found.provider])))
    return sorted(
        found.values.items(),
        key=lambda row: len(order) if row[0].startswith(PREFIX) else order.index(row[0].rpartition(".")[0]),
    )
