"""The commands that tell why nothing happens to a machine, and let it happen."""

import getpass
from collections.abc import Callable
from datetime import datetime
from typing import Any
from uuid import UUID

import pytest
from shepherd_core.bmdb.machines import pauses
from shepherd_core.bmdb.recovery import remediation
from shepherd_core.bmdb.wire import server
from shepherd_core.bmdb.work import history, work
from shepherd_core.domain.errors import HeldBack
from shepherd_core.domain.errors.machine import SshTimedOut
from shepherd_core.domain.machine import Process
from shepherd_core.domain.remediation import REBOOT, USUAL_TIMEOUTS, NextStep, Step

from shepherdctl.descriptions.cures import CURES
from tests.support import defaults
from tests.support.bmdb.fleet import HOUR, Fleet, claimed, ids
from tests.support.bmdb.work_ends import failed, finish_recovery
from tests.support.command_line import CommandLine

START, RECOVER = Process.AGENT_START, Process.RECOVERY
REASON = ("--reason", "cable replaced")


def given_up(fleet: Fleet) -> UUID:
    machine_id = fleet.unhealthy_machine()
    session = fleet.open_session()
    remediation.quarantine(session, dict.fromkeys(claimed(session, RECOVER), "still unhealthy after reboot 3 times"))
    session.close()
    return machine_id


def locked(fleet: Fleet) -> UUID:
    machine_id = fleet.provided_machine()
    work.start_work(fleet.open_session(), machine_id, "?")
    return machine_id


def paused(fleet: Fleet) -> UUID:
    machine_id = fleet.provided_machine()
    pauses.pause(fleet.connection, owner="alice", reason="moving racks", provider="static", seconds=HOUR)
    return machine_id


def failed_and_paused(fleet: Fleet) -> UUID:
    machine_id = failed(fleet, interval=2 * HOUR)
    pauses.pause(fleet.connection, owner="alice", reason="moving racks", machine_id=machine_id, seconds=HOUR)
    return machine_id


def held_back(fleet: Fleet) -> UUID:
    machine_id = fleet.unhealthy_machine()
    session = fleet.open_session()
    (held,) = claimed(session, RECOVER)
    reason = HeldBack("the budget of location ams, 1 an hour, is used up", 300)
    remediation.leave_alone(session, {held: reason}, defaults.RULES.backoff)
    session.close()
    return machine_id


def awaited(fleet: Fleet) -> UUID:
    machine_id = fleet.unhealthy_machine()
    session = fleet.open_session()
    works = claimed(session, RECOVER)
    remediation.record_attempts(session, dict.fromkeys(works, NextStep(Step(REBOOT, 1, USUAL_TIMEOUTS), 1)))
    finish_recovery(session, works, 120, 1800)
    session.close()
    return machine_id


def in_vain(fleet: Fleet) -> UUID:
    """Plant a machine that was rebooted and on which no agent could be started since."""
    machine_id = awaited(fleet)
    fleet.pass_time(120)
    session = fleet.open_session()
    (held,) = claimed(session, START)
    work.fail(session, {held: work.Failure(SshTimedOut("no answer"), 300)})
    session.close()
    return machine_id


