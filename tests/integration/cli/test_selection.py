"""The filters by which commands select machines, and the labels that operators give them to that end."""

import re
from collections.abc import Sequence
from uuid import UUID

import pytest
from shepherd_core.bmdb.machines import pauses
from shepherd_core.domain.errors.machine import SshTimedOut
from shepherd_core.domain.labels import MOST

from tests.support.bmdb.fleet import Fleet
from tests.support.bmdb.work_ends import failed
from tests.support.command_line import CommandLine


@pytest.fixture
def machines(fleet: Fleet) -> dict[UUID, str]:
    failing = failed(fleet, SshTimedOut("no answer"), provider="equinix")
    quarantined = fleet.locate(fleet.provided_machine(), "fra")
    fleet.quarantine(quarantined, "still unhealthy after reboot 3 times")
    fleet.sql("UPDATE machine_quarantine SET quarantined_at = now() - interval '3 days'")
    running = fleet.recover(fleet.locate(fleet.reporting_machine(60), "ams"), 6)
    unhealthy = fleet.locate(fleet.unhealthy_machine(), "ams")
    pauses.pause(fleet.connection, owner="alice", reason="?", machine_id=running)
    return {failing: "failed", quarantined: "quarantined", running: "running", unhealthy: "unhealthy"}


def _listed(fleet: Fleet, machines: dict[UUID, str], *arguments: str) -> list[str]:
    names = {str(machine_id): name for machine_id, name in machines.items()}
    return [names[machine["machine_id"]] for machine in CommandLine(fleet.settings).load("machine", "list", *arguments)]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ("", {"failed", "quarantined", "running", "unhealthy"}),
        ("--state quarantined --state unhealthy", {"quarantined", "unhealthy"}),
        ("--state unhealthy --location fra", set()),
        ("--state installed", set()),
        ("--location fra --location ams --not-paused", {"quarantined", "unhealthy"}),
        ("--paused", {"running"}),
        ("--provider equinix", {"failed"}),
        ("--provider equinix --provider static --text machine-1", {"failed"}),
        ("--cause ssh-timed-out", {"failed"}),
        ("--cause ssh-timed-out --cause steps-used-up", {"failed", "quarantined"}),
        ("--cause steps-used-up", {"quarantined"}),
        ("--cause recovered-often --cause reports-again", {"running"}),
        ("--heartbeat-older 1h", {"unhealthy"}),
        ("--heartbeat-younger 1h", {"running"}),
        ("--state-older 2d", {"quarantined"}),
        ("--state-older 5m --state-younger 1d", {"unhealthy"}),
        ("--machine machine-1 --machine machine-2", {"failed", "quarantined"}),
        ("--machine machine-1 --machine machine-2 --state quarantined", {"quarantined"}),
    ],
)
def test_machines_match_every_filter(fleet: Fleet, machines: dict[UUID, str], filters: str, expected: set[str]) -> None:
    assert set(_listed(fleet, machines, *filters.split())) == expected


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("state", ["quarantined", "unhealthy", "failed", "running"]),
        ("heartbeat", ["unhealthy", "running"]),
        ("state-age", ["quarantined", "unhealthy"]),
        ("recoveries", ["running", "failed"]),
        ("place", ["failed", "running", "unhealthy", "quarantined"]),
    ],
)
def test_all_matches_are_ordered(fleet: Fleet, machines: dict[UUID, str], order: str, expected: Sequence[str]) -> None:
    """Sorting only the machines with the lowest ids would hide the one that is looked for."""
    assert _listed(fleet, machines, "--sort", order)[: len(expected)] == expected
    assert _listed(fleet, machines, "--sort", order, "--limit", "1") == expected[:1]


