"""The commands that pause machines."""

import getpass

import pytest
from shepherd_core.bmdb.machines import pauses
from shepherd_core.domain.machine import Process

from tests.support.bmdb.fleet import Fleet, claimed, ids
from tests.support.command_line import CommandLine

REASON = ("--reason", "network maintenance")


@pytest.mark.parametrize(
    ("arguments", "covers"),
    [
        ("--all", "everything"),
        ("--machine machine-1", "machine machine-1 ({machine_id})"),
        ("--loop initializer", "loop Initializer"),
        ("--provider static", "provider static"),
        ("--location ams", "location ams"),
        ("--label role=db --label batch --loop initializer", "loop Initializer, label batch and role=db"),
        (
            "--machine machine-1 --loop initializer --provider static",
            "machine machine-1 ({machine_id}), loop Initializer, provider static",
        ),
    ],
)
def test_no_loop_takes_what_a_pause_covers(fleet: Fleet, arguments: str, covers: str) -> None:
    """That is what an operator pauses for; and after a resume, work must not wait for a backoff."""
    machine_id = fleet.locate(fleet.provided_machine(), "ams")
    fleet.label("machine-1", {"role": "db", "batch": "7"})
    shepherdctl = CommandLine(fleet.settings)
    shown = shepherdctl.read("pause", *arguments.split(), *REASON, "--yes")
    assert covers.format(machine_id=machine_id) in shown
    assert claimed(fleet.open_session(), Process.AGENT_START) == []
    (pause,) = shepherdctl.load("pauses")
    assert pause["pause_id"] in shown
    assert f"  {covers.format(machine_id=machine_id)}  " in shepherdctl.read("pauses")
    assert (pause["owner"], pause["reason"], pause["expires_at"]) == (getpass.getuser(), REASON[1], None)
    shepherdctl.read("resume", pause["pause_id"][:8])
    assert ids(claimed(fleet.open_session(), Process.AGENT_START)) == [machine_id]


def test_every_machine_that_is_named_is_paused(fleet: Fleet, shepherdctl: CommandLine) -> None:
    """The last one alone was, and its operator went to work on the others; one that is named twice is one machine."""
    first, second, other = fleet.machines(3)
    named = ("--machine", "machine-1", "--machine", str(second), "--machine", str(first))
    made = shepherdctl.load("pause", *named, "--loop", "initializer", *REASON, "--yes")
    assert [pause["machine_id"] for pause in made] == [str(first), str(second)]
    assert {pause["pause_id"] for pause in made} == {pause["pause_id"] for pause in shepherdctl.load("pauses")}
    assert ids(claimed(fleet.open_session(), Process.AGENT_START)) == [other]


def test_of_machines_of_which_one_cannot_be_paused_none_is(own_fleet: Fleet) -> None:
    """When the command is typed again, the machines that it had paused would have two pauses."""
    first, second = own_fleet.machines(2)
    own_fleet.sql(f"ALTER TABLE pauses ADD CHECK (machine_id <> '{second}')")
    named = ("--machine", str(first), "--machine", str(second))
    CommandLine(own_fleet.settings).told("pause", *named, *REASON, "--yes", status=1)
    assert own_fleet.sql("SELECT FROM pauses") == []


def test_a_pause_can_end_by_itself(fleet: Fleet, shepherdctl: CommandLine) -> None:
    (made,) = shepherdctl.load("pause", "--all", "--for", "2h", "--owner", "carol", *REASON)
    assert (made["seconds"], made["owner"]) == (7200, "carol")
    assert "in 2 h" in shepherdctl.read("pauses")
    fleet.pass_time(7201)
    assert shepherdctl.load("pauses") == []
    assert shepherdctl.told("pauses") == "nothing is paused"


def test_a_pause_by_scope_is_ended_by_the_same_words(fleet: Fleet, shepherdctl: CommandLine) -> None:
    fleet.locate(fleet.provided_machine(), "ams")
    scopes = {"--label role=db": 0, "--location ams": 1, "--location ams --label role=db": 0}
    for scope, machines in scopes.items():
        assert f"covers {machines} machine" in shepherdctl("pause", *scope.split(), *REASON, "--yes").stderr
    for left, scope in zip((2, 1, 0), scopes, strict=True):
        shepherdctl.read("resume", *scope.split(), "--yes")
        assert len(shepherdctl.load("pauses")) == left


@pytest.mark.parametrize("words", ["--all", "{carol}", "--location ams"])
def test_somebody_elses_pause_ends_after_it_was_shown_and_confirmed(fleet: Fleet, words: str) -> None:
    fleet.locate(fleet.provided_machine(), "ams")
    shepherdctl = CommandLine(fleet.settings)
    (made,) = shepherdctl.load("pause", "--machine", "machine-1", "--owner", "carol", *REASON)
    arguments = ["resume", *words.format(carol=made["pause_id"][:8]).split()]
    assert "carol: network maintenance" in shepherdctl.told(*arguments, status=2)
    shepherdctl.on_terminal(80, *arguments, typed="yes\n", status=1)
    assert len(shepherdctl.load("pauses")) == 1
    shepherdctl.on_terminal(80, *arguments, typed="1 pause\n")
    assert shepherdctl.load("pauses") == []


def test_resuming_all_leaves_what_the_provisioner_set_aside(fleet: Fleet, shepherdctl: CommandLine) -> None:
    """Those machines are not at the provider; no operator paused them, and the Provisioner takes them back itself."""
    machine_id = fleet.provided_machine()
    pauses.pause(fleet.connection, owner="provisioner", reason="not listed", machine_id=machine_id)
    shepherdctl.read("pause", "--all", *REASON)
    shepherdctl.read("pause", "--machine", str(machine_id), *REASON)
    result = shepherdctl("resume", "--all", "--yes")
    assert len(result.stdout.splitlines()) == 1 + 2
    assert "1 machine left paused, set aside by the Provisioner" in result.stderr
    (left,) = shepherdctl.load("pauses")
    assert left["owner"] == "provisioner"
    shepherdctl.read("resume", left["pause_id"].upper(), "--yes")
    assert shepherdctl.load("pauses") == []
