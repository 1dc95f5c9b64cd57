"""The agent is one file that any machine can run."""

import ast
import hashlib
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from agent.build import build

ROOT = Path(__file__).parents[3]
SOURCES = sorted((ROOT / "agent").rglob("*.py"))
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_the_same_sources_give_the_same_bytes(tmp_path: Path) -> None:
    """The upload is skipped when the machine has the file already."""
    build(tmp_path / "one")
    command = [sys.executable, str(ROOT / "agent/build.py"), str(tmp_path / "deep/two")]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    assert printed == hashlib.sha256((tmp_path / "one").read_bytes()).hexdigest() + "\n"
    assert (tmp_path / "one").read_bytes() == (tmp_path / "deep/two").read_bytes()
    assert (tmp_path / "one").stat().st_mode & 0o777 == 0o755
    assert {path.name for path in tmp_path.iterdir()} == {"one", "deep"}


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_the_agent_runs_with_python_3_9_alone(source: Path) -> None:
    """Nothing is installed on the machines for it."""
    tree = ast.parse(source.read_bytes(), feature_version=(3, 9))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            modules = [node.module or ""]
        else:
            continue
        assert {module.partition(".")[0] for module in modules} <= sys.stdlib_module_names


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["agent", "--version"], 0, f"shepherd-agent {VERSION}\n"),
        (["agent", "--help"], 0, "TakeoverInit"),
        (["agent", "--halp"], 2, "TakeoverInit"),
        ([ROOT / "agent/build.py"], 2, "OUTPUT"),
    ],
)
def test_the_agent_and_its_build_explain_themselves(
    tmp_path: Path, arguments: list[str], status: int, told: str
) -> None:
    build(tmp_path / "agent")
    ended = subprocess.run([sys.executable, *arguments], cwd=tmp_path, check=False, capture_output=True, text=True)
    assert ended.returncode == status
    assert told in (ended.stderr if status else ended.stdout)
