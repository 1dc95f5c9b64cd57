"""The handlers are thin, and cheap to import."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from shepherd_core.runtime import LOOPS

from bench import coldstart

ROOT = Path(__file__).parents[2]
FUNCTIONS = (*LOOPS, "migrator", "agent_api")

# What takes long to import, and what only some functions or only some invocations need, or none.
HEAVY = {
    "aws_lambda_powertools",
    "boto3",
    "botocore",
    "cryptography",
    "google",
    "moto",
    "nacl",
    "paramiko",
    "requests",
    "rich",
    "typer",
}
BUILT: dict[str, set[str]] = {
    "provisioner": set(),
    "initializer": {"google"},
    "recoverer": {"requests"},
    "updater": set(),
    "migrator": set(),
    "agent_api": {"google", "nacl"},
}
"""
What a function needs of it before it is asked for anything. The Recoverer's provider is the one with an API; the agent
API is built when the first request is there, and every request takes both.
"""

OURS = {"functions", "shepherd_core"}


def test_every_loop_has_a_function_and_an_event() -> None:
    """What the runtime can run and nobody deploys, or the other way round, is a mistake."""
    assert {path.parent.name for path in ROOT.glob("functions/*/app.py")} == set(FUNCTIONS)
    assert {path.stem for path in ROOT.glob("events/*.json")} == set(FUNCTIONS)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_handler_only_hands_over(function: str) -> None:
    """What is decided in a handler escapes the tests of the package, and the command line that runs loops too."""
    lines = (ROOT / "functions" / function / "app.py").read_text(encoding="utf-8").splitlines()
    assert len(lines) < 30


def packages(program: str) -> set[str]:
    """Return the packages that *program* loads and that neither Python nor we bring."""
    found = {module.partition(".")[0] for module in coldstart.measure(program).modules}
    return {package for package in found if not package.startswith("_")} - sys.stdlib_module_names - OURS


@pytest.mark.parametrize("function", FUNCTIONS)
def test_importing_a_handler_imports_nothing_that_may_never_be_needed(function: str) -> None:
    """Every cold start pays for it."""
    assert not HEAVY & packages(coldstart.ours(function, "import"))


SECRETS_ELSEWHERE = {
    "SHEPHERD_STATIC_LIST": "https://example.com/machines.json",
    "SHEPHERD_AGENT_SOURCE": "s3://bucket/agent",
    "SHEPHERD_BMDB_PASSWORD_PARAMETER": "/shepherd/bmdb",
    "SHEPHERD_BMDB_CA_SOURCE": "ssm:/shepherd/ca",
}


@pytest.mark.parametrize("settings", [{}, SECRETS_ELSEWHERE, {"SHEPHERD_BMDB_AUTH": "iam"}], ids=["", "kept", "iam"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_that_was_asked_nothing_yet_has_loaded_no_library_for_it(
    function: str, settings: dict[str, str]
) -> None:
    """SSH comes with the first machine that is due, AWS with the first secret: most cold starts find neither."""
    assert HEAVY & packages(coldstart.built(function, **settings)) == BUILT[function]


@pytest.mark.parametrize("stage", ["import", "ready"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_cold_start_is_compared_with_the_libraries_that_are_loaded(function: str, stage: str) -> None:
    """A baseline with less in it would blame us; one with more would hide what we are slow at."""
    assert packages(coldstart.ours(function, stage)) == packages(coldstart.bare(function, stage))
