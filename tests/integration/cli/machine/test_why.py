import getpass
from collections.abc import Callable
from datetime import datetime, timedelta
from uuid import UUID

import pytest
from shepherd_core.bmdb.machines import pauses
from shepherd_core.bmdb.wire import server
from shepherd_core.bmdb.work import work
from shepherd_core.domain.errors.machine import SshTimedOut
from shepherd_core.domain.machine import Process

from shepherdctl.descriptions.cures import CURES
from tests.support.bmdb.fleet import HOUR, Fleet, claimed, ids
from tests.support.bmdb.work_ends import attempt, failed, finish_recovery
from tests.support.command_line import CommandLine

START, RECOVER = Process.AGENT_START, Process.RECOVERY
REASON = ("--reason", "cable replaced")
GIVEN_UP_FOR = "still unhealthy after reboot 3 times"


def given_up(fleet: Fleet) -> UUID:
    return fleet.quarantine(fleet.unhealthy_machine(), GIVEN_UP_FOR)


def locked(fleet: Fleet) -> UUID:
    machine_id = fleet.provided_machine()
    work.start_work(fleet.open_session(), machine_id, "?")
    return machine_id


def paused(fleet: Fleet, interval: int | None = None) -> UUID:
    machine_id = failed(fleet, interval=interval) if interval else fleet.provided_machine()
    about = {"machine_id": machine_id} if interval else {"provider": "static"}
    pauses.pause(fleet.connection, owner="alice", reason="moving racks", seconds=HOUR, **about)
    return machine_id


def held_back(fleet: Fleet) -> UUID:
    machine_id = fleet.unhealthy_machine()
    held = {"until": timedelta(minutes=5), "cause": "the budget of location ams is used up", "kind": "held-back"}
    fleet.plant("work_backoff", machine_id=machine_id, process=RECOVER, **held)
    return machine_id


def rebooted(fleet: Fleet, *, in_vain: bool = False) -> UUID:
    """Plant a machine that was rebooted; *in_vain*: no agent could be started since."""
    machine_id = fleet.unhealthy_machine()
    session = fleet.open_session()
    works = claimed(session, RECOVER)
    attempt(session, works)
    finish_recovery(session, works, 120, 1800)
    if in_vain:
        fleet.pass_time(120)
        work.fail(session, dict.fromkeys(claimed(session, START), work.Failure(SshTimedOut("no answer"), 300)))
    session.close()
    return machine_id