Verdict = tuple[str | None, str]
DUE: Verdict = (None, "due")
NO_AGENT = ("not_needed", "it has no agent that could be unhealthy")
STARTED, REPORTS = ("not_needed", "its agent was started"), ("not_due", "its agent reports")
SILENT = ("not_due", "its agent was started recently, and has not reported yet")
NOT_PROVIDED = ("not_provided", "not provided yet")
GIVEN_UP = ("quarantined", "in quarantine: still unhealthy after reboot 3 times")
INSTALLED = ("installed", "the requested system is installed: no loop works on it any more")
FAILED = ("failed", "it failed for good at its provider, and keeps its place: no disk")
CASES: dict[str, tuple[Callable[[Fleet], UUID], Verdict, Verdict]] = {
    "bare": (Fleet.bare_machine, NOT_PROVIDED, NOT_PROVIDED),
    "provided": (Fleet.provided_machine, DUE, NO_AGENT),
    "agent just started": (Fleet.started_machine, STARTED, SILENT),
    "reporting": (lambda fleet: fleet.reporting_machine(60), STARTED, REPORTS),
    "unhealthy": (Fleet.unhealthy_machine, STARTED, DUE),
    "failed": (failed, ("backoff", "backing off: nothing listens"), NO_AGENT),
    "in quarantine": (given_up, GIVEN_UP, GIVEN_UP),
    "installed": (lambda fleet: fleet.install(fleet.unhealthy_machine()), INSTALLED, INSTALLED),
    "failed for good": (lambda fleet: fleet.fail(fleet.provided_machine(), "no disk"), FAILED, FAILED),
    "failed for good, and its agent reports": (lambda fleet: fleet.fail(fleet.reporting_machine(60)), STARTED, REPORTS),
    "locked": (locked, ("locked", "being worked on by test (a test)"), NO_AGENT),
    "paused": (paused, ("paused", "paused by alice: moving racks"), NO_AGENT),
    "paused, and backing off for longer": (
        failed_and_paused,
        ("paused", "paused by alice: moving racks"),
        NO_AGENT,
    ),
    "held back": (held_back, STARTED, ("backoff", "waiting: the budget of location ams, 1 an hour, is used up")),
    "rebooted": (
        awaited,
        ("not_due", "it may still be booting: its boot wait is not over"),
        ("not_due", "it is expected back, and no agent start has failed since"),
    ),
    "rebooted, in vain": (
        in_vain,
        ("backoff", "backing off: no answer"),
        ("not_due", "it is expected back, and its grace is not over"),
    ),
}


ENDS = {
    ("provided", "initializer"): (None, 0),
    ("failed", "initializer"): (10, 10),
    ("reporting", "recoverer"): (9, 9),
    ("agent just started", "recoverer"): (30, 30),
    ("paused", "initializer"): (60, 60),
    ("paused, and backing off for longer", "initializer"): (60, 120),
    ("locked", "initializer"): (60, 60),
    ("held back", "recoverer"): (5, 5),
    ("in quarantine", "recoverer"): (None, None),
    ("rebooted", "initializer"): (2, 2),
    ("rebooted", "recoverer"): (None, None),
    ("rebooted, in vain", "recoverer"): (28, 28),
}
"""In how many minutes a block ends, and the next try is; unknown times are not invented."""


@pytest.mark.parametrize("case", CASES)
def test_the_first_thing_that_blocks_each_process_is_shown(fleet: Fleet, shepherdctl: CommandLine, case: str) -> None:
    plant, *expected = CASES[case]
    failed(fleet)  # another machine, whose failures are not this one's
    machine_id = plant(fleet)
    told = shepherdctl.load("machine", "why", str(machine_id))
    assert [loop["loop"] for loop in told["loops"]] == ["initializer", "recoverer"]
    assert [(loop["blocked_by"], loop["reason"]) for loop in told["loops"]] == expected
    assert [loop["eligible"] for loop in told["loops"]] == [block is None for block, _ in expected]
    now = server.now(fleet.connection)
    ending = {(case, loop["loop"]): (ends(loop, "until", now), ends(loop, "next_at", now)) for loop in told["loops"]}
    assert ending == {key: ENDS.get(key, value) for key, value in ending.items()}
    shown = shepherdctl.read("machine", "why", str(machine_id))
    for _, because in expected:
        assert because in shown
    session = fleet.open_session()
    handed_out = [bool(ids(claimed(session, process))) for process in (START, RECOVER)]
    assert handed_out == [block is None for block, _ in expected]


def ends(process: dict[str, Any], name: str, now: datetime) -> int | None:
    """Return in how many minutes a block of a process ends, by its verdict."""
    return process[name] and round((datetime.fromisoformat(process[name]) - now).total_seconds() / 60)


