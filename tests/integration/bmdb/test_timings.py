"""How long machines take: the first heartbeat as a fact, and what the history tells about boots and takeovers."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import pytest
from shepherd_core.bmdb.agents import reports
from shepherd_core.bmdb.machines.timings import timings
from shepherd_core.bmdb.recovery.remediation import quarantine
from shepherd_core.bmdb.work import work
from shepherd_core.domain.machine import Process
from shepherd_core.domain.remediation import AWAIT_INSTALLATION, RESTART_AGENT

from tests.support.bmdb.fleet import HOUR, PROVIDER, Fleet, claimed

KEY = b"\x5e" * 32
START, RECOVERY = "ShepherdAgentStart", "ShepherdRecovery"
FIRST = "SELECT first_heartbeat_at, agent_heartbeat_at FROM machine_agent_heartbeat WHERE machine_id = :id"


def report(fleet: Fleet, machine_id: UUID, later: int = 0, **options: Any) -> bool:
    """Send a heartbeat, signed so many milliseconds from now; return whether it was accepted."""
    connection = options.get("connection", fleet.connection)
    now = reports.reporting_agents(connection, [machine_id])[machine_id].time
    heartbeat = reports.Heartbeat(machine_id=machine_id, public_key=KEY, signed_at=now + later)
    return machine_id in reports.accept_heartbeats(connection, [heartbeat], 300)


# --- the fact ---


def test_the_first_heartbeat_stays_the_first(fleet: Fleet) -> None:
    """Later ones move the last heartbeat alone, on their page and without an index entry (HOT)."""
    machine_id = fleet.started_machine()
    assert report(fleet, machine_id)
    ((first, last),) = fleet.sql(FIRST, id=machine_id)
    assert abs((last - first).total_seconds()) < 1
    for later in (1, 2, 3):
        assert report(fleet, machine_id, later)
    ((same, moved),) = fleet.sql(FIRST, id=machine_id)
    assert (same, moved > last) == (first, True)
    indexed = (
        "SELECT count(*) FROM pg_index i, unnest(i.indkey) AS key JOIN pg_attribute a ON a.attnum = key "
        "WHERE a.attrelid = 'machine_agent_heartbeat'::regclass AND i.indrelid = a.attrelid AND attname <> 'machine_id'"
    )
    assert fleet.sql(indexed) == [[0]], "an index on another column would end HOT updates"


def test_concurrent_first_heartbeats_leave_one_that_is_not_later_than_the_last(fleet: Fleet) -> None:
    """An agent repeats a heartbeat whose answer it did not get, and both may arrive at the same moment."""
    for _ in range(10):
        machine_id = fleet.started_machine()
        connections = [fleet.connect() for _ in range(4)]
        together = threading.Barrier(4)

        def send(number: int, *, machine_id: UUID = machine_id, connections: Any = connections) -> bool:
            together.wait()  # noqa: B023 - of this round
            return report(fleet, machine_id, number, connection=connections[number])

        with ThreadPoolExecutor(4) as threads:
            assert any(threads.map(send, range(4)))
        ((first, last),) = fleet.sql(FIRST, id=machine_id)
        report(fleet, machine_id, 10)
        assert fleet.sql(FIRST, id=machine_id)[0][0] == first
        assert (last - first).total_seconds() > -0.1


def test_each_takeover_begins_with_a_first_heartbeat_of_its_own(fleet: Fleet) -> None:
    """The time from the start of an agent to its first heartbeat is that of this agent."""
    machine_id = fleet.started_machine(HOUR)
    assert report(fleet, machine_id)
    fleet.pass_time(2 * HOUR)
    before = fleet.sql(FIRST, id=machine_id)[0][0]
    session = fleet.open_session()
    (held,) = claimed(session, Process.RECOVERY)
    work.finish_recovery(session, [held], 0)
    assert fleet.sql(FIRST, id=machine_id) == []
    (held,) = claimed(session, Process.AGENT_START)
    work.finish_agent_start(session, {held: work.AgentStarted(KEY, None)})
    assert fleet.sql(FIRST, id=machine_id) == []
    assert report(fleet, machine_id)
    assert fleet.sql(FIRST, id=machine_id)[0][0] > before


# --- what is told of it ---


class Past:
    """A machine and its history, by the seconds since it was created ten hours ago."""

    def __init__(self, fleet: Fleet, location: str | None = None) -> None:
        self.fleet = fleet
        self.machine_id = fleet.locate(fleet.provided_machine(), location)
        fleet.sql(
            "UPDATE machines SET machine_created_at = now() - interval '10 hours' WHERE machine_id = :id",
            id=self.machine_id,
        )

    def line(self, at: float, process: str, event: str, *, step: str | None = None, cause: str | None = None) -> None:
        """Add a line."""
        self.fleet.sql(
            "INSERT INTO work_history (machine_id, process, event, timestamp, step, failed_cause) VALUES "
            "(:id, :process, :event, now() - interval '10 hours' + :at * interval '1 second', :step, :cause)",
            id=self.machine_id,
            process=process,
            event=event,
            at=at,
            step=step,
            cause=cause,
        )

    def start(self, at: float, seconds: float = 5, cause: str | None = None) -> None:
        """Add an agent start; with a *cause* it fails."""
        self.line(at, START, "Started")
        self.line(at + seconds, START, "Failed" if cause else "Finished", cause=cause)

    def step(self, at: float, step: str = "reboot") -> None:
        """Add a recovery step that ends then."""
        self.line(at - 2, RECOVERY, "Started")
        self.line(at - 1, RECOVERY, "Attempted", step=step)
        self.line(at, RECOVERY, "Finished")

    def look(self, at: float, step: str) -> None:
        """Add a look that finds the machine alive, and the step that is taken then instead of an attempt."""
        self.line(at - 2, RECOVERY, "Started")
        self.line(at - 1, RECOVERY, "Looked", step=step, cause="it answers")
        self.line(at, RECOVERY, "Finished")


def told(fleet: Fleet, what: str, after: str | None = None, location: str | None = None) -> list[float]:
    """Return samples, failed starts, p50 and p99 of one time; nothing if there are no samples."""
    found = [
        each
        for each in timings(fleet.connection)
        if (each["what"], each["after"], each["location"]) == (what, after, location)
    ]
    return [round(each[name]) for each in found for name in ("samples", "failed_starts", "p50", "p99")]


def test_the_takeover_is_told_from_claim_to_started_agent(fleet: Fleet) -> None:
    """Of agent starts that succeeded; those that failed say nothing about how long one takes."""
    for seconds in (4, 6, 40):
        past = Past(fleet)
        past.start(100, 300, cause="SshTimedOut: no")
        past.start(900, seconds)
    assert told(fleet, "takeover") == [3, 0, 6, 40]


def test_a_boot_is_told_from_the_step_to_the_agent_start_that_reached_the_machine(fleet: Fleet) -> None:
    """The last step counts, and each kind of step by itself: a reinstallation takes longer."""
    past = Past(fleet)
    past.start(60)
    past.step(1_000)
    past.step(2_000, "power-cycle")
    past.start(2_130)
    past.step(5_000, "reinstall")
    past.start(5_900)
    assert told(fleet, "boot", "creation") == [1, 0, 60, 60]
    assert told(fleet, "boot", "power-cycle") == [1, 0, 130, 130]
    assert told(fleet, "boot", "reinstall") == [1, 0, 900, 900]
    assert told(fleet, "boot", "reboot") == []
    assert told(fleet, "return", "power-cycle") == [1, 0, 135, 135]
    assert told(fleet, "return", "creation") == []


@pytest.mark.parametrize("cause", ["SshRefused: no", "SshTimedOut: no", "SshConnectionLost: no", "NoAddress: no"])
def test_after_a_failed_agent_start_a_boot_ended_between_the_two(fleet: Fleet, cause: str) -> None:
    """The second attempt waits for a backoff, and would make the boot look minutes longer than it is."""
    past = Past(fleet)
    past.step(1_000)
    past.start(1_120, 10, cause=cause)
    past.start(1_430)
    assert told(fleet, "boot", "reboot") == [1, 1, 280, 280]


def test_a_failure_of_a_machine_that_was_up_is_no_boot(fleet: Fleet) -> None:
    """A full disk or a wrong key says nothing about how long the machine takes to boot."""
    past = Past(fleet)
    past.start(900, cause="SshRefused: before the step")
    past.step(1_000)
    past.start(1_120, 10, cause="SshUploadFailed: disk full")
    past.start(1_430)
    assert told(fleet, "boot", "reboot") == [1, 0, 430, 430]


def test_what_comes_after_a_quarantine_is_no_boot(fleet: Fleet) -> None:
    """The machine stood in the corner until an operator had time."""
    past = Past(fleet)
    past.start(60)
    past.step(1_000)
    past.line(3_000, RECOVERY, "Quarantined")
    past.line(30_000, RECOVERY, "Unquarantined")
    past.start(30_010)
    assert told(fleet, "boot", "reboot") == []
    assert told(fleet, "takeover") == [2, 0, 5, 5]


def test_a_quarantine_instead_of_an_agent_start_is_no_takeover(fleet: Fleet) -> None:
    """A machine that kills its functions is quarantined by the Initializer, whose work then counts as finished."""
    machine_id, session = fleet.provided_machine(), fleet.open_session()
    (held,) = claimed(session, Process.AGENT_START)
    assert quarantine(session, {held: "?"}) == {machine_id}
    assert timings(fleet.connection) == []


@pytest.mark.parametrize("event", ["Adopted", "Resumed", "ReleaseCanceled"])
def test_what_an_operator_held_back_is_no_boot(fleet: Fleet, event: str) -> None:
    """An adopted machine runs already; a paused one waits for the operator."""
    past = Past(fleet)
    past.line(30, START, event)
    past.start(60)
    assert told(fleet, "boot", "creation") == []
    past.step(1_000)
    past.line(20_000, START, event)
    past.start(20_010)
    assert told(fleet, "boot", "reboot") == []
    assert told(fleet, "return", "reboot") == []
    assert told(fleet, "takeover") == [2, 0, 5, 5]


def test_an_agent_restart_is_no_boot(fleet: Fleet) -> None:
    """The machine goes on running; it returns all the same."""
    past = Past(fleet)
    past.step(1_000, "restart-agent")
    past.start(1_010)
    assert told(fleet, "boot", "restart-agent") == []
    assert told(fleet, "return", "restart-agent") == [1, 0, 15, 15]


@pytest.mark.parametrize("step", [RESTART_AGENT.name, AWAIT_INSTALLATION.name])
def test_a_step_after_a_look_is_no_boot(fleet: Fleet, step: str) -> None:
    """The look found the machine alive; the reboot that was begun before was not taken."""
    past = Past(fleet)
    past.line(998, RECOVERY, "Started")
    past.line(999, RECOVERY, "Attempted", step="reboot")
    past.line(999.5, RECOVERY, "NotTaken", step="reboot")
    past.line(1_000, RECOVERY, "Recovered")
    past.look(2_000, step)
    past.start(2_010)
    assert told(fleet, "boot", "reboot") == []
    assert told(fleet, "return", "reboot") == []
    assert told(fleet, "boot", step) == []
    assert told(fleet, "return", step) == [1, 0, 15, 15]


def test_a_creation_that_the_history_does_not_reach_is_not_counted(fleet: Fleet) -> None:
    """Rows are deleted after their retention: the first start in the history need not be the machine's first."""
    past = Past(fleet)
    past.start(30_000)
    assert told(fleet, "boot", "creation") == []


