"""The table of docs/recovery.md: each row is played with both loops, and the times are those of the page."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from shepherd_core.bmdb.connection import Connection
from shepherd_core.bmdb.machines import lookup, overview, pauses
from shepherd_core.bmdb.machines.overview import Unsteady
from shepherd_core.bmdb.recovery import budget, remediation
from shepherd_core.domain.errors import ShepherdError
from shepherd_core.domain.errors.machine import (
    AgentExited,
    NoAddress,
    SshAuthenticationFailed,
    SshHostKeyChanged,
    SshTimedOut,
)
from shepherd_core.domain.errors.provider import NotSupported, ProviderForbidden, ProviderRefused, ProviderUnavailable
from shepherd_core.domain.machine import Process, ProviderStatus
from shepherd_core.domain.remediation import AgentState
from shepherd_core.operator.adopt_forget import ActionResult
from shepherd_core.rules.budget import BudgetLimits
from shepherd_core.telemetry import Metric

from tests.conftest import ManualClock
from tests.integration.loops.recovery.site import AgentFile, Site
from tests.support.agents.heartbeats import record_heartbeat
from tests.support.bmdb.fleet import Fleet
from tests.support.bmdb.recovery import MINUTE, OneMachine
from tests.support.providers.fake_provider import refuse

PAGE = (Path(__file__).parents[4] / "docs" / "recovery.md").read_text()
LOOPS = {"ShepherdAgentStart": "Initializer", "ShepherdRecovery": "Recoverer"}
NUMBERS = {"a": 1, "an": 1, "two": 2, "three": 3, "ten": 10}
SECONDS = {"second": 1, "minute": MINUTE, "hour": 60 * MINUTE, "day": 24 * 60 * MINUTE}
ALIVE = ("Looked restart-agent", "Finished")
REBOOTED = ("Attempted reboot", "Finished reboot")
NOBODY_ELSE = BudgetLimits(per_hour=0, dead_share=1)


def seconds(text: str) -> list[float]:
    found = re.findall(rf"(\d+|{'|'.join(NUMBERS)}) ({'|'.join(SECONDS)})", text)
    return [(NUMBERS.get(number) or int(number)) * SECONDS[unit] for number, unit in found]


@dataclass(frozen=True)
class Row:
    done: str
    workers: str
    after: str

    @property
    def seconds(self) -> list[float]:
        return seconds(self.after)

    @property
    def times_a_day(self) -> int:
        (number,) = re.findall(r"(\w+) times a day", self.done)
        return NUMBERS.get(number) or int(number)

    @property
    def intervals(self) -> list[float]:
        """The intervals at which it is tried again, up to the second of the longest."""
        first, *longest = self.seconds[-2:] if "at most" in self.after else self.seconds[-1:]
        (factor,) = map(float, re.findall(r"(\d\.\d) times as long", self.after))
        found = [first]
        while len(found) < 3 or (longest and found[-2] < longest[0]):
            found.append(min([-(-found[-1] * factor // 1), *longest]))
        return found


def table() -> dict[str, Row]:
    lines = PAGE.partition("<!-- recovery: begin -->")[2].partition("<!-- recovery: end -->")[0].split("\n")[3:-1]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert len({known for known, *_ in cells}) == len(cells)
    return {known: Row(*others) for known, *others in cells}


ROWS = table()
(UNHEALTHY,) = seconds(re.findall(r"\*unhealthy\* (.*) after its last heartbeat", PAGE)[0])


class Stage(OneMachine):
    """Both loops with their defaults, a machine that has just reported, and one that goes on with it."""

    initializer = True
    """Whether the Initializer runs."""

    def __init__(self, fleet: Fleet, clock: ManualClock) -> None:
        super().__init__(fleet, clock)
        self.provider = self.site = Site(fleet)
        self.look = self.site.look
        record_heartbeat(fleet.connection, self.machine)

    def run(self, connection: Connection | None = None, concurrency: int = 10) -> dict[Metric, float]:
        if self.after_outage:
            self.fleet.sql("DELETE FROM ticks")
        counts = super().run(connection, concurrency)
        if self.initializer:
            self.site.start_agents(self.fleet, self.clock)
        assert self.site.open == 0
        return counts

    def events(self, process: Process) -> list[str]:
        rows = [(event, step) for event, step, _ in self.lines(process=process) if event != "Started"]
        return [f"{event} {step}" if step else event for event, step in rows]

    def expect(self, after: float, *events: str, process: Process = Process.RECOVERY) -> None:
        """Nothing happens to the machine until a moment before *after*; then these events."""
        told = self.events(process)
        moment = min(MINUTE, after / 4)
        self.watch((after - moment) / MINUTE, every=30)
        assert self.events(process) == told
        self.watch(moment / MINUTE)
        assert self.events(process)[len(told) :] == list(events)

    def break_down(self, error: ShepherdError | None = None) -> None:
        """Let the machine neither report nor answer; *error* is why no agent can be started."""
        self.site.seen = SshTimedOut("no answer")
        self.site.start_error = error or self.site.seen

    def forget_agent(self) -> None:
        self.fleet.change("DELETE FROM machine_agent_heartbeat", "DELETE FROM machine_agent_started")
        self.reporting = [self.fleet.reporting_machine()]


PLAYS: dict[str, Callable[[Stage, Row], None]] = {}


def plays(known: str) -> Callable[[Callable[[Stage, Row], None]], Callable[[Stage, Row], None]]:
    def register(play: Callable[[Stage, Row], None]) -> Callable[[Stage, Row], None]:
        assert known not in PLAYS
        PLAYS[known] = play
        return play

    return register


@plays("reports again in time")
def _reports(stage: Stage, _: Row) -> None:
    stage.watch(UNHEALTHY / MINUTE - 1)
    record_heartbeat(stage.fleet.connection, stage.machine)
    stage.watch(UNHEALTHY / MINUTE - 1)
    assert stage.events(Process.RECOVERY) == []
    stage.break_down()
    stage.provider.before = lambda _: record_heartbeat(stage.fleet.connect(), stage.machine)
    stage.watch(1)
    assert stage.events(Process.RECOVERY) == ["Looked", "Attempted reboot", "NotTaken reboot", "Recovered"]
    assert stage.events(Process.AGENT_START) == stage.provider.asked == []
    assert stage.fleet.facts(stage.machine) == {"agent_started", "agent_heartbeat", "host_key"}
    stage.provider.before = lambda _: None
    stage.expect(UNHEALTHY, "Looked", *REBOOTED)


@plays("unhealthy, its agent runs")
def _runs(stage: Stage, row: Row) -> None:
    stage.expect(UNHEALTHY, *ALIVE)
    (again,) = row.seconds
    for _ in range(5):
        stage.expect(again, *ALIVE)
    assert (stage.events(Process.AGENT_START), stage.seen(stage.machine).recoveries) == (["Finished"] * 6, 6)
    assert overview.unsteady(stage.fleet.connection) == [Unsteady(stage.name, 1, 0)]


@plays("unhealthy, its agent has ended")
def _ended(stage: Stage, row: Row) -> None:
    stage.site.seen = AgentState.ENDED
    stage.watch(UNHEALTHY / MINUTE)
    for number in range(1, row.times_a_day + 1):
        assert (stage.events(Process.AGENT_START), stage.provider.asked) == (["Finished"] * number, [])
        stage.watch(30)
    assert stage.events(Process.RECOVERY) == [*ALIVE * row.times_a_day, "Looked", *REBOOTED]


@plays("unhealthy, an installation goes on")
def _installs(stage: Stage, row: Row) -> None:
    stage.site.seen = AgentState.INSTALLS
    (again,) = row.seconds
    for number in range(row.times_a_day):
        stage.expect(again if number else UNHEALTHY, "Looked await-installation", "Finished")
    assert stage.events(Process.AGENT_START) == []
    stage.expect(again, *ALIVE)


@plays("unhealthy, refuses our SSH key")
def _refuses_key(stage: Stage, row: Row) -> None:
    stage.site.seen = SshAuthenticationFailed("publickey")
    for interval in (UNHEALTHY, *row.intervals):
        stage.expect(interval, "Failed")
    assert (stage.run()[Metric.NO_ACCESS], stage.provider.asked) == (1, [])


@plays("unhealthy, does not answer")
def _unreachable(stage: Stage, row: Row) -> None:
    stage.break_down()
    stage.expect(UNHEALTHY, "Looked", *REBOOTED)
    assert [stage.site.look_seconds] == row.seconds


@plays("needs a step, the budget is used up")
def _budget(stage: Stage, row: Row) -> None:
    stage.limits = NOBODY_ELSE
    stage.break_down()
    (again,) = row.seconds
    for after in (UNHEALTHY, again, again):
        stage.expect(after, "Looked", "Canceled")
    stage.site.seen = AgentState.ENDED
    stage.expect(again, *ALIVE)


@plays("needs a step after an outage of ours")
def _outage(stage: Stage, row: Row) -> None:
    stage.after_outage = True
    stage.break_down()
    stage.watch(60, every=60)
    assert stage.events(Process.RECOVERY) == ["Looked", "Canceled"]
    (again,) = row.seconds
    stage.expect(again, "Looked", *REBOOTED)


@plays("not back after a step")
def _not_back(stage: Stage, row: Row) -> None:
    (grace,) = row.seconds
    stage.policy = "restart-agent:1,reboot:3,quarantine"
    stage.break_down()
    stage.expect(UNHEALTHY, "Attempted restart-agent", "Finished")
    stage.expect(grace, "Looked", *REBOOTED)
    stage.expect(grace, *REBOOTED)
    stage.initializer = False
    stage.expect(2 * grace)
    stage.initializer = True
    stage.expect(2 * MINUTE, *REBOOTED)


@plays("not back, the fault is ours")
def _our_fault(stage: Stage, row: Row) -> None:
    errors = [SshHostKeyChanged("?"), SshAuthenticationFailed("?"), NoAddress("?"), ProviderUnavailable("?")]
    stage.break_down(errors[0])
    stage.watch(UNHEALTHY / MINUTE)
    stage.expect(2 * MINUTE, "Failed", process=Process.AGENT_START)
    for number, interval in enumerate(row.intervals):
        stage.site.start_error = errors[number % len(errors)]
        stage.expect(interval, "Failed", process=Process.AGENT_START)
    assert stage.provider.asked == ["reboot"]
    stage.break_down()
    stage.watch(row.seconds[-1] / MINUTE + 1, every=30)
    assert stage.provider.asked == ["reboot"] * 2


@plays("not back, the agent is at fault")
def _bad_agent(stage: Stage, row: Row) -> None:
    stage.limits = BudgetLimits(100, 1)
    stage.fleet.machines(2, started_ago=60 * MINUTE, reported_ago=0)
    stage.provider = stage.site = Site(stage.fleet)
    stage.look = stage.site.look
    stage.site.seen, stage.site.start_error = AgentState.ENDED, AgentExited("status 7")
    stage.expect(UNHEALTHY, *ALIVE)
    (again,) = row.seconds
    for after in (30 * MINUTE, again, again):
        stage.expect(after, "Canceled")
    assert [each.agent_sha256 for each in remediation.bad_agents(stage.fleet.connection)] == [AgentFile.sha256]
    stage.fleet.sql("UPDATE machine_agent_started SET agent_sha256 = :agent", agent=AgentFile.sha256)
    stage.site.seen = SshTimedOut("no answer")
    stage.expect(again, "Looked", *REBOOTED)


@plays("never came up")
def _never_came_up(stage: Stage, row: Row) -> None:
    stage.forget_agent()
    stage.break_down()
    (late,) = row.seconds
    stage.initializer = False
    stage.expect(late)
    stage.fleet.sql("UPDATE machines SET machine_created_at = now()")
    stage.initializer = True
    stage.expect(late, *REBOOTED)
    stage.watch(6 * 30, every=5)
    assert stage.events(Process.RECOVERY)[-2:] == ["Quarantined", "Finished"]


@plays("failed for good at its provider")
def _failed_for_good(stage: Stage, _: Row) -> None:
    stage.forget_agent()
    stage.fleet.fail(stage.machine)
    stage.expect(12 * 60 * MINUTE)
    assert stage.events(Process.AGENT_START) == []
    (figures,) = budget.read_fleet(stage.fleet.open_session(), stage.name)
    assert figures.dead == 0
    stage.fleet.change("UPDATE machine_provided SET provider_status = 'Running'")
    stage.run()
    assert stage.events(Process.AGENT_START) == ["Finished"]


@plays("failed for good, there are steps for it")
def _failed_for_good_with_steps(stage: Stage, row: Row) -> None:
    stage.forget_agent()
    stage.fleet.fail(stage.machine)
    stage.break_down()
    stage.site.status = ProviderStatus.PROVISIONING_FAILED_PERMANENT
    stage.failed_policy = "reinstall:2,quarantine"
    stage.run()
    assert stage.events(Process.RECOVERY) == ["Looked", "Attempted reinstall", "Finished reinstall"]
    stage.expect(row.seconds[0], "Attempted reinstall", "Finished reinstall")
    stage.expect(row.seconds[0], "Attempted quarantine", "Quarantined", "Finished")
    assert stage.events(Process.AGENT_START) == []


@plays("the provider refuses the step")
def _refused(stage: Stage, row: Row) -> None:
    stage.break_down()
    stage.provider.then, stage.provider.answers = refuse(ProviderRefused("422")), True
    refused = "Attempted reboot", "NotTaken reboot", "Failed"
    stage.expect(UNHEALTHY, "Looked", *refused)
    for interval in row.intervals:
        stage.expect(interval, "Looked", *refused)
    stage.watch(3 * 30, every=5)
    assert stage.provider.asked[-1] == "power-cycle", "three times its grace are over"
    stage.provider.then, asked = refuse(ProviderForbidden("403")), len(stage.provider.asked)
    stage.watch(3 * 60, every=15)
    assert set(stage.provider.asked[asked:]) == {"power-cycle"}
    stage.provider.then = refuse(NotSupported("not with this BMC"))
    stage.watch(2 * 60, every=15)
    assert stage.events(Process.RECOVERY)[-2:] == ["Quarantined", "Finished"]
    cause = lookup.show_machine(stage.fleet.connection, stage.machine).quarantine_cause
    assert str(cause).startswith("the provider refused reboot ")
    assert stage.seen(stage.machine).recoveries == 0


@plays("the provider does not answer")
def _no_answer(stage: Stage, row: Row) -> None:
    grace, soon = row.seconds
    stage.limits = BudgetLimits(100, 1)
    stage.break_down()
    stage.provider.then = refuse(ProviderUnavailable("504"))
    stage.expect(UNHEALTHY, "Looked", *REBOOTED)
    stage.expect(grace, *REBOOTED)
    for _ in range(5):
        stage.expect(grace, *REBOOTED)  # nobody else was served: none counts
    stage.provider.answers = True
    not_sent = "Attempted reboot", "NotTaken reboot", "Failed"
    stage.expect(grace, *not_sent)
    stage.expect(soon, *not_sent)
    stage.fleet.machines(5, started_ago=60 * MINUTE, reported_ago=2 * UNHEALTHY)
    asked = len(stage.provider.asked)
    stage.run(concurrency=1)
    assert len(stage.provider.asked) == asked + 3


@plays("all steps used up")
def _used_up(stage: Stage, row: Row) -> None:
    (last,) = row.seconds
    stage.break_down()
    stage.expect(UNHEALTHY, "Looked", *REBOOTED)
    for step in ("reboot", "reboot", "power-cycle", "power-cycle"):
        stage.expect(last, f"Attempted {step}", f"Finished {step}")
    stage.limits = NOBODY_ELSE
    stage.expect(last, "Attempted quarantine", "Quarantined", "Finished")
    shown = lookup.show_machine(stage.fleet.connection, stage.machine)
    assert shown.quarantine_cause == "still unhealthy after reboot 3 times, power-cycle 2 times"
    assert stage.seen(stage.machine).recoveries == 5
    (unsteady,) = overview.unsteady(stage.fleet.connection)
    assert (unsteady.recovered_often, unsteady.reports_again) == (0, 0)
    starts = stage.events(Process.AGENT_START)
    stage.expect(6 * 60 * MINUTE)
    assert stage.events(Process.AGENT_START) == starts
    assert stage.run()[Metric.QUARANTINED] == 1


@plays("paused")
def _paused(stage: Stage, _: Row) -> None:
    paused = pauses.pause(stage.fleet.connection, owner="me", reason="memory", machine_id=stage.machine)
    stage.expect(6 * UNHEALTHY)
    (figures,) = budget.read_fleet(stage.fleet.open_session(), stage.name)
    assert figures.dead == 0
    pauses.resume(stage.fleet.connection, paused)
    stage.run()
    assert stage.events(Process.RECOVERY) == list(ALIVE)


@plays("rebooted by an operator")
def _operator(stage: Stage, _: Row) -> None:
    stage.break_down()
    stage.limits, usual = NOBODY_ELSE, stage.limits
    assert stage.take(stage.machine).result is ActionResult.DONE
    assert stage.events(Process.RECOVERY) == list(REBOOTED)
    assert stage.fleet.sql("SELECT failed_cause FROM work_history WHERE event = 'Started'") == [["ana: new mainboard"]]
    assert budget.read_fleet(stage.fleet.open_session(), stage.name)[0].steps == 1
    stage.limits = usual
    stage.watch(3 * 30)
    assert stage.provider.asked == ["reboot"] * 3
    stage.watch(30)
    assert stage.provider.asked == ["reboot"] * 3 + ["power-cycle"]


@plays("its quarantine was ended")
def _given_back(stage: Stage, row: Row) -> None:
    at_once, grace = row.seconds
    stage.fleet.quarantine(stage.machine)
    stage.expect(60 * MINUTE)
    assert remediation.unquarantine(stage.fleet.connection, stage.machine, reason="mended")
    assert not remediation.unquarantine(stage.fleet.connection, stage.machine, reason="once is enough")
    stage.site.start_error = SshTimedOut("no answer")
    stage.site.seen = stage.site.start_error
    stage.watch(at_once / MINUTE)
    assert stage.events(Process.AGENT_START) == ["Failed"]
    stage.expect(grace - at_once, "Looked", *REBOOTED)


@pytest.mark.parametrize("known", sorted(ROWS.keys() | PLAYS.keys()))
def test_what_the_page_says_is_what_happens(fleet: Fleet, clock: ManualClock, known: str) -> None:
    """Operators plan by it. A row without a play, and a play without a row, fail."""
    stage, row = Stage(fleet, clock), ROWS[known]
    PLAYS[known](stage, row)
    begun = stage.fleet.sql("SELECT DISTINCT process FROM work_history WHERE machine_id = :id", id=stage.machine)
    assert {loop for loop in LOOPS.values() if loop in row.workers} <= {LOOPS[process] for (process,) in begun}