def test_retry_ends_backoffs_and_leaves_a_line_of_history(fleet: Fleet, shepherdctl: CommandLine) -> None:
    machine_id = failed(fleet)
    tried = shepherdctl.load("machine", "retry", str(machine_id), *REASON, "--dry-run")
    assert [backoff["cause"] for backoff in tried["machines"][0]["ended"]] == ["nothing listens"]
    assert claimed(fleet.open_session(), START) == []
    assert fleet.events(machine_id) == ["Started", "Failed"]
    shown = shepherdctl.read("machine", "retry", str(machine_id), *REASON)
    assert "ssh-refused: nothing listens" in shown
    (line,) = (line for line in history.read_history(fleet.connection, machine_id) if line.event == "Retried")
    assert (line.process, line.failed_cause) == ("operator", f"{getpass.getuser()}: cable replaced")
    assert "cable replaced" in shepherdctl.read("history", str(machine_id))
    (held,) = claimed(fleet.open_session(), START)
    assert held.last_interval_seconds is None, "it begins with a short wait again"


def test_a_backoff_that_is_over_is_only_ended_of_a_suspect(fleet: Fleet, shepherdctl: CommandLine) -> None:
    """Or it would be worked on alone for longer, of which the dry run tells too."""
    machine_id = failed(fleet)
    fleet.pass_time(600)
    arguments = ("machine", "retry", str(machine_id), *REASON)
    assert "no backoff is in force" in shepherdctl.told(*arguments)
    assert fleet.events(machine_id) == ["Started", "Failed"]
    fleet.sql("UPDATE work_backoff SET deaths = 1")
    tried = shepherdctl.load(*arguments, "--dry-run")["machines"]
    assert len(tried[0]["ended"]) == 1
    assert shepherdctl.load(*arguments)["machines"] == tried


def test_retry_can_be_of_one_process(fleet: Fleet, shepherdctl: CommandLine) -> None:
    machine_id = failed(fleet, process=RECOVER)
    arguments = ("machine", "retry", str(machine_id), *REASON, "--owner", "carol", "--loop")
    for more in (["--dry-run"], []):
        assert shepherdctl.load(*arguments, "initializer", *more)["machines"][0]["ended"] == []
    assert claimed(fleet.open_session(), RECOVER) == []
    assert len(shepherdctl.load(*arguments, "recoverer")["machines"][0]["ended"]) == 1
    assert ids(claimed(fleet.open_session(), RECOVER)) == [machine_id]


def test_a_machine_in_quarantine_is_seen_and_given_back(fleet: Fleet, shepherdctl: CommandLine) -> None:
    machine_id = given_up(fleet)
    assert "quarantined for " in shepherdctl.read("machine", "list")
    assert [machine["state"] for machine in shepherdctl.load("machine", "list")] == ["quarantined"]
    shown = shepherdctl.read("machine", "show", str(machine_id))
    assert "still unhealthy after reboot 3 times" in shown
    assert shown.count(CURES["steps-used-up"]) == 1
    fleet.report([fleet.recover(machine_id, 2)])
    assert "2 times in the last day" in shepherdctl.read("machine", "show", str(machine_id))
    assert shepherdctl.read("machine", "list").splitlines()[0].split()[-2:] == ["RECOVERED", "STATE"]
    why = shepherdctl("machine", "why", str(machine_id))
    assert "still unhealthy after reboot 3 times, and its agent reports again" in why.stdout
    assert why.stderr.endswith(f"\nreports-again: {CURES['reports-again']} (docs/failures#reports-again)\n")
    (counted,) = shepherdctl.load("status", status=3)["machines"]
    assert (counted["state"], counted["machines"]) == ("quarantined", 1)

    arguments = ("machine", "unquarantine", str(machine_id), *REASON, "--owner", "carol")
    assert shepherdctl.load(*arguments, "--dry-run")["machines"][0]["cause"] == "still unhealthy after reboot 3 times"
    assert claimed(fleet.open_session(), START) == []
    assert "still unhealthy after reboot 3 times" in shepherdctl.read(*arguments)
    assert ids(claimed(fleet.open_session(), START)) == [machine_id]
    assert "carol: cable replaced" in shepherdctl.read("history", str(machine_id))
    assert "is not in quarantine" in shepherdctl.told(*arguments, status=1)
