"""The command that prints a settings document to fill in."""

import sys
from typing import Annotated

import typer

from shepherdctl.deployment.answers import model
from shepherdctl.deployment.template import parameters
from shepherdctl.descriptions import blank_document
from shepherdctl.options import PROVIDERS as PROVIDER_NAMES
from shepherdctl.output.printing import one_of


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

    It has every key with its meaning, range and default, and the answers of
    "shepherdctl deploy". Lines that are commented out change nothing. Keys that
    are required have the value FIXME, which "settings check" refuses until you
    replace it.

    Examples:
      shepherdctl settings init --provider hetzner > shepherd.toml
    """
    sys.stdout.write(blank_document.document(provider, model(parameters()).model_fields))
