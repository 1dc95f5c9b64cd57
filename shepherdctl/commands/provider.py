"""The command that writes a provider of one's own."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from shepherd_core.domain.errors import SourceError
from shepherd_core.settings.providers import NAME, names

from shepherdctl.output.printing import note

_SKELETON = Path(__file__).parents[1] / "skeleton"
"""The package as it is written for the name acme."""


def _new_name(text: str) -> str:
    if not NAME.fullmatch(text):
        message = f"{text!r} cannot be a provider's name: give up to 32 letters a to z and digits, a letter first."
    elif text in names():
        message = f"{text!r} is a provider already."
    elif find_spec(f"shepherd_{text}") is not None:
        message = f"{text!r} cannot be a provider's name: there is a Python package shepherd_{text}."
    else:
        return text
    raise typer.BadParameter(message)


def new(
    name: Annotated[
        str, typer.Argument(metavar="NAME", parser=_new_name, help="Its name in Shepherd; it can never be changed.")
    ],
) -> None:
    """
    Write a Python package with a provider of your own.

    It is in the new folder shepherd-NAME, and has an adapter, its settings, a
    server in place of the API, and tests that hold the adapter to the
    contract of all providers. All of it works as it stands. Its README.md says
    how to test and to deploy it, docs/providers/write-your-own what to change.

    Examples:
      shepherdctl provider new acme
    """
    folder = Path(f"shepherd-{name}")
    try:
        folder.mkdir()
        for source in sorted(_SKELETON.rglob("*.*")):
            if "__pycache__" not in source.parts:
                file = folder / _renamed(str(source.relative_to(_SKELETON)), name)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(_renamed(source.read_text(encoding="utf-8"), name), encoding="utf-8")
    except OSError as error:
        raise SourceError(f"{folder} cannot be written: {error.strerror}") from error
    note(f"{folder} has the provider {name}: see {folder}/README.md")


def _renamed(text: str, name: str) -> str:
    return text.replace("acme", name).replace("Acme", name.capitalize())
