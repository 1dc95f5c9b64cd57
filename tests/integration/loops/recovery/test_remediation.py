"""The remediation policy on a real database: the steps for an unhealthy machine, their order and their end."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, get_args
from uuid import UUID

import pytest
from shepherd_core.bmdb.machines import lookup, pauses
from shepherd_core.bmdb.recovery import explain, overrides, remediation, suspension
from shepherd_core.bmdb.recovery.remediation import Unneeded
from shepherd_core.bmdb.work import history, work
from shepherd_core.bmdb.work.work import AgentStarted, Failure
from shepherd_core.domain.clock import Deadline
from shepherd_core.domain.errors import NoLongerDue, ShepherdError, TimeLimitExceeded
from shepherd_core.domain.errors.bmdb import SessionExpired
from shepherd_core.domain.errors.machine import SshAuthenticationFailed, SshHostKeyChanged, SshTimedOut
from shepherd_core.domain.errors.provider import (
    MachineNotFound,
    NotSupported,
    ProviderRefused,
    ProviderUnavailable,
    ProviderUnusable,
)
from shepherd_core.domain.machine import Process, ProviderId
from shepherd_core.domain.provider import Capability
from shepherd_core.domain.remediation import (
    QUARANTINE,
    REBOOT,
    RESTART_AGENT,
    STEPS,
    HistoryLine,
    NextStep,
    Step,
    StepKind,
)
from shepherd_core.loops.base import Task
from shepherd_core.loops.dry_run import dry_run
from shepherd_core.loops.runner import RunLimits
from shepherd_core.rules.attempts import past_attempts
from shepherd_core.rules.circuit_breaker import Limit
from shepherd_core.telemetry import Metric

from tests.conftest import ManualClock
from tests.support import defaults
from tests.support.agents.heartbeats import record_heartbeat
from tests.support.bmdb.breaking_connection import BreakingConnection, Lost
from tests.support.bmdb.fleet import HOUR, PROVIDER, Fleet, claimed, ids
from tests.support.bmdb.recovery import MINUTE, RecoveryEnvironment
from tests.support.providers.fake_provider import FakeSteps, refuse
from tests.support.waiting import WAIT_SECONDS

LOOK = 4
"""Minutes between two runs; a longer interval would be a gap between snapshots."""
GRACE = 30 * MINUTE
START, RECOVER = Process.AGENT_START, Process.RECOVERY


class World(RecoveryEnvironment):
    """An unhealthy machine, and one that reports, without which recovery is suspended."""

    def __init__(self, fleet: Fleet, clock: ManualClock) -> None:
        super().__init__(fleet, clock)
        self.witness = fleet.reporting_machine()
        self.machine = fleet.unhealthy_machine()

    def watch(self, minutes: float, every: float = LOOK) -> None:
        """
        Let time pass; the other machine reports and the Recoverer runs on its schedule. It ends with a run.

        *every* so many minutes, if nothing new is to be found between two runs.
        """
        while minutes > 0:
            self.fleet.pass_time(min(minutes, every) * MINUTE)
            record_heartbeat(self.fleet.connection, self.witness)
            if every > LOOK:  # else this was a gap, and recovery would wait
                self.fleet.sql("UPDATE recovery_snapshots SET taken_at = now()")
            self.run()
            minutes -= every

    def start_agent(self, *, fails: bool = False, error: ShepherdError | None = None) -> bool:
        """Do the Initializer's work on the machine; False: it is not due for that."""
        session = self.fleet.open_session()
        found = [held for held in claimed(session, START) if held.machine_id == self.machine]
        if found and (fails or error):
            error = error or SshTimedOut("no answer")
            work.fail(session, {found[0]: Failure(f"{type(error).__name__}: {error}", 300, fault=error.fault)})
        elif found:
            work.finish_agent_start(session, {found[0]: AgentStarted(bytes(32), "ssh-ed25519 AAAA")})
        session.close()
        return bool(found)

    def report(self, minutes: int) -> None:
        """Let the machine report for so long, and then stop."""
        for _ in range(0, minutes, LOOK):
            self.fleet.pass_time(LOOK * MINUTE)
            for machine in (self.machine, self.witness):
                assert record_heartbeat(self.fleet.connection, machine)
            self.run()

    def pin(self) -> None:
        """Let the machine's host key be known."""
        self.fleet.sql("INSERT INTO machine_host_key VALUES (:id, 'ssh-ed25519 AAAA', now())", id=self.machine)

    @property
    def told(self) -> list[str]:
        """What the history says of recovery: steps where they were attempted or skipped, else events."""
        rows = self.fleet.sql(
            "SELECT event, step FROM work_history WHERE machine_id = :id AND process = 'ShepherdRecovery' "
            "AND event NOT IN ('Started', 'Finished') ORDER BY timestamp",
            id=self.machine,
        )
        return [rung if event == "Attempted" else f"{event} {rung}" if rung else event for event, rung in rows]

    @property
    def place(self) -> list[tuple[str, bool]]:
        """The attempts that count, each with whether it was refused."""
        session = self.fleet.open_session()
        rows = session.connection.run("recovery_records", machine_ids=[self.machine])
        found = past_attempts(HistoryLine(*row[5:]) for row in rows)
        session.close()
        return [(attempt.step, attempt.refused) for attempt in found]

    @property
    def quarantined(self) -> bool:
        """Whether the machine is in quarantine."""
        return bool(self.fleet.sql("SELECT 1 FROM machine_quarantine WHERE machine_id = :id", id=self.machine))


@pytest.fixture
def world(fleet: Fleet, clock: ManualClock) -> World:
    """Return a world with an unhealthy machine."""
    return World(fleet, clock)


