import re
import tomllib
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from shepherd_core.domain.errors import ShepherdError
from shepherd_core.settings.base import PLACEHOLDER
from shepherd_core.settings.providers import BUILT_IN

from shepherdctl.deployment.answers import Answers, read
from shepherdctl.deployment.machine_lists import LISTS
from shepherdctl.deployment.template import parameters
from simulator.cost.formula import month
from simulator.cost.inputs import Inputs
from tests.support.deployment.examples import EXAMPLES, filled_in

EVERY_EXAMPLE = pytest.mark.parametrize("folder", EXAMPLES, ids=lambda folder: folder.name)


@cache
def answers(folder: Path) -> Answers:
    return read(filled_in(folder)["shepherd.toml"].encode(), parameters())


def test_each_provider_in_use_has_an_example() -> None:
    """Equinix closed its service."""
    assert {folder.name for folder in EXAMPLES} == {*BUILT_IN} - {"equinix"}


@EVERY_EXAMPLE
def test_what_an_example_names_in_the_bucket_is_put_there(folder: Path) -> None:
    named = re.findall(r's3://[^"]+/([^"/]+)"', answers(folder).content.decode())
    assert set(named) == set(answers(folder).documents) != set()


@pytest.mark.parametrize(("name", "machines"), [("static", 10), ("redfish", 24)])
def test_a_list_of_machines_is_read_when_filled_in(name: str, machines: int) -> None:
    folder = next(each for each in EXAMPLES if each.name == name)
    content = filled_in(folder)["machines.json"].encode()
    assert len(LISTS[name](lambda: content).parse(content)) == machines
    assert tomllib.loads(answers(folder).content.decode())["provisioner"]["max_machines"] == machines
    with pytest.raises(ShepherdError, match=PLACEHOLDER):
        LISTS[name](lambda: b"").parse((folder / "machines.json").read_bytes())


@EVERY_EXAMPLE
def test_the_cost_is_computed(folder: Path) -> None:
    page = (folder / "README.md").read_text(encoding="utf-8")
    command = r"python -m simulator.cost --machines (\d+)((?: --set \w+=[\d.]+)*)"
    found = re.search(command + r"\n\ncomputes ([\d.]+) dollars", page)
    assert found
    machines, changes, total = found.groups()
    given = {name: float(value) for name, value in re.findall(r"(\w+)=([\d.]+)", changes)}
    inputs = replace(Inputs(), **given)  # type: ignore[arg-type]  # counts may be fractions here
    assert f"{sum(month(int(machines), inputs).values()):.2f}" == total
    minutes = [int(each) for each in answers(folder).parameters["LoopMinutes"].split(",")]
    assert inputs.ticks_per_minute == pytest.approx(sum(1 / each for each in minutes) / len(minutes))
