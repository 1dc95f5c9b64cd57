"""The web console is an extra: the layer does not grow by it."""

import ast
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[3]
LAYER = ROOT / "layers" / "shepherd_core"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LIBRARIES = set(PROJECT["project"]["optional-dependencies"]["console"])


def pinned(path: Path) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9-]+)(?:\[[a-z,]+\])?==([^ ;]+)", path.read_text(encoding="utf-8"), re.MULTILINE))


def test_the_layer_has_no_library_of_the_console() -> None:
    """A function loads its layer at each cold start; nothing that runs on Lambda shows pages."""
    assert {"jinja2", "starlette", "uvicorn"} == LIBRARIES
    assert LIBRARIES & pinned(LAYER / "requirements.txt").keys() == set()


def test_the_layer_has_no_page_and_no_script() -> None:
    suffixes = {path.suffix for path in (LAYER / "shepherd_core").rglob("*") if path.is_file()} - {".pyc"}
    assert suffixes <= {".py", ".pyi", ".sql", ""}


def test_the_tests_run_with_what_the_extra_names() -> None:
    """Its versions are those of the lock file."""
    assert pinned(ROOT / "requirements" / "dev.txt").keys() >= LIBRARIES


def test_the_command_line_works_without_the_extra() -> None:
    """Only the console's own package imports its libraries, and it is imported when the console starts."""
    console = ROOT / "shepherdctl" / "console"
    for path in (ROOT / "shepherdctl").rglob("*.py"):
        if console in path.parents:
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ImportFrom):
                assert not str(node.module).startswith(("shepherdctl.console", *LIBRARIES)), path
