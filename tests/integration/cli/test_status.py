"""The command that tells how the fleet is."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from shepherd_core.domain.states import State

from tests.support.bmdb.fleet import HOUR
from tests.support.command_line import CommandLine

if TYPE_CHECKING:
    from tests.support.bmdb.fleet import Fleet

REASON = "8 of 10 machines stopped reporting, the limit is 20 %"


@pytest.fixture
def shepherdctl(fleet: Fleet) -> CommandLine:
    """Return the command line of a fleet with two machines in every state that a provided machine can have."""
    for _ in range(2):
        fleet.provided_machine()
        fleet.started_machine(60)
        fleet.unhealthy_machine(60)
        fleet.unhealthy_machine(2 * HOUR)
        installed = fleet.started_machine(HOUR)
        fleet.request_installation(installed, 1)
        fleet.report_installation(installed, 1)
    return CommandLine(fleet.settings)


def test_status_counts_the_states_of_the_list(shepherdctl: CommandLine, fleet: Fleet) -> None:
    """Two commands must not contradict each other."""
    apart = fleet.unhealthy_machine()
    fleet.change(apart, f"INSERT INTO machine_quarantine VALUES ('{apart}', now(), '?', '')")
    listed = Counter(machine["state"] for machine in shepherdctl.load("machine", "list"))
    counted = {count["state"]: count["machines"] for count in shepherdctl.load("status")["machines"]}
    assert counted == listed
    assert counted.keys() == set(State) - {State.CREATING, State.FORGOTTEN, State.RELEASED}


@pytest.mark.parametrize(
    ("arguments", "paused"),
    [
        (["--all"], 11),
        (["--provider", "static"], 10),
        (["--loop", "recoverer"], 6),
        (["--loop", "initializer", "--provider", "static"], 2),
        (["--machine", "machine-1"], 1),
        (["--machine", "machine-1", "--loop", "recoverer"], 0),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_status_counts_the_paused_machines_of_the_list(
    shepherdctl: CommandLine, fleet: Fleet, arguments: list[str], paused: int
) -> None:
    """A pause of everything that the counts left out looked like no pause at all."""
    fleet.sql("INSERT INTO machine_creation_intent VALUES (:id, 'equinix', NULL, now())", id=fleet.bare_machine())
    shepherdctl.read("pause", *arguments, "--reason", "maintenance")
    listed = Counter(machine["state"] for machine in shepherdctl.load("machine", "list") if machine["paused"])
    counted = {count["state"]: count["paused"] for count in shepherdctl.load("status")["machines"] if count["paused"]}
    assert counted == listed
    assert listed.total() == paused


def test_each_provider_has_a_line_with_states_and_suspensions(shepherdctl: CommandLine, fleet: Fleet) -> None:
    """Columns of what does not occur only hide what does."""
    fleet.provided_machine("equinix")
    fleet.sql("INSERT INTO machine_creation_intent VALUES (:id, 'equinix', NULL, now())", id=fleet.bare_machine())
    result = shepherdctl("status")
    assert [line.split() for line in result.stdout.splitlines()[1:]] == [
        ["equinix", "2", "1", "1"],
        ["static", "10", "2", "2", "2", "2", "2"],
    ]
    assert result.stdout.splitlines()[0].split("  ")[:4] == ["PROVIDER", "MACHINES", "CREATING", "NEEDS AGENT"]
    assert result.stderr == ""


def test_a_suspension_is_shown_with_its_figures(shepherdctl: CommandLine, fleet: Fleet) -> None:
    """The reason why unhealthy machines are left alone must be visible; an ended suspension still matters."""
    fleet.sql(
        "INSERT INTO recovery_suspensions VALUES ('equinix', '', now() - interval '4 minutes', NULL, :reason), "
        "('static', 'ams', now() - interval '3 hours', now() - interval '2 hours', 'before'), "
        "('static', 'fra', now() - interval '3 days', now() - interval '2 days', 'forgotten')",
        reason=REASON,
    )
    lines = [" ".join(line.split()) for line in shepherdctl.read("status").splitlines()[-2:]]
    assert lines == [
        f"recovery suspended for 4 min equinix the whole provider {REASON}",
        "ended 2 h ago static location ams before",
    ]
    assert [(one["provider"], one["reason"]) for one in shepherdctl.load("status")["suspensions"]] == [
        ("equinix", REASON),
        ("static", "before"),
    ]


def test_pauses_in_force_are_mentioned(shepherdctl: CommandLine) -> None:
    """They too are why nothing happens."""
    shepherdctl.read("pause", "--all", "--reason", "maintenance", "--owner", "ana")
    assert shepherdctl("status").stderr == "1 pause in force: see shepherdctl pauses\n"


def test_machines_waiting_for_the_limit_are_shown_with_their_age(shepherdctl: CommandLine, fleet: Fleet) -> None:
    """An operator looks here first if a fleet does not grow; a figure older than a day is not shown."""
    fleet.sql(
        "INSERT INTO provisioner_lock (provider, waiting, max_machines, waiting_seen_at) VALUES "
        "('equinix', 20, 50, now() - interval '3 minutes'), ('static', 0, 50, now()), "
        "('ec2', 7, 50, now() - interval '25 hours')"
    )
    lines = [" ".join(line.split()) for line in shepherdctl.read("status").splitlines()[-2:]]
    assert lines == [
        "WAITING PROVIDER REASON SEEN",
        "20 equinix the limit of 50 machines is reached 3 min ago",
    ]
    (told,) = shepherdctl.load("status")["waiting"]
    assert (told["provider"], told["waiting"], told["max_machines"]) == ("equinix", 20, 50)


def test_an_empty_fleet_is_reported_as_empty(fleet: Fleet) -> None:
    """Not even the head of a table, and no failure."""
    result = CommandLine(fleet.settings)("status")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "there are no machines\n")
