"""The command that changes one setting of a deployment."""

import difflib
import json
import math
import sys
from typing import Annotated, Any

import typer
from pydantic.fields import FieldInfo
from shepherd_core.domain.errors import ConfigError
from shepherd_core.settings.base import PREFIX, ProviderSettings, Settings, variable
from shepherd_core.settings.document import bounded, parse, unknown
from shepherd_core.settings.effective import effective
from shepherd_core.settings.keys import TOP, kind, tables_with
from shepherd_core.settings.sources import variables

from shepherdctl.confirm import Yes, confirm, require_terminal
from shepherdctl.deployment import stored_settings
from shepherdctl.options import DryRun
from shepherdctl.output import printing
from shepherdctl.output.printing import note


def set_value(
    key: Annotated[str, typer.Argument(metavar="KEY", help="The key with its table, as docs/settings names it.")],
    value: Annotated[str, typer.Argument(metavar="VALUE", help="The new value; text without quotes.")],
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
    document, unless somebody else has changed it meanwhile. All functions use the
    new value within two minutes.

    Examples:
      shepherdctl settings set agent_api.heartbeat_interval_seconds 600
      shepherdctl settings set provisioner.max_machines 80 --dry-run
    """
    require_terminal(yes=yes or dry_run)
    if not value.isprintable():
        message = f"{value!r} is not a value: it must be printable text on one line."
        raise typer.BadParameter(message)
    source = source or variables(PREFIX).get("settings")
    if source is None:
        message = f"no settings document is named: give s3://BUCKET/KEY, or set {PREFIX}SETTINGS."
        raise typer.BadParameter(message)
    tables = tables_with(key.rpartition(".")[0])
    table_name, _, name = key.rpartition(".") if key.rpartition(".")[0] in tables else (TOP, "", key)
    if name not in tables[table_name]:
        raise ConfigError([unknown(table_name, name)])
    own = variable(ProviderSettings if table_name.startswith("provider.") else Settings, name)
    if own.removeprefix(PREFIX).lower() in variables(PREFIX):
        raise ConfigError([f"{own} is set here and wins over the document: unset it, so that the new {key} is checked"])
    stored = stored_settings.read(source)
    before, faults = parse(stored.content)
    text = stored.content.decode("utf-8-sig")
    changed = stored_settings.with_value(text, table_name, name, _parsed(tables[table_name][name], value))
    after, faults = parse(changed.encode())
    faults += effective(after).faults
    if faults:
        raise ConfigError(bounded(faults))
    if changed == text:
        note(f"{key} already has that value in document {before.hash}")
        return
    versions = text.splitlines(), changed.splitlines()
    for line in difflib.unified_diff(*versions, before.hash, after.hash, n=1, lineterm=""):
        sys.stdout.write(f"{printing.visible(line)}\n")
    if dry_run:
        note("dry run: nothing was changed")
        return
    if not yes:
        confirm(key)
    stored_settings.replace(stored, changed.encode())
    note(f"{source} is now document {after.hash}: all functions use it within two minutes")


def _parsed(setting: FieldInfo, text: str) -> Any:
    """Return *text* as the type of the setting; text that does not fit stays text, which the check then refuses."""
    if kind(setting.annotation) is str:
        return text
    try:
        number = json.loads(text)
        return number if isinstance(number, int | float) and math.isfinite(number) else text
    except (ValueError, OverflowError, RecursionError):
        return text
