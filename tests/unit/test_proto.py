"""
The wire contract with the agents, which run on machines that were built from it long ago.

That no field moves, nor those that Metropolis' own agents read, is in tests/data/stable.txt.
"""

import importlib.resources
from pathlib import Path

import shepherd_core.domain.pb
from shepherd_core.domain.pb import callback_pb2

ROOT = Path(__file__).parents[2]
FILES = ("agent", "callback")


def test_node_parameters_are_sent_even_if_they_are_empty() -> None:
    """To an agent of Metropolis they are a message, which it misses otherwise."""
    assert callback_pb2.MetropolisInstallation(node_parameters=b"").SerializeToString() == b"\x12\x00"


def test_every_source_is_generated_and_nothing_else() -> None:
    assert sorted(file.stem for file in (ROOT / "proto").iterdir()) == sorted(FILES)
    generated = {f"{name}_pb2{suffix}" for name in FILES for suffix in (".py", ".pyi")}
    present = {entry.name for entry in importlib.resources.files(shepherd_core.domain.pb).iterdir()}
    assert present - {"__pycache__"} == generated | {"__init__.py"}
