"""The agent is one file that any machine can run."""

import ast
import hashlib
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from agent.build import build
from agent.shepherd_agent import __version__

ROOT = Path(__file__).parents[3]
SOURCES = sorted((ROOT / "agent").rglob("*.py"))


def test_the_same_sources_give_the_same_bytes(tmp_path: Path) -> None:
    """The upload is skipped when the machine has the file already."""
    build(tmp_path / "one")
    command = [sys.executable, str(ROOT / "agent/build.py"), str(tmp_path / "deep/two")]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    assert printed == hashlib.sha256((tmp_path / "one").read_bytes()).hexdigest() + "\n"
    assert (tmp_path / "one").read_bytes() == (tmp_path / "deep/two").read_bytes()
    assert (tmp_path / "one").stat().st_mode & 0o777 == 0o755
    assert [path.name for path in tmp_path.iterdir()] == ["one", "deep"] or len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_the_agent_is_written_for_python_3_9_and_its_library(source: Path) -> None:
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


def test_the_agent_has_the_version_of_the_project(tmp_path: Path) -> None:
    """It is released with the rest."""
    build(tmp_path / "agent")
    output = subprocess.run([tmp_path / "agent", "--version"], check=True, capture_output=True, text=True).stdout
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert output == f"shepherd-agent {version}\n"
    assert __version__ == version


@pytest.mark.parametrize(("argument", "status"), [("--help", 0), ("--halp", 2)])
def test_the_agent_explains_itself(tmp_path: Path, argument: str, status: int) -> None:
    """Somebody will find it on a machine and wonder."""
    build(tmp_path / "agent")
    result = subprocess.run([tmp_path / "agent", argument], check=False, capture_output=True, text=True)
    assert result.returncode == status
    assert "TakeoverInit" in (result.stderr if status else result.stdout)


def test_the_build_says_how_it_is_called(tmp_path: Path) -> None:
    """It takes one path."""
    result = subprocess.run([sys.executable, ROOT / "agent/build.py"], check=False, capture_output=True, text=True)
    assert result.returncode == 2
    assert "OUTPUT" in result.stderr
