"""The command that checks the settings."""

from typing import Annotated

import typer
from shepherd_core.domain.errors import ConfigError
from shepherd_core.settings.base import PREFIX
from shepherd_core.settings.document import Document, bounded, parse
from shepherd_core.settings.effective import effective
from shepherd_core.settings.sources import variables
from shepherd_core.wiring.settings import fetch

from shepherdctl.deployment import answers as deployment_answers
from shepherdctl.deployment.template import parameters
from shepherdctl.output import printing
from shepherdctl.output.printing import Form, Output, note

SourceArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[FILE|s3://BUCKET/KEY|ssm:NAME]",
        help="The settings document.",
        show_default=f"{PREFIX}SETTINGS; without it, the environment alone",
    ),
]


def check(source: SourceArgument = None, output_form: Output = Form.TABLE) -> None:
    """
    Check a settings document, and the rules between the settings of all functions.

    Lists every fault at once, with key, value and what was wanted, and then exits
    with 1. Environment variables win over the document here as in the functions.
    The table "deployment" is checked, too, if there is one: the answers of
    "shepherdctl deploy". Without it, set SHEPHERD_LOOP_MINUTES if the loops do
    not run every minute.

    Examples:
      shepherdctl settings check shepherd.toml
      shepherdctl settings check s3://my-bucket/settings.toml
    """
    document, faults = read_document(source)
    told = {}
    if document is not None and document.deployment is not None:
        answers, wrong = deployment_answers.check(document, parameters())
        told, faults = deployment_answers.told_to_functions(answers), [*faults, *wrong]
    found = effective(document, told)
    faults += found.faults
    if output_form is Form.JSON:
        printing.document({"settings_hash": document and document.hash, "provider": found.provider, "faults": faults})
        if faults:
            raise typer.Exit(1)
        return
    if faults:
        raise ConfigError(bounded(faults))
    if found.provider is None:
        note(f"the provider is not known: its settings were not checked. Set {PREFIX}PROVIDER.")
    name = "the environment" if document is None else f"document {document.hash}"
    note(f"no faults in {name}" + (f", provider {found.provider}" if found.provider else ""))


def read_document(source: str | None) -> tuple[Document | None, list[str]]:
    """Return the document and its faults; None: no document is named."""
    source = source or variables(PREFIX).get("settings")
    return (None, []) if source is None else parse(fetch(source))
