"""What the layer leaves to the command line."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
LAYER = ROOT / "layers" / "shepherd_core"


def test_the_layer_has_no_library_of_the_command_line() -> None:
    """A function loads its layer at each cold start; Lambda itself brings boto3."""
    named = (ROOT / "requirements" / "shepherdctl.in").read_text(encoding="utf-8")
    libraries = set(re.findall(r"^[a-z0-9-]+", named, re.MULTILINE))
    pinned = re.findall(r"^([a-z0-9-]+).*==", (LAYER / "requirements.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert "starlette" in libraries
    assert libraries.isdisjoint(pinned)


def test_the_layer_has_no_page_and_no_script() -> None:
    suffixes = {path.suffix for path in (LAYER / "shepherd_core").rglob("*") if path.is_file()} - {".pyc"}
    assert suffixes <= {".py", ".pyi", ".sql", ""}
