import re

import pytest
from shepherd_core.domain.labels import MOST

from tests.support.bmdb.fleet import Fleet
from tests.support.command_line import CommandLine


@pytest.fixture
def rack(fleet: Fleet) -> Fleet:
    fleet.machines(2)
    fleet.label("machine-1", {"role": "web", "rack": "r12"})
    return fleet


def labels(shepherdctl: CommandLine, name: str) -> dict[str, str]:
    found: dict[str, str] = shepherdctl.load("machine", "show", name)["labels"]
    assert [each["labels"] for each in shepherdctl.load("machine", "list", "--machine", name)] == [found]
    return found


def test_of_the_same_key_the_label_of_an_operator_wins(rack: Fleet, shepherdctl: CommandLine) -> None:
    """Who gave it is in the machine's history."""
    for _ in range(2):  # the second time, nothing is left to change
        shepherdctl.read("machine", "label", "machine-1", "role=db", "gpu=", "old-", "--owner", "ana")
    (event,) = shepherdctl.load("history", "machine-1")
    assert (event["loop"], event["event"], event["cause"]) == ("operator", "Labeled", "ana: gpu role=db old-")
    assert labels(shepherdctl, "machine-1") == {"role": "db", "rack": "r12", "gpu": ""}
    assert "  gpu, rack=r12, role=db  " in shepherdctl.read("machine", "list")
    assert re.search("^labels +gpu, rack=r12, role=db$", shepherdctl.read("machine", "show", "machine-1"), re.MULTILINE)
    rack.label("machine-1", {"role": "cache", "zone": "b"})
    assert labels(shepherdctl, "machine-1") == {"role": "db", "zone": "b", "gpu": ""}
    removed = shepherdctl("machine", "label", "machine-1", "role-").stderr
    assert "role stays: the provider or the machine list names it" in removed
    assert labels(shepherdctl, "machine-1") == {"role": "cache", "zone": "b", "gpu": ""}
    assert labels(shepherdctl, str(rack.intended_machine())) == {}


def test_filters_label_every_machine_that_matches_or_none(rack: Fleet, shepherdctl: CommandLine) -> None:
    changed = shepherdctl.load("machine", "label", "--provider", "static", "moves=2027", "--yes")["machines"]
    assert {each["provider_id"]: each["labels"] for each in changed} == {
        "machine-1": {"role": "web", "rack": "r12", "moves": "2027"},
        "machine-2": {"moves": "2027"},
    }
    before = rack.content()
    many = [f"key{number}=1" for number in range(MOST - 2)]
    command = ("machine", "label", "--provider", "static", "--yes", *many)
    assert f"{MOST + 1} labels, but at most {MOST} are possible" in shepherdctl.told(*command, status=1)
    assert rack.content() == before
    shown = shepherdctl.load(*command[:2], "machine-2", *many, "--dry-run")["machines"]
    assert len(shown[0]["labels"]) == MOST - 1
    assert rack.content() == before


def test_a_selection_by_labels_wants_all_of_them(rack: Fleet, shepherdctl: CommandLine) -> None:
    shepherdctl.read("machine", "label", "machine-2", "role=db", "gpu=")
    for filters, found in {
        "role=web": {"machine-1"},
        "role": {"machine-1", "machine-2"},
        "role=db": {"machine-2"},
        "gpu=": {"machine-2"},
        "role --label rack=r12": {"machine-1"},
        "role=web --label role=db": set(),
        "web": set(),
    }.items():
        listed = shepherdctl.load("machine", "list", "--label", *filters.split())
        assert {each["provider_id"] for each in listed} == found, filters
        if found:
            shepherdctl.read("pause", "--label", *filters.split(), "--reason", "r", "--yes")
        assert {each["provider_id"] for each in shepherdctl.load("machine", "list", "--paused")} == found, filters
        rack.sql("DELETE FROM pauses")
