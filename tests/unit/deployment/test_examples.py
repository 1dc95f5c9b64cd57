"""The examples are complete: the templates take the answers, functions the settings, and providers the lists."""

import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from shepherd_core.domain.clock import Deadline, SystemClock
from shepherd_core.providers.redfish.machine_list import redfish_list
from shepherd_core.providers.static import StaticProvider
from shepherd_core.settings.document import parse
from shepherd_core.settings.effective import effective
from shepherd_core.settings.functions import FUNCTIONS, LOOPS
from shepherd_core.settings.providers import BUILT_IN, find
from shepherd_core.settings.sources import load

from bench.cost.formula import month
from bench.cost.inputs import Inputs
from tests.support.deployment.deployments import ROOT, environment, stack_of

EXAMPLES = [path.parent for path in sorted((ROOT / "examples").glob("*/README.md"))]
EVERY_EXAMPLE = pytest.mark.parametrize("folder", EXAMPLES, ids=lambda folder: folder.name)


def answers(folder: Path) -> dict[str, str]:
    config = tomllib.loads((folder / "samconfig.toml").read_text(encoding="utf-8"))["default"]
    return dict(item.split("=", 1) for item in config["deploy"]["parameters"]["parameter_overrides"])


def document(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "settings.toml").read_text(encoding="utf-8"))


def test_each_provider_in_use_has_an_example() -> None:
    """Equinix closed its service."""
    assert {folder.name for folder in EXAMPLES} == {*BUILT_IN} - {"equinix"}


@EVERY_EXAMPLE
def test_the_answers_make_a_deployment(folder: Path) -> None:
    stack = stack_of(answers(folder))
    assert stack.refusals() == []
    assert stack.resources
    assert stack.parameters["Provider"] == folder.name


@EVERY_EXAMPLE
def test_sam_is_told_the_same_as_without_an_example(folder: Path) -> None:
    usual, own = (
        tomllib.loads((path / "samconfig.toml").read_text(encoding="utf-8"))["default"] for path in (ROOT, folder)
    )
    del own["deploy"]["parameters"]["parameter_overrides"]
    assert (own["global"], own["deploy"]) == (usual["global"], usual["deploy"])


@EVERY_EXAMPLE
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_accepts_the_settings(folder: Path, function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment(stack_of(answers(folder)), function).items():
        monkeypatch.setenv(name, value)
    read, faults = parse((folder / "settings.toml").read_bytes())
    assert faults == []
    assert effective(read).faults == []
    assert read.provider == folder.name
    assert load(FUNCTIONS[function], document=read)
    assert function not in LOOPS or load(find(folder.name).settings, document=read)


@EVERY_EXAMPLE
def test_the_settings_are_accepted_before_the_deployment(folder: Path) -> None:
    assert effective(parse((folder / "settings.toml").read_bytes())[0]).faults == []


@EVERY_EXAMPLE
def test_what_the_settings_name_in_the_bucket_may_be_read(folder: Path) -> None:
    named = re.findall(r's3://([^"]+)', (folder / "settings.toml").read_text(encoding="utf-8"))
    stack = stack_of(answers(folder))
    allowed = str(stack.statements("InitializerFunction"))
    assert named
    for each in named:
        assert f"arn:aws:s3:::{each}'" in allowed, each
        assert f"s3://{each}" in (folder / "README.md").read_text(encoding="utf-8")


def test_what_instances_are_launched_with_is_permitted() -> None:
    folder = ROOT / "examples" / "ec2"
    ids = re.findall(
        r"(?:subnet|sg|ami|lt)-[0-9a-f]+|m7i[^\"]+", (folder / "settings.toml").read_text(encoding="utf-8")
    )
    assert sorted(ids) == sorted(answers(folder)["Ec2Resources"].split(","))


@pytest.mark.parametrize(("name", "machines"), [("static", 10), ("redfish", 24)])
def test_the_list_of_machines_is_read(name: str, machines: int) -> None:
    content = (ROOT / "examples" / name / "machines.json").read_bytes()
    deadline = Deadline(SystemClock(), 10)
    if name == "redfish":
        assert len(redfish_list(lambda: content).entries(deadline)) == machines
    else:
        assert len(StaticProvider(lambda: content).list_machines(deadline)) == machines
    assert document(ROOT / "examples" / name)["provisioner"]["max_machines"] == machines


@EVERY_EXAMPLE
def test_the_cost_is_computed(folder: Path) -> None:
    page = (folder / "README.md").read_text(encoding="utf-8")
    found = re.search(
        r"python -m bench.cost --machines (\d+)((?: --set \w+=[\d.]+)*)\n\ncomputes ([\d.]+) dollars", page
    )
    assert found
    machines, changes, total = found.groups()
    given = {name: float(value) for name, value in re.findall(r"(\w+)=([\d.]+)", changes)}
    inputs = replace(Inputs(), **given)  # type: ignore[arg-type]  # counts may be fractions here
    assert f"{sum(month(int(machines), inputs).values()):.2f}" == total
    minutes = [int(each) for each in stack_of(answers(folder)).parameters["LoopMinutes"].split(",")]
    assert inputs.ticks_per_minute == pytest.approx(sum(1 / each for each in minutes) / len(minutes))