def test_a_machine_that_never_comes_back_gets_every_step_then_quarantine(world: World) -> None:
    """The predecessor rebooted such a machine without end. After each step there is time for an agent start."""
    world.run()
    for number in range(1, 6):
        assert len(world.provider.asked) == number
        world.watch(2)
        assert world.start_agent(fails=True)
        world.watch(27)
        assert len(world.provider.asked) == number, "it has half an hour to come back"
        world.watch(2)
    assert world.provider.asked == ["reboot"] * 3 + ["power-cycle"] * 2
    assert world.told == [*world.provider.asked, "quarantine", "Quarantined"]
    shown = lookup.show_machine(world.fleet.connection, world.machine)
    assert shown["quarantine_cause"] == "still unhealthy after reboot 3 times, power-cycle 2 times"
    assert shown["quarantine_evidence"].count("ShepherdAgentStart Failed: SshTimedOut: no answer") == 5
    assert shown["quarantine_evidence"].count("Attempted power-cycle") == 2
    world.watch(60)
    assert len(world.provider.asked) == 5
    assert not world.start_agent()
    assert world.run()[Metric.QUARANTINED] == 1


def test_a_machine_that_comes_back_in_time_is_left_alone(world: World) -> None:
    """However often its agent start failed before."""
    world.run()
    world.watch(3)
    assert world.start_agent(fails=True)
    world.watch(20)
    assert world.start_agent()
    world.report(60)
    assert world.provider.asked == ["reboot"]
    assert world.fleet.sql("SELECT 1 FROM machine_grace") == []


def test_a_machine_without_an_attempted_agent_start_waits(world: World) -> None:
    """If the Initializer is out of order, no machine is to blame, and none may end in quarantine for it."""
    world.run()
    world.watch(120)
    assert world.provider.asked == ["reboot"]
    assert world.start_agent(fails=True)
    world.watch(1)
    assert world.provider.asked == ["reboot"] * 2


def test_a_step_forgives_what_failed_before_it(world: World) -> None:
    """An agent start that has failed for hours would else wait for hours more, and use up the machine's time."""
    world.run()
    world.watch(2)
    session = world.fleet.open_session()
    (held,) = claimed(session, START)
    work.fail(session, {held: Failure("SshTimedOut: no answer", 4 * HOUR)})
    session.close()
    world.watch(29)
    assert world.provider.asked == ["reboot"] * 2
    world.watch(2)
    assert world.start_agent()


def test_both_loops_may_have_a_machine_that_did_not_come_back_but_one_has_it(world: World) -> None:
    """While it waits for its next step it may come up; two loops at once would reboot it under its agent."""
    world.run()
    world.watch(3)
    world.start_agent(fails=True)
    world.fleet.pass_time(GRACE)
    world.fleet.sql("UPDATE recovery_snapshots SET taken_at = now()")  # else this was a gap, and recovery would wait
    sessions = [world.fleet.open_session(connection=world.fleet.connect()) for _ in range(2)]
    together = threading.Barrier(2)

    def claim(number: int) -> list[UUID]:
        together.wait(WAIT_SECONDS)
        return ids(work.claim(sessions[number], (START, RECOVER)[number], PROVIDER, 10).work)

    with ThreadPoolExecutor(2) as pool:
        found = [each.result() for each in [pool.submit(claim, number) for number in range(2)]]
    assert sum(world.machine in each for each in found) == 1
    assert len(world.fleet.holders(world.machine)) == 1


def test_a_machine_that_did_not_come_back_gets_its_agent_in_a_suspension(world: World) -> None:
    """Otherwise no machine would report after an outage, and the suspension would not end."""
    world.run()
    world.watch(3)
    world.start_agent(fails=True)
    world.fleet.pass_time(GRACE)
    world.fleet.sql("INSERT INTO recovery_suspensions VALUES (:p, '', now(), NULL, 'an outage')", p=PROVIDER)
    session = world.fleet.open_session()
    assert claimed(session, RECOVER) == []
    assert ids(claimed(session, START)) == [world.machine]


def test_a_machine_that_fails_again_continues_with_its_policy(world: World) -> None:
    """Ten minutes of reports between two faults are no recovery."""
    for _ in range(4):
        world.run()
        world.watch(3)
        assert world.start_agent()
        world.report(10)
        world.watch(11)
    assert world.provider.asked == ["reboot"] * 3 + ["power-cycle"] * 2


def test_the_policy_starts_over_after_healthy_time(world: World) -> None:
    """A fault once a month is no reason for a quarantine; the history says why it began anew."""
    for _ in range(4):
        world.run()
        world.watch(3)
        assert world.start_agent()
        world.report(62)
        world.watch(11)
    assert world.provider.asked == ["reboot"] * 5
    assert world.told == ["reboot", *["Healthy", "reboot"] * 4]


def test_two_steps_are_never_closer_than_the_cooldown(world: World) -> None:
    """Also if the agent comes back and stops again immediately."""
    world.policy = "reboot:3:cooldown=3600,quarantine"
    world.run()
    world.watch(3)
    assert world.start_agent()
    world.report(1)
    world.watch(50)
    assert world.provider.asked == ["reboot"]
    world.watch(8)
    assert world.provider.asked == ["reboot"] * 2


def test_restarting_the_agent_touches_no_power(world: World) -> None:
    """The machine may be fine, and its agent killed: the Initializer starts another over SSH, at once."""
    world.policy = "restart-agent:1,reboot:1,quarantine"
    world.run()
    assert world.provider.asked == []
    assert world.fleet.facts(world.machine) == set()
    assert world.told == ["restart-agent"]
    assert world.start_agent(fails=True)
    world.watch(31)
    assert world.provider.asked == ["reboot"]


