import ast
import shutil
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from shepherd_core.adapters.agent_file import our_agent

from tests.support.agents.executable import write_agent
from tests.support.processes import ran

ROOT = Path(__file__).parents[3]
SOURCES = sorted((ROOT / "agent").rglob("*.py"))


def test_the_same_sources_give_the_same_bytes(tmp_path: Path) -> None:
    """The upload is skipped when the machine has the file already; so no time and no order of files may be in it."""
    layer = tmp_path / "layer"
    shutil.copytree(ROOT / "agent/shepherd_agent", layer / "shepherd_agent")
    shutil.copytree(ROOT / "layers/shepherd_core/shepherd_core", layer / "shepherd_core")
    (layer / "shepherd_agent/__main__.pyc").write_bytes(b"bytecode")
    told = "from shepherd_core.adapters.agent_file import our_agent; print(our_agent().sha256, end='')"
    assert ran(sys.executable, "-c", told, cwd=layer).stdout == our_agent().sha256


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


def test_an_older_python_is_named(tmp_path: Path) -> None:
    """It would else fail at the first sentence that it does not understand."""
    write_agent(tmp_path / "agent")
    old = "import runpy, sys; sys.version_info, sys.version = (3, 7, 3), '3.7.3 (default)'; runpy.run_path('agent')"
    ended = ran(sys.executable, "-c", old, cwd=tmp_path, status=1)
    assert ended.stderr == "the agent needs Python 3.9 or newer, and python3 is 3.7.3\n"


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["agent", "--version"], 0, f"shepherd-agent {version('shepherd')}\n"),
        (["agent", "--help"], 0, "TakeoverInit"),
        (["agent", "--dry-run"], 0, '"efi_support": "'),  # the hardware report, for people
        (["agent", "--halp"], 2, "TakeoverInit"),
    ],
)
def test_the_agent_explains_itself(tmp_path: Path, arguments: list[str], status: int, told: str) -> None:
    write_agent(tmp_path / "agent")
    ended = ran(sys.executable, *arguments, cwd=tmp_path, status=status)
    assert told in (ended.stderr if status else ended.stdout)
