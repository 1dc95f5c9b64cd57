from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from shepherd_core.domain.errors import ConfigError

from shepherdctl.commands.simulate import follower
from simulator.environment import faults


def test_a_faults_file_has_rules_for_calls_and_machine_faults() -> None:
    loaded = faults.parse(
        """{"api": [
            {"do": "answer", "method": "GET", "nth": 2, "times": 0, "status": 429, "retry_after": 1, "body": null},
            {"do": "delay", "seconds": 0.5, "when": "after"}, {"do": "drop", "path": "/devices/{id}"}, {"do": "cut"},
            {"do": "empty_page"}, {"do": "repeat_page"}, {"do": "shrink", "count": 2},
            {"do": "set", "at": "**.state", "value": 7}, {"do": "create_late", "seconds": 3}],
           "machines": [{"at_seconds": 20, "machine": 3, "fault": "stop_agents"}],
           "agent": "broken"}"""
    )
    assert loaded.api[:3] == (
        faults.FakeAnswer(method="GET", nth=2, times=0, status=429, retry_after=1),
        faults.Delay(seconds=0.5, when="after"),
        faults.Drop(path="/devices/{id}"),
    )
    assert len(loaded.api) == 9
    assert loaded.machines == (faults.MachineFault(at_seconds=20, machine=3, fault="stop_agents"),)
    assert (loaded.agent, faults.parse("{}")) == ("broken", faults.Faults())


def test_every_mistake_is_named_with_rule_and_field() -> None:
    text = """{"api": [{"do": "explode"}, {"do": "delay", "second": 1}, {"do": "answer", "status": "500", "nth": 0},
                       {"do": "drop", "path": "devices"}, {"do": "cut", "method": "get"}],
               "machines": [{"at_seconds": -1, "machine": 0, "fault": "melt"}], "more": 1}"""
    with pytest.raises(ConfigError) as caught:
        faults.parse(text, "f.json")
    places = [fault.split(":")[0].split(" is ")[0] for fault in caught.value.faults]
    assert places == [
        *("f.json api[0]", "f.json api[1].seconds", "f.json api[1].second", "f.json api[2].nth"),
        *("f.json api[2].status", "f.json api[3].path", "f.json api[4].method"),
        *("f.json machines[0].at_seconds", "f.json machines[0].fault", "f.json more"),
    ]


def test_a_faults_file_must_exist_and_be_json(tmp_path: Path) -> None:
    for text in ("", "{", "[]", '{"api": {}}'):
        with pytest.raises(ConfigError):
            faults.parse(text)
    with pytest.raises(ConfigError, match=r"missing\.json cannot be read"):
        faults.load(tmp_path / "missing.json")


def test_a_file_that_changed_before_the_fleet_runs_is_followed(tmp_path: Path) -> None:
    """It was read again only after the start-up: a change meanwhile was lost."""
    file, script = tmp_path / "faults.json", faults.Faults()
    told: list[str] = []
    given: list[faults.Faults] = []
    environment: Any = SimpleNamespace(change_faults=given.append)
    view: Any = SimpleNamespace(say=lambda _environment, text, _kind: told.append(text))
    file.write_text('{"machines": [{"at_seconds": 1, "machine": 0, "fault": "hang"}]}')
    follow = follower(environment, view, file, script)
    assert follow(None) is follow(None) is False
    assert [each.machines[0].fault for each in given] == ["hang"]
    file.write_text("{")
    follow(None)
    file.write_text("{}")
    follow(None)
    assert (given[1:], len(told)) == ([script], 3)