def test_a_step_that_the_provider_lacks_is_skipped_and_the_history_says_so(world: World) -> None:
    """Or an operator would look for the power cycles."""
    world.provider = FakeSteps(Capability.POWER_CYCLE)
    world.policy = "reboot:1,power-cycle:2,reinstall:1,quarantine"
    world.run()
    world.watch(2)
    world.start_agent(fails=True)
    world.watch(30)
    assert world.provider.asked == ["reboot", "reinstall"]
    assert world.told == ["reboot", "Skipped power-cycle", "reinstall"]
    skipped = [
        line for line in history.read_history(world.fleet.connection, world.machine) if line["event"] == "Skipped"
    ]
    assert [line["failed_cause"] for line in skipped] == ["the provider static cannot power-cycle machines"]


def test_a_step_that_turns_out_not_to_be_supported_is_followed_by_the_next(world: World) -> None:
    """A provider may be able to in general, and not with this machine."""
    world.provider.then = refuse(NotSupported("not with this BMC"))
    world.run()
    world.watch(1)
    assert world.provider.asked == ["reboot", "power-cycle"]
    world.watch(2)
    assert world.quarantined


@pytest.mark.parametrize("error", [ProviderRefused("it is locked"), MachineNotFound("no such machine")])
def test_a_provider_that_refuses_this_machine_uses_up_the_rung_in_time(world: World, error: ShepherdError) -> None:
    """No step was taken, and says so; but a machine must not be kept on one rung for ever."""
    world.provider.then = refuse(error)
    world.run()
    world.watch(29)
    assert set(world.provider.asked) == {"reboot"}
    assert len(world.provider.asked) > 3
    world.watch(30 * 7)
    assert world.quarantined
    assert "power-cycle" in world.provider.asked
    cause = lookup.show_machine(world.fleet.connection, world.machine)["quarantine_cause"]
    assert cause.startswith("the provider refused reboot ")
    assert "unhealthy after" not in cause, "no step was taken, after which it could be unhealthy"
    asked = len(world.provider.asked)
    assert world.told.count("NotTaken reboot") + world.told.count("NotTaken power-cycle") == asked


@pytest.mark.parametrize("error", [ProviderUnavailable("503"), ProviderUnusable("401")])
def test_a_provider_that_is_away_uses_up_no_rung(world: World, error: ShepherdError) -> None:
    """Its outage is no machine's fault: hours later the machine is where it was, and gets its first reboot."""
    world.provider.then, world.provider.answers = refuse(error), True
    world.run()
    world.watch(4 * 60)
    assert set(world.provider.asked) == {"reboot"}
    assert not world.quarantined
    world.provider.then, before = lambda _: None, len(world.provider.asked)
    assert before < 30, "it is asked less and less often"
    world.watch(62)
    assert world.provider.asked[before:] == ["reboot"]
    assert world.place == [("reboot", False)]


def test_an_answer_that_was_lost_counts(world: World) -> None:
    """The step may have been taken: the machine gets its grace, an agent start and its cooldown, as after any step."""
    world.provider.then = refuse(ProviderUnavailable("504"))
    assert world.run()[Metric.FINISHED] == 1
    assert world.fleet.facts(world.machine) == {"rebooted"}
    for number in range(1, 6):
        world.watch(2)
        assert world.start_agent(fails=True)
        world.watch(27)
        assert len(world.provider.asked) == number, "a second request would break what the first began"
        world.watch(2)
    assert world.told == [*["reboot"] * 3, *["power-cycle"] * 2, "quarantine", "Quarantined"]
    causes = [line["failed_cause"] for line in history.read_history(world.fleet.connection, world.machine)]
    assert causes.count("ProviderUnavailable: 504") == 5


def test_a_lost_answer_is_not_followed_by_a_worse_step_at_once(world: World) -> None:
    """A gateway that gives up early would turn a reboot into the loss of all data within two minutes."""
    world.policy = "reboot:1,reinstall:1,quarantine"
    world.provider.then = refuse(ProviderUnavailable("504"))
    world.run()
    world.watch(2)
    assert world.start_agent()
    world.watch(26)
    assert world.provider.asked == ["reboot"]


def fail_agent_starts(world: World) -> None:
    """Do the Initializer's work on all machines, which are up and cannot start an agent."""
    session = world.fleet.open_session()
    if found := claimed(session, START):
        work.fail(session, {held: Failure("AgentExited: 1", 60) for held in found})
    session.close()


def outlast(world: World, minutes: int) -> None:
    """Let time pass in which no machine comes back."""
    for _ in range(0, minutes, LOOK):
        world.watch(LOOK)
        fail_agent_starts(world)


@pytest.mark.parametrize(("policy", "stagger"), [("reboot:1,reinstall:1,quarantine", LOOK), (defaults.POLICY, 0)])
def test_an_outage_without_answers_leaves_many_machines_on_their_step(world: World, policy: str, stagger: int) -> None:
    """Unlike answers with 503 it leaves open what was done; but hours of it tell nothing about any machine."""
    world.policy = policy
    world.limits = replace(defaults.LIMITS, unhealthy=Limit(20, 1))  # else most of so small a fleet would be suspended
    machines = [world.machine, *(world.fleet.unhealthy_machine(600 - each * stagger * MINUTE) for each in range(2))]
    world.provider.then = refuse(ProviderUnavailable("504"))
    world.run()
    outlast(world, 3 * 60)
    steps = world.fleet.sql("SELECT DISTINCT step FROM work_history WHERE event = 'Attempted'")
    assert steps == [["reboot"]]
    closest = world.fleet.sql(
        "SELECT min(timestamp - before) FROM (SELECT timestamp, lag(timestamp) OVER (PARTITION BY machine_id "
        "ORDER BY timestamp) AS before FROM work_history WHERE event = 'Attempted') AS x"
    )[0][0]
    assert closest.total_seconds() >= GRACE
    assert len(world.provider.asked) > 3 * 5
    reasons = {row[0] for row in world.fleet.sql("SELECT failed_cause FROM work_history WHERE event = 'Attempted'")}
    assert "the last attempt does not count: the provider did not answer about 3 machines" in reasons
    world.provider.then = lambda _: None
    outlast(world, 28)
    assert world.fleet.sql("SELECT 1 FROM machine_quarantine") == []
    assert set(world.provider.asked) == {"reboot"}, "the last attempts of the outage do not count either"
    outlast(world, 36 * 6)
    assert len(world.fleet.sql("SELECT 1 FROM machine_quarantine")) == len(machines), "its answers count again"