DUE = "None, ends None, next 0: due"
NO_AGENT = "not_needed, ends None, next None: it has no agent that could be unhealthy"
STARTED = "not_needed, ends None, next None: its agent was started"
REPORTS = "not_due, ends 9, next 9: its agent reports"
NOT_PROVIDED = "not_provided, ends None, next None: not provided yet"
GIVEN_UP = f"quarantined, ends None, next None: in quarantine: {GIVEN_UP_FOR}"
INSTALLED = "installed, ends None, next None: the requested system is installed: no loop works on it any more"
FAILED = "failed, ends None, next None: it failed for good at its provider, and keeps its place: no disk"
PAUSED = "paused, ends 60, next {}: paused by alice: moving racks"
HELD_BACK = "backoff, ends 5, next 5: waiting: the budget of location ams is used up"
# What a plant makes, and what the Initializer and the Recoverer would do: a block ends, and it is next, in minutes.
CASES: dict[str, tuple[Callable[[Fleet], UUID], str, str]] = {
    "bare": (Fleet.bare_machine, NOT_PROVIDED, NOT_PROVIDED),
    "provided": (Fleet.provided_machine, DUE, NO_AGENT),
    "agent just started": (
        Fleet.started_machine,
        STARTED,
        "not_due, ends 30, next 30: its agent was started recently, and has not reported yet",
    ),
    "reporting": (lambda fleet: fleet.reporting_machine(60), STARTED, REPORTS),
    "unhealthy": (Fleet.unhealthy_machine, STARTED, DUE),
    "failed": (failed, "backoff, ends 10, next 10: backing off: nothing listens", NO_AGENT),
    "in quarantine": (given_up, GIVEN_UP, GIVEN_UP),
    "installed": (lambda fleet: fleet.install(fleet.unhealthy_machine()), INSTALLED, INSTALLED),
    "failed for good": (lambda fleet: fleet.fail(fleet.provided_machine(), "no disk"), FAILED, FAILED),
    "failed for good, and its agent reports": (lambda fleet: fleet.fail(fleet.reporting_machine(60)), STARTED, REPORTS),
    "locked": (locked, "locked, ends 60, next 60: being worked on by test (a test)", NO_AGENT),
    "paused": (paused, PAUSED.format(60), NO_AGENT),
    "paused, and backing off for longer": (lambda fleet: paused(fleet, 2 * HOUR), PAUSED.format(120), NO_AGENT),
    "held back": (held_back, STARTED, HELD_BACK),
    "rebooted": (
        rebooted,
        "not_due, ends 2, next 2: it may still be booting: its boot wait is not over",
        "not_due, ends None, next None: it is expected back, and no agent start has failed since",
    ),
    "rebooted, in vain": (
        lambda fleet: rebooted(fleet, in_vain=True),
        "backoff, ends 5, next 5: backing off: no answer",
        "not_due, ends 28, next 28: it is expected back, and its grace is not over",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_first_thing_that_blocks_each_process_is_shown(fleet: Fleet, shepherdctl: CommandLine, case: str) -> None:
    plant, *expected = CASES[case]
    failed(fleet)  # another machine, whose failures are not this one's
    machine_id = plant(fleet)
    told = shepherdctl.load("machine", "why", str(machine_id))
    now = server.now(fleet.connection)

    def minutes(moment: str | None) -> int | None:
        return None if moment is None else round((datetime.fromisoformat(moment) - now).total_seconds() / 60)

    assert [loop["loop"] for loop in told["loops"]] == ["initializer", "recoverer"]
    assert [
        f"{one['blocked_by']}, ends {minutes(one['until'])}, next {minutes(one['next_at'])}: {one['reason']}"
        for one in told["loops"]
    ] == expected
    assert [one["eligible"] for one in told["loops"]] == [one["blocked_by"] is None for one in told["loops"]]
    shown = shepherdctl.read("machine", "why", str(machine_id))
    assert [one["reason"] for one in told["loops"] if one["reason"] not in shown] == []
    session = fleet.open_session()
    handed_out = [bool(ids(claimed(session, process))) for process in (START, RECOVER)]
    assert handed_out == [one["eligible"] for one in told["loops"]]


def test_retry_ends_backoffs_and_leaves_a_line_of_history(fleet: Fleet, shepherdctl: CommandLine) -> None:
    machine_id = failed(fleet)
    arguments = ("machine", "retry", str(machine_id), *REASON)
    tried = shepherdctl.load(*arguments, "--dry-run")
    assert [backoff["cause"] for backoff in tried["machines"][0]["ended"]] == ["nothing listens"]
    assert (claimed(fleet.open_session(), START), fleet.events(machine_id)) == ([], ["Started", "Failed"])
    assert "ssh-refused: nothing listens" in shepherdctl.read(*arguments)
    *_, event = shepherdctl.load("history", str(machine_id))
    told = (event["loop"], event["event"], event["cause"])
    assert told == ("operator", "Retried", f"{getpass.getuser()}: cable replaced")
    (held,) = claimed(fleet.open_session(), START)
    assert held.last_interval_seconds is None, "it begins with a short wait again"


def test_a_backoff_that_is_over_is_ended_of_suspects_alone(fleet: Fleet, shepherdctl: CommandLine) -> None:
    """Or it would be worked on alone for longer, of which the dry run tells too."""
    machine_id = failed(fleet)
    fleet.pass_time(600)
    arguments = ("machine", "retry", str(machine_id), *REASON)
    assert "no backoff is in force" in shepherdctl.told(*arguments)
    assert fleet.events(machine_id) == ["Started", "Failed"]
    fleet.sql("UPDATE work_backoff SET deaths = 1")
    tried = shepherdctl.load(*arguments, "--dry-run")["machines"]
    assert (len(tried[0]["ended"]), shepherdctl.load(*arguments)["machines"]) == (1, tried)


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
    shown = shepherdctl.read("machine", "show", str(machine_id))
    assert (GIVEN_UP_FOR in shown, shown.count(CURES["steps-used-up"])) == (True, 1)
    fleet.report([fleet.recover(machine_id, 2)])
    assert "2 times in the last day" in shepherdctl.read("machine", "show", str(machine_id))
    assert shepherdctl.read("machine", "list").splitlines()[0].split()[-2:] == ["RECOVERED", "STATE"]
    why = shepherdctl("machine", "why", str(machine_id))
    assert f"{GIVEN_UP_FOR}, and its agent reports again" in why.stdout
    assert why.stderr.endswith(f"\nreports-again: {CURES['reports-again']} (docs/failures#reports-again)\n")

    arguments = ("machine", "unquarantine", str(machine_id), *REASON, "--owner", "carol")
    assert shepherdctl.load(*arguments, "--dry-run")["machines"][0]["cause"] == GIVEN_UP_FOR
    assert claimed(fleet.open_session(), START) == []
    assert GIVEN_UP_FOR in shepherdctl.read(*arguments)
    assert ids(claimed(fleet.open_session(), START)) == [machine_id]
    assert "carol: cable replaced" in shepherdctl.read("history", str(machine_id))
