"""The examples are refused as they are and, filled in, complete: up to the plan of their deployment."""

import re
import tomllib
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from shepherd_core.domain.errors import ShepherdError
from shepherd_core.settings.base import PLACEHOLDER
from shepherd_core.settings.functions.specs import FUNCTIONS, LOOPS
from shepherd_core.settings.providers import BUILT_IN, find
from shepherd_core.settings.sources import load

from shepherdctl.deployment.answers import Answers, read
from shepherdctl.deployment.machine_lists import LISTS
from shepherdctl.deployment.plan import DeployStack, Found, PutObject, StoreSecret, plan
from shepherdctl.deployment.template import Package, parameters
from simulator.cost.formula import month
from simulator.cost.inputs import Inputs
from tests.support.deployment.deployments import environment, stack_of
from tests.support.deployment.examples import EXAMPLES, filled_in

EVERY_EXAMPLE = pytest.mark.parametrize("folder", EXAMPLES, ids=lambda folder: folder.name)
PACKAGE = Package("code/template", {"code/template": b"{}"})


@cache
def answers(folder: Path) -> Answers:
    return read(filled_in(folder)["shepherd.toml"].encode(), parameters())


def documents(folder: Path) -> dict[str, bytes]:
    files = filled_in(folder)
    return {name: files.get(name, "a certificate").encode() for name in answers(folder).documents}


def test_each_provider_in_use_has_an_example() -> None:
    """Equinix closed its service."""
    assert {folder.name for folder in EXAMPLES} == {*BUILT_IN} - {"equinix"}


@EVERY_EXAMPLE
def test_the_answers_make_a_deployment(folder: Path) -> None:
    stack = stack_of(answers(folder).parameters)
    assert stack.refusals() == []
    assert stack.resources
    assert stack.parameters["Provider"] == folder.name


@EVERY_EXAMPLE
def test_the_plan_makes_everything_that_is_named(folder: Path) -> None:
    given = answers(folder)
    changes = plan(given, Found("123456789012"), documents(folder), {}, PACKAGE)
    put = {each.key for each in changes if isinstance(each, PutObject)}
    assert put == {"settings.toml", "code/template", *(f"documents/{name}" for name in given.documents)}
    secrets = {each.name for each in changes if isinstance(each, StoreSecret)}
    assert {given.parameter(name) for name in given.needed_secrets} <= secrets
    assert isinstance(changes[-1], DeployStack)


@EVERY_EXAMPLE
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_accepts_the_settings(folder: Path, function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = answers(folder)
    for name, value in environment(stack_of(given.parameters), function).items():
        monkeypatch.setenv(name, value)
    assert load(FUNCTIONS[function], document=given.document)
    assert function not in LOOPS or load(find(folder.name).settings, document=given.document)


@EVERY_EXAMPLE
def test_what_the_settings_name_in_the_bucket_may_be_read(folder: Path) -> None:
    given = answers(folder)
    named = set(re.findall(r's3://([^"]+)', given.content.decode()))
    allowed = str(stack_of(given.parameters).statements("InitializerFunction"))
    assert named
    assert {each for each in named if f"arn:aws:s3:::{each}'" not in allowed} == set()
    assert {each.rpartition("/")[2] for each in named} == given.documents.keys()


@pytest.mark.parametrize(("name", "machines"), [("static", 10), ("redfish", 24)])
def test_the_list_of_machines_is_read_when_it_is_filled_in(name: str, machines: int) -> None:
    folder = next(each for each in EXAMPLES if each.name == name)
    content = documents(folder)["machines.json"]
    assert len(LISTS[name](lambda: content).parse(content)) == machines
    assert tomllib.loads(answers(folder).content.decode())["provisioner"]["max_machines"] == machines
    with pytest.raises(ShepherdError, match=PLACEHOLDER):
        LISTS[name](lambda: b"").parse((folder / "machines.json").read_bytes())


@EVERY_EXAMPLE
def test_the_cost_is_computed(folder: Path) -> None:
    page = (folder / "README.md").read_text(encoding="utf-8")
    found = re.search(
        r"python -m simulator.cost --machines (\d+)((?: --set \w+=[\d.]+)*)\n\ncomputes ([\d.]+) dollars", page
    )
    assert found
    machines, changes, total = found.groups()
    given = {name: float(value) for name, value in re.findall(r"(\w+)=([\d.]+)", changes)}
    inputs = replace(Inputs(), **given)  # type: ignore[arg-type]  # counts may be fractions here
    assert f"{sum(month(int(machines), inputs).values()):.2f}" == total
    minutes = [int(each) for each in answers(folder).parameters["LoopMinutes"].split(",")]
    assert inputs.ticks_per_minute == pytest.approx(sum(1 / each for each in minutes) / len(minutes))