@pytest.mark.parametrize("others", [0, 1])
def test_machines_about_which_the_provider_never_answers_end_in_quarantine(world: World, others: int) -> None:
    """If it fails for one or two, it is probably about them; no machine stays at one step without end."""
    for _ in range(others):
        world.fleet.unhealthy_machine()
    world.provider.then = refuse(ProviderUnavailable("504"))
    world.run()
    outlast(world, 3 * 60)
    assert world.quarantined
    assert len(world.provider.asked) == 5 * (1 + others)
    cause = lookup.show_machine(world.fleet.connection, world.machine)["quarantine_cause"]
    assert cause == "the provider did not answer reboot 3 times, power-cycle 2 times"


@pytest.mark.parametrize("error", [TimeLimitExceeded(), ShepherdError("unexpected")])
def test_a_step_of_unknown_outcome_is_not_repeated_within_the_grace(world: World, error: ShepherdError) -> None:
    """Whatever went wrong after the request was sent: the machine may be booting."""
    world.provider.then = refuse(error)
    assert world.run()[Metric.FAILED] == 1
    world.watch(4)
    assert world.fleet.facts(world.machine) == {"rebooted"}
    world.watch(3)
    assert world.start_agent(fails=True)
    world.watch(24)
    assert world.provider.asked == ["reboot"]
    world.watch(8)
    assert world.provider.asked == ["reboot"] * 2


def test_a_provider_that_fails_for_several_machines_is_not_asked_for_the_others(world: World) -> None:
    """A thousand machines would else ask it every minute; and whose fault it is stands with each of them."""
    world.limits = replace(defaults.LIMITS, unhealthy=Limit(100, 1))
    others = world.fleet.machines(11, started_ago=3 * HOUR, reported_ago=2 * HOUR)
    world.provider.then, world.provider.answers = refuse(ProviderUnavailable("503")), True
    counts = world.run(concurrency=1)
    assert len(world.provider.asked) == 3
    assert (counts[Metric.FAILED], counts[Metric.NOT_TAKEN]) == (12, 12)
    causes = world.fleet.sql("SELECT cause FROM work_backoff WHERE machine_id = ANY(:ids)", ids=others)
    assert len(causes) == 11
    assert all("503" in cause for (cause,) in causes)
    assert sum("not asked" in cause for (cause,) in causes) >= 8
    world.provider.then = lambda _: None
    world.watch(4)
    assert len(world.provider.asked) == 15, "the next invocation asks again"


@pytest.mark.parametrize("error", [SshHostKeyChanged("another"), SshAuthenticationFailed("no"), ProviderUnavailable()])
def test_a_failure_that_no_reboot_repairs_takes_no_further_step(world: World, error: ShepherdError) -> None:
    """The machine is up and refuses the login, or has no known address: reboots and power cycles cannot help."""
    world.run()
    for _ in range(10):
        world.watch(12)
        world.start_agent(error=error)
    assert world.provider.asked == ["reboot"]
    assert not world.quarantined
    world.watch(6)
    assert world.start_agent(fails=True)
    world.watch(4)
    assert world.provider.asked == ["reboot"] * 2, "it is due as soon as it fails in a way that a reboot may cure"


@pytest.mark.parametrize("ladder", ["reboot:2,quarantine", "reinstall:2,quarantine"])
def test_a_step_after_which_the_function_died_is_not_repeated_but_counts(world: World, ladder: str) -> None:
    """The machine may be booting, or half installed. What came of it is seen when it comes back, or does not."""
    world.policy = ladder
    world.pin()
    session = world.fleet.open_session()
    (held,) = claimed(session, RECOVER)
    attempt = Task(
        held, Deadline(world.clock, 60, session.seconds_left), decision=world.loop.decide(session, [held])[held]
    )
    world.loop.work_on(attempt)
    world.fleet.expire(session)  # and there it ended
    (step,) = world.provider.asked
    world.watch(1)  # it ends the work, and the machine backs off
    world.watch(1)
    assert world.provider.asked == [step]
    assert world.told == [step, "Expired"]
    assert world.fleet.facts(world.machine) == {"rebooted"} | ({"host_key"} if step == "reboot" else set())
    world.watch(3)
    assert world.start_agent(fails=True)
    world.watch(30)
    assert world.provider.asked == [step] * 2
    world.watch(3)
    assert world.start_agent(fails=True)
    world.watch(30)
    assert world.quarantined, "two attempts, the one that died among them"


def test_a_function_killed_before_the_step_delays_the_next_attempt(world: World) -> None:
    """The step may have been taken, so the machine gets its grace before the next attempt."""
    session = world.fleet.open_session()
    (held,) = claimed(session, RECOVER)
    world.loop.decide(session, [held])
    world.fleet.expire(session)
    world.watch(1)  # it ends the work, and the machine backs off
    world.watch(1)
    world.watch(3)
    assert world.provider.asked == []
    assert world.start_agent(fails=True)
    world.watch(30)
    assert world.provider.asked == ["reboot"]
    assert world.told == ["reboot", "Expired", "reboot"]


