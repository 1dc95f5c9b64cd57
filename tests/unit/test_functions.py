"""The handlers are thin, and cheap to import."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from shepherd_core.runtime import LOOPS

ROOT = Path(__file__).parents[2]
FUNCTIONS = (*LOOPS, "migrator")

# What takes long to import, and what only some functions or only some invocations need.
LATE = {"aws_lambda_powertools", "boto3", "botocore", "cryptography", "google.protobuf", "paramiko", "requests"}


def test_every_loop_has_a_function_and_an_event() -> None:
    """What the runtime can run and nobody deploys, or the other way round, is a mistake."""
    assert {path.parent.name for path in ROOT.glob("functions/*/app.py")} == set(FUNCTIONS)
    assert {path.stem for path in ROOT.glob("events/*.json")} == set(FUNCTIONS)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_handler_only_hands_over(function: str) -> None:
    """What is decided in a handler escapes the tests of the package, and the command line that runs loops too."""
    lines = (ROOT / "functions" / function / "app.py").read_text(encoding="utf-8").splitlines()
    assert len(lines) < 30


@pytest.mark.parametrize("function", FUNCTIONS)
def test_importing_a_handler_imports_nothing_that_may_never_be_needed(function: str) -> None:
    """Every cold start pays for it."""
    program = f"import json, sys, functions.{function}.app; print(json.dumps(sorted(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert not LATE & set(json.loads(found))