def test_the_first_heartbeat_is_told_of_the_present_agents(fleet: Fleet) -> None:
    """From the start of the agent; one that never reported is none."""
    for started_ago in (60, 70, 200):
        machine_id = fleet.locate(fleet.started_machine(started_ago), "ams")
        fleet.sql(
            "INSERT INTO machine_agent_heartbeat VALUES (:id, now(), 0, now() - interval '50 seconds')", id=machine_id
        )
    fleet.locate(fleet.started_machine(300), "ams")
    assert told(fleet, "first heartbeat", location="ams") == [3, 0, 20, 150]


def test_a_heartbeat_of_an_earlier_agent_is_not_told(fleet: Fleet) -> None:
    """Such a row may remain if a recovery and the very first heartbeat meet."""
    machine_id = fleet.started_machine(60)
    fleet.sql("INSERT INTO machine_agent_heartbeat VALUES (:id, now(), 0, now() - interval '2 minutes')", id=machine_id)
    assert told(fleet, "first heartbeat") == []


def test_locations_and_providers_are_told_apart_with_the_policy_of_each(fleet: Fleet) -> None:
    """A rack of old machines boots slower than the rest."""
    for location, seconds in (("ams", 100), ("fra", 200), (None, 300)):
        past = Past(fleet, location)
        past.step(1_000)
        past.start(1_000 + seconds)
    fleet.watch(PROVIDER)
    fleet.sql(
        "INSERT INTO machine_rebooted SELECT machine_id, timestamp, timestamp + interval '90 seconds' "
        "FROM work_history WHERE process = 'ShepherdRecovery' AND event = 'Finished'"
    )
    for location, seconds in (("ams", 100), ("fra", 200), (None, 300)):
        assert told(fleet, "boot", "reboot", location) == [1, 0, seconds, seconds]
    records = [each for each in timings(fleet.connection) if each["what"] == "boot"]
    assert {(each["provider"], each["boot_wait_seconds"]) for each in records} == {(PROVIDER, 90)}
    assert {(each["startup_timeout_seconds"], each["grace_seconds"]) for each in records} == {(1800, 1800)}


def test_only_the_latest_history_is_read(fleet: Fleet) -> None:
    """The command takes the same time for any number of machines and years."""
    for at in (10_000, 20_000, 30_000):
        Past(fleet).start(at, at / 1_000)
    (found,) = timings(fleet.connection, limit=4)
    assert (found["what"], found["samples"], round(found["p50"]), round(found["p99"])) == ("takeover", 2, 20, 30)
    fleet.pass_time(31 * 24 * HOUR)
    assert timings(fleet.connection) == []