def test_a_function_killed_before_its_decision_uses_no_attempt(world: World) -> None:
    """Nothing can have happened to the machine by then."""
    session = world.fleet.open_session()
    claimed(session, RECOVER)
    world.fleet.expire(session)
    world.watch(1)  # it ends the work, and the machine backs off
    world.watch(1)
    assert world.provider.asked == ["reboot"]
    assert world.told == ["Expired", "reboot"]


def test_a_reinstall_forgets_the_host_key_before_it_is_asked_for(world: World) -> None:
    """Also if the function is killed afterwards: a new key with an old pin would be refused without end."""
    world.policy = "reinstall:1,quarantine"
    world.pin()
    seen: list[set[str]] = []
    world.provider.then = lambda _: seen.append(Fleet.facts(world.fleet, world.machine))
    world.run()
    assert seen == [{"agent_started", "agent_heartbeat"}]
    assert world.fleet.facts(world.machine) == {"rebooted"}


@pytest.fixture
def tickets(world: World) -> list[str]:
    """Let the policy begin with a step that only tells somebody, and return the machines that it was taken on."""
    return world.begin_with_tickets()


def test_a_step_that_keeps_the_agent_changes_no_fact(world: World, tickets: list[str]) -> None:
    """An agent that reports again is the same agent: with its key deleted, its heartbeats would be refused."""
    world.pin()
    before = world.fleet.facts(world.machine)
    assert "agent_started" in before
    world.run()
    assert len(tickets) == 1
    assert world.fleet.facts(world.machine) - {"grace"} == before
    assert not world.start_agent()
    world.report(120)
    world.watch(12)
    assert len(tickets) == 2, "it reported for long enough, so that the policy starts over"
    assert not world.provider.asked


def test_a_step_that_keeps_the_agent_is_followed_by_the_next_after_its_grace(world: World, tickets: list[str]) -> None:
    """Without the grace, the next step would be taken a minute later, before anybody could have acted."""
    world.run()
    world.watch(29)
    assert (len(tickets), world.provider.asked) == (1, [])
    world.watch(LOOK)
    assert (len(tickets), world.provider.asked) == (1, ["reboot"])
    assert world.told == ["ticket", "reboot"]


def test_a_step_that_keeps_the_agent_lets_agent_starts_be_tried(world: World, tickets: list[str]) -> None:
    """Of a machine that has no agent: it stays due for one."""
    world.policy, policy = "restart-agent:1,quarantine", world.policy
    world.run()
    world.policy = policy
    assert world.start_agent(fails=True)
    world.watch(31)
    assert len(tickets) == 1
    assert world.start_agent(fails=True)
    world.watch(29)
    assert world.provider.asked == []
    world.watch(LOOK)
    assert (len(tickets), world.provider.asked) == (1, ["reboot"])


def test_a_step_that_does_not_ask_the_provider_has_nothing_to_do_with_its_outages(
    world: World, tickets: list[str]
) -> None:
    """Help is wanted most when the provider does not answer; and a webhook that is down must not hold up reboots."""
    world.limits = replace(defaults.LIMITS, unhealthy=Limit(1000, 1))
    for _ in range(4):
        world.fleet.unhealthy_machine()
    (kind,) = world.takes
    tell = world.takes.pop(kind)

    def fail(machine: ProviderId, deadline: Deadline) -> None:
        tell(machine, deadline)
        deadline.declined()
        raise ProviderUnavailable("?")

    world.takes[kind] = fail
    assert world.run(concurrency=1)[Metric.FAILED] == 5
    assert len(tickets) == 5


@pytest.mark.parametrize("kind", STEPS.values(), ids=STEPS)
def test_a_step_that_boots_the_machine_loses_its_agent(kind: StepKind) -> None:
    """The agent is a process; nothing starts it at boot."""
    assert kind.loses_agent or not (kind.reboots or kind.loses_host_key)


@pytest.mark.parametrize(
    ("error", "kept"),
    [(ProviderRefused("no"), True), (NotSupported("no"), True), (ProviderUnavailable("perhaps"), False)],
)
def test_a_reinstall_that_certainly_did_not_happen_keeps_the_host_key(
    world: World, error: ShepherdError, kept: bool
) -> None:
    """Without the pin, any machine that answers at the address would be trusted."""
    world.policy = "reinstall:1,quarantine"
    world.pin()
    world.provider.then = refuse(error)
    assert world.run()[Metric.FAILED if kept else Metric.FINISHED] == 1
    assert ("host_key" in world.fleet.facts(world.machine)) is kept


def test_a_session_without_life_left_begins_no_step(world: World) -> None:
    """Its machine may be somebody else's by now."""
    session = world.fleet.open_session()
    (held,) = claimed(session, RECOVER)
    world.fleet.expire(session)
    with pytest.raises(SessionExpired):
        world.loop.decide(session, [held])
    assert world.told == []


def test_a_step_is_not_begun_on_work_that_was_lost(world: World) -> None:
    """It was taken over; the heir takes the step."""
    session = world.fleet.open_session()
    (held,) = claimed(session, RECOVER)
    world.fleet.sql("DELETE FROM work")
    assert world.loop.decide(session, [held]) == {}
    assert world.told == []