def test_names_with_numbers_are_ordered_as_people_count(fleet: Fleet) -> None:
    for number in (10, 2, 1):
        machine_id = fleet.locate(fleet.provided_machine(), f"rack{12 - number}")
        fleet.update("machine_provided", machine_id, provider_id=f"x-{number}")
    listed = CommandLine(fleet.settings).load("machine", "list", "--sort", "place")
    assert [each["location"] for each in listed] == ["rack2", "rack10", "rack11"]
    fleet.sql("UPDATE machine_provided SET provider_location = 'rack1'")
    listed = CommandLine(fleet.settings).load("machine", "list")
    assert [each["provider_id"] for each in listed] == ["x-1", "x-2", "x-10"]


@pytest.mark.parametrize("chosen", [False, True], ids=["all", "by their ids"])
@pytest.mark.parametrize("order", ["id", "created"])
def test_pages_follow_each_other(fleet: Fleet, machines: dict[UUID, str], order: str, *, chosen: bool) -> None:
    fleet.sql("UPDATE machines SET machine_created_at = now() - get_byte(uuid_send(machine_id), 0) * interval '1 hour'")
    created = fleet.sql("SELECT machine_id FROM machines ORDER BY machine_created_at DESC, machine_id DESC")
    known = {str(row[0]): None for row in created if row[0] in machines}
    first = ["machine", "list", "--limit", "3", "--sort", order]
    first += [each for name in known if chosen for each in ("--machine", name)]
    shepherdctl, arguments, seen = CommandLine(fleet.settings), first, []
    while arguments:
        result = shepherdctl(*arguments)
        seen += [line.split()[0] for line in result.stdout.splitlines()[1:]]
        _, _, after = result.stderr.strip().partition("--after ")
        arguments = [*first, "--after", after] if after else []
    assert seen == (list(known) if order == "created" else sorted(known))


@pytest.mark.parametrize(
    "arguments",
    [
        "pause --location ams --reason x",
        "machine retry --location ams --reason x",
        "pause --machine machine-3 --machine machine-4 --reason x",
    ],
)
def test_machines_change_after_their_number_is_typed(fleet: Fleet, machines: dict[UUID, str], arguments: str) -> None:
    """A filter may match more than its author thinks; a script must say --yes, and a dry run changes nothing."""
    shepherdctl, words = CommandLine(fleet.settings), arguments.split()
    fleet.sql(
        "INSERT INTO work_backoff (machine_id, process, until, cause, last_interval_seconds) "
        "SELECT machine_id, 'ShepherdRecovery', now() + interval '1 hour', '?', 60 FROM machine_provided "
        "WHERE provider_location = 'ams'"
    )
    before = fleet.content()
    shepherdctl.on_terminal(80, *words, typed="yes\n", status=1)
    assert "dry run: nothing was changed" in shepherdctl(*words, "--dry-run").stderr
    assert fleet.content() == before
    shepherdctl.on_terminal(80, *words, typed="2 machines\n")
    assert fleet.content() != before


def test_the_machines_that_match_are_changed_and_no_others(shepherdctl: CommandLine, machines: dict[UUID, str]) -> None:
    made = shepherdctl.load("pause", "--state", "unhealthy", "--state", "quarantined", "--reason", "x", "--yes")
    shepherdctl.load("pause", "--all", "--reason", "x")
    assert {machines[UUID(pause["machine_id"])] for pause in made} == {"unhealthy", "quarantined"}
    ended = shepherdctl.load("resume", "--location", "fra", "--yes")
    assert [machines[UUID(pause["machine_id"])] for pause in ended] == ["quarantined"]
    unquarantine = ("machine", "unquarantine", "--reason", "x", "--yes")
    unhealthy = next(str(machine_id) for machine_id, name in machines.items() if name == "unhealthy")
    refused = shepherdctl.told(*unquarantine, "--paused", unhealthy, status=1)
    assert "is not in quarantine: nothing was changed" in refused
    released = shepherdctl.load(*unquarantine, "--paused")["machines"]
    assert [machines[UUID(each["machine_id"])] for each in released] == ["quarantined"]
    retried = shepherdctl.load("machine", "retry", "--cause", "ssh-timed-out", "--reason", "x", "--yes")["machines"]
    assert [(machines[UUID(each["machine_id"])], len(each["ended"])) for each in retried] == [("failed", 1)]


# Labels.


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
