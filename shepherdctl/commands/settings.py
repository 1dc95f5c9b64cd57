"""The commands on the settings: ``shepherdctl settings``."""

import difflib
import json
import math
import sys
from typing import Annotated, Any

import typer
from rich.text import Text
from shepherd_core.domain.errors import ConfigError
from shepherd_core.settings.base import PREFIX, Settings
from shepherd_core.settings.deployment import CapacitySettings
from shepherd_core.settings.document import Document, bounded, parse, unknown
from shepherd_core.settings.effective import Effective, Source, Value, effective
from shepherd_core.settings.functions import FUNCTIONS
from shepherd_core.settings.keys import BMDB, TOP, kind, place, readers, tables
from shepherd_core.settings.providers import PROVIDERS
from shepherd_core.settings.sources import variables
from shepherd_core.wiring.settings import fetch

from shepherdctl import output, settings_text, stored_settings
from shepherdctl.confirm import Yes, confirm, require_terminal
from shepherdctl.options import PROVIDERS as PROVIDER_NAMES
from shepherdctl.options import DryRun
from shepherdctl.output import Column, Form, Output, note, one_of, table

_STYLES = {Source.DOCUMENT: "green", Source.ENVIRONMENT: "yellow", Source.DEPLOYMENT: "cyan"}

_SourceArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[FILE|s3://BUCKET/KEY|ssm:NAME]",
        help="The settings document.",
        show_default=f"{PREFIX}SETTINGS; without it, the environment alone",
    ),
]


def init(
    provider: Annotated[
        str,
        typer.Option(
            "--provider",
            parser=one_of(*PROVIDER_NAMES),
            metavar=f"<{'|'.join(PROVIDER_NAMES)}>",
            help="The provider whose settings the document has.",
        ),
    ],
) -> None:
    """
    Print a settings document to fill in.

    It has every key with its meaning, range and default. Lines that are commented
    out change nothing. What the provider requires holds FIXME, which "settings
    check" refuses until it is filled in.

    Examples:
      shepherdctl settings init --provider hetzner > settings.toml
    """
    sys.stdout.write(settings_text.document(provider))


def check(source: _SourceArgument = None, output_form: Output = Form.TABLE) -> None:
    """
    Check a settings document, and the rules between the settings of all functions.

    Lists every fault at once, with key, value and what was wanted, and then exits
    with 1. Environment variables win over the document here as in the functions.
    SHEPHERD_LOOP_MINUTES says how often the loops run, if it is not each minute.
    What the deployment gives to its functions may be missing.

    Examples:
      shepherdctl settings check settings.toml
      shepherdctl settings check s3://my-bucket/settings.toml
      SHEPHERD_LOOP_MINUTES=5,1,5,5 shepherdctl settings check settings.toml
    """
    document, faults = _read(source)
    found = effective(document)
    faults += found.faults
    if output_form is Form.JSON:
        output.document({"hash": document and document.hash, "provider": found.provider, "faults": faults})
        if faults:
            raise typer.Exit(1)
        return
    if faults:
        raise ConfigError(bounded(faults))
    if found.provider is None:
        note(f"the provider is not known: its settings were not checked. Set {PREFIX}PROVIDER.")
    if found.values["initializer"]["agent_sha256"].value is None:
        note("initializer.agent_sha256 is unset: a deployment refuses that. Set what agent/build.py prints.")
    name = "the environment" if document is None else f"document {document.hash}"
    note(f"no faults in {name}" + (f", provider {found.provider}" if found.provider else ""))


def show(
    source: _SourceArgument = None,
    *,
    changed: Annotated[bool, typer.Option("--changed", help="Only values that are not the code's default.")] = False,
    output_form: Output = Form.TABLE,
) -> None:
    """
    Show the effective value of each setting, and where it comes from.

    SOURCE is default (of the code), deployment (a default that the deployment
    gives), document or environment. Settings that nothing gives here, and that
    the deployment gives to its functions, are left out. Exits with 1, after the
    values, if there is a fault.

    Examples:
      shepherdctl settings show settings.toml --changed
      shepherdctl settings show s3://my-bucket/settings.toml
      shepherdctl settings show -o json | jq '.settings[].key'
    """
    document, faults = _read(source)
    found = effective(document)
    faults += found.faults
    rows = [row for row in _rows(found) if not (changed and row[1].source is Source.DEFAULT)]
    if output_form is Form.JSON:
        output.document(
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


def set_value(
    key: Annotated[str, typer.Argument(metavar="KEY", help="The key with its table, as docs/settings.md names it.")],
    value: Annotated[str, typer.Argument(metavar="VALUE", help="Its new value; texts without quotes.")],
    source: Annotated[
        str | None,
        typer.Argument(metavar="[s3://BUCKET/KEY]", help="The settings document.", show_default=f"{PREFIX}SETTINGS"),
    ] = None,
    *,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """
    Change one setting of a deployment, in its settings document in S3.

    Reads the document, changes the key and nothing else, checks the result as
    "settings check" does, shows the difference, and asks. Then it writes the
    document, unless somebody else has changed it meanwhile. All functions work by
    it within two minutes.

    Examples:
      shepherdctl settings set agent_api.heartbeat_interval_seconds 600
      shepherdctl settings set provisioner.max_machines 80 --dry-run
    """
    require_terminal(yes=yes or dry_run)
    if not value.isprintable():
        message = f"{value!r} is no value: it must be printable text on one line."
        raise typer.BadParameter(message)
    source = source or variables(PREFIX).get("settings")
    if source is None:
        message = f"no settings document is named: give s3://BUCKET/KEY, or set {PREFIX}SETTINGS."
        raise typer.BadParameter(message)
    table_name, _, name = key.rpartition(".") if key.rpartition(".")[0] in tables() else (TOP, "", key)
    if name not in tables()[table_name]:
        raise ConfigError([unknown(table_name, name)])
    if name in variables(PREFIX):
        fault = f"{PREFIX}{name.upper()} is set here and wins over the document: unset it, or {key} is not checked"
        raise ConfigError([fault])
    stored = stored_settings.read(source)
    before, faults = parse(stored.content)
    text = stored.content.decode("utf-8-sig")
    changed = stored_settings.with_value(text, table_name, name, _parsed(table_name, name, value))
    after, faults = parse(changed.encode())
    faults += effective(after).faults
    if faults:
        raise ConfigError(bounded(faults))
    if changed == text:
        note(f"{key} has that value already in document {before.hash}")
        return
    versions = text.splitlines(), changed.splitlines()
    for line in difflib.unified_diff(*versions, before.hash, after.hash, n=1, lineterm=""):
        sys.stdout.write(f"{output.visible(line)}\n")
    if dry_run:
        note("dry run: nothing was changed")
        return
    if not yes:
        confirm(key)
    stored_settings.replace(stored, changed.encode())
    note(f"{source} is document {after.hash} now: all functions work by it within two minutes")


def _parsed(table_name: str, name: str, text: str) -> Any:
    """Return the value that *text* is for the setting; what is no such value stays a text, which the check refuses."""
    if kind(tables()[table_name][name].annotation) is str:
        return text
    try:
        number = json.loads(text)
        return number if isinstance(number, int | float) and math.isfinite(number) else text
    except (ValueError, OverflowError, RecursionError):
        return text


def _read(source: str | None) -> tuple[Document | None, list[str]]:
    """Return the document and its faults; None: there is none."""
    source = source or variables(PREFIX).get("settings")
    return (None, []) if source is None else parse(fetch(source))


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