@pytest.mark.parametrize("lost", get_args(Lost))
def test_a_step_is_on_record_once_whatever_was_lost(world: World, lost: Lost) -> None:
    """An attempt that counts twice brings machines into quarantine too early."""
    with BreakingConnection(world.fleet.settings) as way:
        session = world.fleet.open_session(connection=world.fleet.connect(way.settings))
        (held,) = claimed(session, RECOVER)
        way.lose(lost)
        move = NextStep(Step(REBOOT, 1, defaults.TIMEOUTS), 1, skipped=(("restart-agent", "?"),))
        assert remediation.record_attempts(session, {held: move}) == [held]
        assert sorted(world.told) == ["Skipped restart-agent", "reboot"]
        world.fleet.disconnect()


@pytest.mark.parametrize("lost", get_args(Lost))
def test_quarantine_happens_once_whatever_was_lost(world: World, lost: Lost) -> None:
    """Said to be lost, it would be tried again; said to be done, it never would."""
    with BreakingConnection(world.fleet.settings) as way:
        session = world.fleet.open_session(connection=world.fleet.connect(way.settings))
        held = claimed(session, RECOVER)
        way.lose(lost)
        assert remediation.quarantine(session, {held[0]: "enough"}) == {world.machine}
        assert world.fleet.events(world.machine) == ["Started", "Quarantined", "Finished"]
        world.fleet.disconnect()


def test_an_expired_session_quarantines_nothing(world: World) -> None:
    """Its machine was given to somebody else, and may have come back."""
    session = world.fleet.open_session()
    held = claimed(session, RECOVER)
    world.fleet.expire(session)
    assert remediation.quarantine(session, {held[0]: "enough"}) == set()
    assert not world.quarantined


def test_concurrent_runs_take_each_step_once(world: World) -> None:
    """Two invocations may run at the same moment, at every step."""
    world.policy = "reboot:1,power-cycle:1,quarantine"
    for _ in range(3):
        together = threading.Barrier(2)

        def twin(together: threading.Barrier = together) -> None:
            connection = world.fleet.connect()
            together.wait(WAIT_SECONDS)
            world.run(connection)

        with ThreadPoolExecutor(2) as pool:
            for each in [pool.submit(twin) for _ in range(2)]:
                each.result()
        world.watch(2)
        world.start_agent(fails=True)
        world.fleet.pass_time(29 * MINUTE)  # as if the schedule had gone on, and not taken the next step
        record_heartbeat(world.fleet.connection, world.witness)
        world.fleet.sql("UPDATE recovery_snapshots SET taken_at = now()")
    assert world.provider.asked == ["reboot", "power-cycle"]
    assert world.told == ["reboot", "power-cycle", "quarantine", "Quarantined"]


def spared(world: World, happening: Callable[[], object]) -> dict[Metric, float]:
    """Let something happen just before the provider is asked, and return the counts of the invocation."""
    world.provider.before = lambda _: happening()
    return world.run()


def test_a_machine_that_reports_just_before_the_step_is_left_alone(world: World) -> None:
    """A reboot of a healthy machine is the worst that recovery can do; and what was not done does not count."""
    counts = spared(world, lambda: record_heartbeat(world.fleet.connect(), world.machine))
    assert (counts[Metric.NO_LONGER_DUE], counts[Metric.FINISHED], counts[Metric.FAILED]) == (1, 0, 0)
    assert world.provider.asked == []
    assert world.told == ["reboot", "NotTaken reboot", "Recovered"]
    assert world.place == []
    assert world.fleet.facts(world.machine) == {"agent_started", "agent_heartbeat"}
    world.provider.before = lambda _: None
    world.watch(9)
    assert world.provider.asked == []
    world.watch(4)
    assert world.provider.asked == ["reboot"], "it is due again when it is unhealthy again"
    assert world.place == [("reboot", False)]


HELD = f"INSERT INTO recovery_suspensions VALUES ('{PROVIDER}', '', now(), {{}}, 'an outage')"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("INSERT INTO pauses (machine_id, owner, reason) VALUES ({id}, 'me', 'memory')", "it is paused"),
        ("INSERT INTO pauses (owner, reason) VALUES ('me', 'an outage')", "it is paused"),
        (HELD.format("NULL"), "recovery is suspended"),
        (HELD.format("now()"), "its timeout has started again"),
        ("INSERT INTO machine_quarantine VALUES ({id}, now(), 'I said so', '')", "it needs no recovery any more"),
        ("DELETE FROM machine_agent_started WHERE machine_id = {id}", "it needs no recovery any more"),
    ],
)
def test_a_machine_that_is_not_due_any_more_is_not_struck(world: World, change: str, told: str) -> None:
    """Somebody stands before it, or held recovery back, in the moment in which it was to be rebooted."""
    session = world.fleet.open_session()
    (held,) = claimed(session, RECOVER)
    assert world.loop.no_longer_due(session, [held]) == {}
    world.fleet.change(world.machine, change.format(id=f"'{world.machine}'::uuid"))
    (reason,) = world.loop.no_longer_due(session, [held]).values()
    assert (str(reason), reason.recovered) == (told, False)


def test_a_machine_that_is_paused_just_before_the_step_is_given_back(world: World) -> None:
    """It did not recover, and nothing was done to it."""
    pause = "INSERT INTO pauses (machine_id, owner, reason) VALUES (:id, 'me', 'memory')"
    spared(world, lambda: world.fleet.sql(pause, id=world.machine))
    assert world.provider.asked == []
    assert world.told == ["reboot", "NotTaken reboot", "Canceled"]
    assert world.place == []


