"""
What docs/stability.md promises is in tests/data/stable.txt, a line each, and stays.

``make stable`` adds what is new. A line is only taken out with a new major version.
"""

import hashlib
import inspect
import os
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import yaml
from google.protobuf.descriptor import Descriptor, EnumDescriptor
from shepherd_core.bmdb.schema import migrate
from shepherd_core.domain.errors.kinds import FailureKind
from shepherd_core.domain.machine import Machine
from shepherd_core.domain.pb import agent_pb2, callback_pb2
from shepherd_core.domain.provider import Provider
from shepherd_core.domain.states import State

from shepherdctl.descriptions.condition import ConditionName
from shepherdctl.descriptions.settings_table import markdown
from shepherdctl.output import prometheus
from shepherdctl.output.json_fields import FIELDS, VERSION
from tests.support.command_line import commands
from tests.support.deployment.deployments import TEMPLATE

STABLE = Path(__file__).parents[1] / "data" / "stable.txt"


def messages(descriptor: Descriptor) -> Iterator[str]:
    for field in descriptor.fields:
        yield f"wire {descriptor.full_name} {field.number} {field.name} {field.type}{' repeated' * field.is_repeated}"
    for enum in descriptor.enum_types:
        yield from numbers(enum)
    for nested in descriptor.nested_types:
        yield from messages(nested)


def numbers(enum: EnumDescriptor) -> Iterator[str]:
    yield from (f"wire {enum.full_name} {value.number} {value.name}" for value in enum.values)


def wire() -> Iterator[str]:
    for file in (agent_pb2.DESCRIPTOR, callback_pb2.DESCRIPTOR):
        for message in file.message_types_by_name.values():
            yield from messages(message)
        for enum in file.enum_types_by_name.values():
            yield from numbers(enum)


def typed() -> Iterator[str]:
    for words, command in commands():
        name = " ".join(words)
        yield f"command {name}"
        yield from (f"command {name} {each}" for one in command.params for each in one.opts if each.startswith("--"))


def promised() -> Iterator[str]:
    """Yield each thing that users, scripts, agents and packages may rely on."""
    for path in sorted(Path(migrate.__file__).with_name("migrations").glob("*.sql")):
        yield f"migration {path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}"
    for variable, key in re.findall(r"^\| `(\w+)` \| `?([\w.]+)`? \|", markdown(), re.MULTILINE):
        yield f"setting {variable} {key}"
    for name, about in FIELDS.items():
        yield f"json {VERSION} {name}: {about.partition(':')[0]}"
    gauges = re.findall(r'_gauge\(\s*f?"([\w{}]+)"', inspect.getsource(prometheus))
    for gauge in {each.replace("{name}", delay) for each in gauges for delay in prometheus.DELAYS}:
        yield f"metric shepherd_{gauge}"
    yield from (f"state {each}" for each in State)
    yield from (f"failure {each}" for each in FailureKind)
    yield from (f"condition {each} {each.severity}" for each in ConditionName)
    yield from typed()
    yield from wire()
    for name, method in inspect.getmembers(Provider, inspect.isfunction):
        if not name.startswith("_"):
            yield f"provider {name}{inspect.signature(method)}".replace("'", "")
    yield from (f"provider Machine.{each.name}: {each.type}" for each in fields(Machine))
    yield from (f"template Parameters {name}" for name in TEMPLATE["Parameters"])
    made = yaml.safe_load((STABLE.parent / "stacks" / "http-api.yaml").read_text(encoding="utf-8"))
    yield from (f"template Outputs {name}" for name in made["Outputs"])


def test_what_is_promised_stays_and_what_is_new_is_promised() -> None:
    now = sorted(promised())
    if "WRITE_STABLE" in os.environ:
        STABLE.write_text("".join(f"{line}\n" for line in sorted({*STABLE.read_text().splitlines(), *now})))
    assert STABLE.read_text(encoding="utf-8").splitlines() == now