@pytest.mark.parametrize("ladder", ["restart-agent:1,quarantine", "reboot:1,quarantine"])
def test_a_machine_that_reports_loses_neither_its_agent_nor_its_freedom(world: World, ladder: str) -> None:
    """A new agent, and quarantine, are asked for of the BMDB and not of the provider; they wait for the same answer."""
    world.policy = ladder
    world.fleet.sql(
        "INSERT INTO work_history (machine_id, process, event, step, timestamp) "
        "VALUES (:id, 'ShepherdRecovery', 'Attempted', 'reboot', now() - interval '1 hour')",
        id=world.machine,
    )
    session = world.fleet.open_session()
    (held,) = claimed(session, RECOVER)
    decision = world.loop.decide(session, [held])[held]
    record_heartbeat(world.fleet.connection, world.machine)
    (reason,) = world.loop.no_longer_due(session, [held]).values()
    assert (str(reason), reason.recovered) == ("its agent reports again", True)
    assert decision.step.kind in {RESTART_AGENT, QUARANTINE}

    def ask(_: Deadline) -> None:
        raise reason

    attempt = Task(held, Deadline(world.clock, 60, session.seconds_left, ask), decision=decision)
    with pytest.raises(NoLongerDue):
        world.loop.work_on(attempt)
    assert attempt.not_taken == decision.step.name
    assert world.provider.asked == []


def test_machines_that_are_about_to_be_struck_are_looked_at_together(world: World) -> None:
    """One statement for all that wait at that moment, and not one for each."""
    session = world.fleet.open_session()
    others = [world.fleet.unhealthy_machine() for _ in range(3)]
    works = claimed(session, RECOVER)
    record_heartbeat(world.fleet.connection, others[0])
    found = world.loop.no_longer_due(session, works)
    assert len(works) == 4
    assert [held.machine_id for held in found] == [others[0]]


def test_nothing_is_struck_by_a_session_that_is_over_or_work_that_was_lost(world: World) -> None:
    """Somebody else has the machine by now."""
    session = world.fleet.open_session()
    (held,) = claimed(session, RECOVER)
    world.fleet.sql("DELETE FROM work")
    assert [str(reason) for reason in world.loop.no_longer_due(session, [held]).values()] == [
        "another session works on the machine"
    ]
    world.fleet.expire(session)
    with pytest.raises(SessionExpired):
        world.loop.no_longer_due(session, [held])


@pytest.mark.parametrize("lost", ["request", "answer"])
def test_a_recovered_machine_is_counted_once_whatever_was_lost(world: World, lost: str) -> None:
    """Said to be lost, it would be counted as harmed; ended twice, the history would lie."""
    with BreakingConnection(world.fleet.settings) as way:
        session = world.fleet.open_session(connection=world.fleet.connect(way.settings))
        (held,) = claimed(session, RECOVER)
        way.lose(lost)  # type: ignore[arg-type]  # one of the two
        assert remediation.no_longer_due(session, PROVIDER, [held]) == {}
        way.lose(lost)  # type: ignore[arg-type]  # one of the two
        reason = Unneeded("its agent reports again", recovered=True, not_taken="reboot")
        assert remediation.end_unneeded(session, {held: reason}) == {world.machine}
        assert world.fleet.events(world.machine) == ["Started", "NotTaken", "Recovered"]
        world.fleet.disconnect()


def test_a_reinstall_that_is_not_needed_any_more_keeps_the_host_key(world: World) -> None:
    """It was forgotten when the step was put on record; the machine is the one that we know."""
    world.policy = "reinstall:1,quarantine"
    world.pin()
    spared(world, lambda: record_heartbeat(world.fleet.connect(), world.machine))
    assert "host_key" in world.fleet.facts(world.machine)
    assert world.provider.asked == []


def waiting(world: World, count: int, location: str = "ams") -> list[UUID]:
    """Return machines that were told to come back and should have, and that SSH does not reach."""
    machines = world.fleet.machines(count, location=location)
    for machine in machines:
        world.fleet.change(
            machine,
            f"INSERT INTO machine_grace VALUES ('{machine}', now() - interval '1 hour', now() - interval '1 minute')",
            "INSERT INTO work_backoff (machine_id, process, until, cause, last_interval_seconds, fault) "
            f"VALUES ('{machine}', 'ShepherdAgentStart', now() + interval '1 minute', 'SshTimedOut: no', 300, "
            "'unreached')",
        )
    return machines


def test_machines_that_did_not_come_back_wait_during_an_ssh_outage(world: World) -> None:
    """The fault is the network, a firewall or the key: no running machine is power-cycled or quarantined for it."""
    pauses.pause(world.fleet.connection, owner="me", reason="another story", machine_id=world.machine)
    few = waiting(world, 2, "fra")
    many = waiting(world, 3)
    counts = world.run()
    assert counts[Metric.RECOVERY_SUSPENDED] == 1
    assert len(world.provider.asked) == 2
    assert {row[0] for row in world.fleet.sql("SELECT machine_id FROM machine_rebooted")} == set(few)
    (held,) = suspension.suspensions(world.fleet.connection)
    assert (held["location"], held["ended_at"]) == ("ams", None)
    assert held["reason"].startswith("SSH does not reach 3 machines that should have come back, and reached 0 in")
    (verdict,) = [
        each for each in explain.why(world.fleet.connection, many[0])[0] if not each.eligible
        and each.process is RECOVER
    ]  # fmt: skip
    assert verdict.because == f"recovery of machines that did not come back waits: {held['reason']}"


def unreachable(world: World, minutes: int, every: int = LOOK) -> None:
    """Let time pass in which SSH reaches no machine, as often as the Initializer tries."""
    for _ in range(0, minutes, every):
        world.watch(every, every)
        session = world.fleet.open_session()
        if found := claimed(session, START):
            work.fail(session, {held: Failure("SshTimedOut: no", 4 * HOUR, fault=SshTimedOut.fault) for held in found})
        session.close()


def test_an_ssh_outage_has_its_own_beginning_each_time(world: World) -> None:
    """It lasts while others begin and end, and one that begins again is a new one."""
    session = world.fleet.open_session()

    def began(*locations: str) -> dict[str, Any]:
        suspension.set_ssh_outages(session, PROVIDER, dict.fromkeys(locations, "SSH does not reach 3 machines"))
        found = suspension.suspensions(world.fleet.connection)
        return {outage["location"]: outage["suspended_at"] for outage in found if outage["ended_at"] is None}

    first = began("ams")
    assert began("ams", "fra")["ams"] == first["ams"]
    assert began("fra").keys() == {"fra"}
    assert began("ams")["ams"] > first["ams"]


def test_an_override_lets_machines_through_an_ssh_outage(world: World) -> None:
    """An operator who has seen that they are dead must be able to end their wait."""
    world.limits = replace(defaults.LIMITS, unhealthy=Limit(20, 1))  # else most of so small a fleet would be suspended
    pauses.pause(world.fleet.connection, owner="me", reason="another story", machine_id=world.machine)
    many = waiting(world, 6)
    unreachable(world, 60)
    assert world.provider.asked == []
    made = overrides.override(
        world.fleet.connection, provider=PROVIDER, location="ams", machines=3, owner="me", reason="dead", seconds=86400
    )
    assert made is not None
    counts = world.run()
    assert counts[Metric.RECOVERY_SUSPENDED] == 1
    assert counts[Metric.FINISHED] == len(world.provider.asked) == 3
    unreachable(world, 3 * 60 + 16)
    quarantined = {row[0] for row in world.fleet.sql("SELECT machine_id FROM machine_quarantine")}
    assert len(quarantined) == 3, "the override holds for all their steps"
    assert quarantined < set(many)
    started = "SELECT DISTINCT failed_cause FROM work_history WHERE event = 'Started' AND failed_cause IS NOT NULL"
    assert world.fleet.sql(started) == [["although recovery is suspended, by me: dead"]]


def test_a_machine_that_no_ssh_outage_holds_uses_no_override(world: World) -> None:
    """A machine that stopped reporting is recovered anyway."""
    waiting(world, 3)
    world.fleet.locate(world.machine, "ams")
    overrides.override(
        world.fleet.connection, provider=PROVIDER, location="", machines=3, owner="me", reason="dead", seconds=86400
    )
    world.run()
    world.watch(1)
    assert len(world.provider.asked) == 4
    assert overrides.overrides(world.fleet.connection)[0]["used"] == 3


def test_an_ssh_outage_ends_when_its_evidence_is_six_hours_old(world: World) -> None:
    """Three machines that are really dead would else hold up their own recovery without end."""
    world.limits = replace(defaults.LIMITS, unhealthy=Limit(20, 1))  # else most of so small a fleet would be suspended
    world.policy = "reboot:1,quarantine"
    pauses.pause(world.fleet.connection, owner="me", reason="another story", machine_id=world.machine)
    many = waiting(world, 3)
    unreachable(world, 5 * 60 + 40, every=20)
    unreachable(world, 12)
    assert world.provider.asked == []
    unreachable(world, 4 * 60, every=20)
    unreachable(world, 16)
    assert world.provider.asked == ["reboot"] * 3
    unreachable(world, 9 * 60, every=20)
    assert {row[0] for row in world.fleet.sql("SELECT machine_id FROM machine_quarantine")} == set(many)


def test_a_dry_run_lists_the_machines_that_an_ssh_outage_holds(world: World) -> None:
    """The operator decides about an override by this list."""
    pauses.pause(world.fleet.connection, owner="me", reason="another story", machine_id=world.machine)
    many = waiting(world, 3)
    unreachable(world, 12)
    found = dry_run(world.loop, PROVIDER, world.fleet.connection, world.clock, RunLimits(10, 60, 60))
    assert (found.work, set(ids(found.suspended))) == ([], set(many))
    assert {str(decision) for decision in found.decisions.values()} == {"reboot, attempt 1 of 3"}
    assert suspension.suspensions(world.fleet.connection)[0]["ended_at"] is None


def test_where_ssh_works_again_machines_wait_for_their_next_agent_start(world: World) -> None:
    """What failed during the outage tells nothing of them."""
    pauses.pause(world.fleet.connection, owner="me", reason="another story", machine_id=world.machine)
    machines = waiting(world, 3)
    world.run()
    world.watch(1)
    for _ in range(3):
        world.fleet.locate(world.fleet.started_machine(60), "ams")
    assert world.run()[Metric.RECOVERY_SUSPENDED] == 0
    assert suspension.suspensions(world.fleet.connection)[0]["ended_at"] is not None
    world.watch(9)
    assert world.provider.asked == []
    session = world.fleet.open_session()
    failed = {held: Failure("SshTimedOut: no", 300, fault=SshTimedOut.fault) for held in claimed(session, START)}
    assert machines[0] in {held.machine_id for held in failed}
    work.fail(session, failed)
    session.close()
    world.fleet.sql("DELETE FROM machine_grace WHERE machine_id <> :id", id=machines[0])
    world.watch(1)
    assert world.provider.asked == ["reboot"]


def test_machines_without_ssh_access_are_counted_and_explained(world: World) -> None:
    """No loop cures them, so an operator must see them."""
    world.run()
    world.watch(3)
    world.start_agent(error=SshHostKeyChanged("it has another key"))
    world.watch(12)
    assert world.run()[Metric.NO_ACCESS] == 1
    start, recover = explain.why(world.fleet.connection, world.machine)[0]
    assert start.eligible
    assert recover.because == (
        "its agent start fails for a reason that no reboot can remove: SshHostKeyChanged: it has another key"
    )
