"""The figures of a health snapshot: which machines count, and from when until when."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

import pytest
from shepherd_core.bmdb.machines import pauses
from shepherd_core.bmdb.recovery import suspension
from shepherd_core.bmdb.recovery.suspension import HealthSnapshot
from shepherd_core.bmdb.session import Session
from shepherd_core.bmdb.work import work
from shepherd_core.bmdb.work.work import AgentStarted, Failure
from shepherd_core.domain.errors.machine import SshTimedOut
from shepherd_core.domain.health import LocationStats, SshReach, Unhealthy
from shepherd_core.domain.machine import Process
from shepherd_core.domain.remediation import REBOOT, RESTART_AGENT, StepKind

from tests.support import defaults
from tests.support.agents.heartbeats import record_heartbeat
from tests.support.bmdb.fleet import HOUR, PROVIDER, Fleet, claimed
from tests.support.bmdb.work_ends import KEY

START, RECOVER = Process.AGENT_START, Process.RECOVERY
STOPPED, NEVER = Unhealthy.STOPPED_REPORTING, Unhealthy.NEVER_REPORTED
MINUTE = 60
TIMEOUTS = replace(defaults.HEALTH, startup_timeout_seconds=30 * MINUTE, heartbeat_timeout_seconds=10 * MINUTE)
HERE, THERE = "rack 1", "rack 2"


def snapshot(fleet: Fleet) -> HealthSnapshot:
    """Return the figures of now."""
    return suspension.take_health_snapshot(fleet.open_session(), PROVIDER)


def due(fleet: Fleet) -> dict[str | None, int]:
    """Return how many machines are due now, by location."""
    return {location: len(machines) for location, machines in snapshot(fleet).due.items()}


def unhealthy(fleet: Fleet, location: str | None = HERE) -> UUID:
    """Return a machine that is due for recovery because its agent stopped reporting."""
    return fleet.locate(fleet.unhealthy_machine(), location)


def held(fleet: Fleet, process: Process, machine_id: UUID) -> tuple[Session, work.Work]:
    """Return a session that has claimed the machine, and no other."""
    session = fleet.open_session()
    works = {each.machine_id: each for each in claimed(session, process, timeouts=TIMEOUTS)}
    wanted = works.pop(machine_id)
    for other in works.values():
        work.cancel(session, [other])
    return session, wanted


def recovered(
    fleet: Fleet, location: str | None = HERE, grace_seconds: float | None = None, kind: StepKind = REBOOT
) -> UUID:
    """Return a machine that was rebooted just now because its agent had stopped reporting, or treated otherwise."""
    machine_id = unhealthy(fleet, location)
    session, mine = held(fleet, RECOVER, machine_id)
    work.finish_recovery(session, [mine], 0, grace_seconds=grace_seconds, kind=kind)
    return machine_id


def unreached(fleet: Fleet, location: str | None = HERE, kind: StepKind = REBOOT) -> UUID:
    """Return a machine that did not come back from that, because SSH does not reach it."""
    machine_id = recovered(fleet, location, grace_seconds=0, kind=kind)
    session, mine = held(fleet, START, machine_id)
    work.fail(session, {mine: Failure(SshTimedOut("no answer"), HOUR)})
    return machine_id


def start_agents(fleet: Fleet) -> None:
    """Start an agent on all machines that need one."""
    session = fleet.open_session()
    started = AgentStarted(KEY, None)
    work.finish_agent_start(session, dict.fromkeys(claimed(session, START), started))


each_due = pytest.mark.parametrize("due_machine", [unhealthy, unreached])


@pytest.mark.parametrize(
    ("minutes", "stats"), [(4, LocationStats(1, heard=1)), (6, LocationStats(0, Counter([STOPPED])))]
)
def test_a_machine_reports_for_half_of_the_heartbeat_timeout(fleet: Fleet, minutes: int, stats: LocationStats) -> None:
    """Later than that it may still be healthy, but it is no evidence that reports arrive."""
    fleet.locate(fleet.unhealthy_machine(reported_ago=minutes * MINUTE), HERE)
    assert snapshot(fleet).stats == {HERE: stats}


@pytest.mark.parametrize(
    ("interval", "minutes", "reports"),
    [(240, 4.9, True), (240, 5.1, False), (600, 12.4, True), (600, 12.6, False), (3600, 74, True), (3600, 76, False)],
)
def test_a_machine_with_a_longer_interval_reports_for_half_of_its_own_timeout(
    fleet: Fleet, interval: int, minutes: float, reports: bool
) -> None:
    """Or an hourly heartbeat would make the whole fleet look late, and suspend recovery for good."""
    machine_id = fleet.locate(fleet.unhealthy_machine(reported_ago=minutes * MINUTE), HERE)
    fleet.tell_interval(machine_id, interval)
    (stats,) = snapshot(fleet).stats.values()
    assert (stats.reporting, stats.late[STOPPED]) == ((1, 0) if reports else (0, 1))


@pytest.mark.parametrize(
    ("failed", "minutes", "heard", "losing"), [(0, 4, 1, 0), (1, 4, 1, 1), (1000, 4, 1, 1), (1, 6, 0, 0)]
)
def test_a_machine_that_lost_requests_counts_while_its_heartbeat_is_fresh(
    fleet: Fleet, failed: int, minutes: int, heard: int, losing: int
) -> None:
    """One machine is one sign, whatever number it claims; an hour later, an hourly heartbeat says nothing any more."""
    machine_id = fleet.locate(fleet.unhealthy_machine(reported_ago=minutes * MINUTE), HERE)
    fleet.tell_interval(machine_id, 3600)
    fleet.sql("UPDATE machine_agent_heartbeat SET failed_attempts = :failed", failed=failed)
    stats = snapshot(fleet).stats[HERE]
    assert (stats.reporting, stats.heard, stats.losing) == (1, heard, losing)


@pytest.mark.parametrize(("minutes", "late"), [(14, {}), (16, {HERE: {NEVER: 1}})])
def test_a_fresh_agent_is_late_after_half_of_the_startup_timeout(
    fleet: Fleet, minutes: int, late: dict[str, dict[Unhealthy, int]]
) -> None:
    """Its first heartbeat takes longer than the next ones."""
    fleet.locate(fleet.started_machine(minutes * MINUTE), HERE)
    assert {location: stats.late for location, stats in snapshot(fleet).stats.items() if stats.late} == late


@pytest.mark.parametrize("minutes", [0, 59, 61])
def test_a_machine_counts_as_recovered_for_an_hour(fleet: Fleet, minutes: int) -> None:
    """A fleet that fails slowly would be rebooted as a whole otherwise, a few machines at a time."""
    recovered(fleet)
    recovered(fleet, None)
    fleet.pass_time(minutes * MINUTE)
    stats = snapshot(fleet).stats
    expected = {HERE: {STOPPED: 1}, None: {STOPPED: 1}} if minutes < 60 else {}
    assert {location: each.recovered for location, each in stats.items() if each.recovered} == expected


@pytest.mark.parametrize(("minutes", "new"), [(59, 0), (61, 1)])
def test_a_machine_that_was_rebooted_within_an_hour_is_not_newly_due(fleet: Fleet, minutes: int, new: int) -> None:
    """It is known to be unhealthy, and counts as recovered already."""
    recovered(fleet)
    fleet.pass_time(MINUTE)
    start_agents(fleet)
    fleet.pass_time((minutes - 1) * MINUTE)
    found = snapshot(fleet)
    assert (len(found.due[HERE]), found.stats[HERE].due.total()) == (1, new)


def test_after_a_suspension_a_machine_is_newly_due_an_hour_after_its_reboot_as_ever(fleet: Fleet) -> None:
    """Otherwise the limit of the number would not see those that fail again."""
    recovered(fleet)
    fleet.pass_time(MINUTE)
    start_agents(fleet)
    fleet.pass_time(2 * HOUR)
    session = fleet.open_session()
    suspension.set_suspensions(session, PROVIDER, {HERE: "?"})
    fleet.sql("UPDATE recovery_suspensions SET ended_at = suspended_at")
    fleet.pass_time(40 * MINUTE)
    stats = snapshot(fleet).stats[HERE]
    assert (stats.due.total(), stats.recovered.total(), stats.recovered_in_trouble.total()) == (1, 0, 1)


@pytest.mark.parametrize(("kind", "new"), [(RESTART_AGENT, 1), (REBOOT, 0)])
def test_a_machine_that_did_not_come_back_is_newly_due_if_it_was_not_rebooted(
    fleet: Fleet, kind: StepKind, new: int
) -> None:
    """It was not counted before: an endpoint that takes no agents would have the fleet rebooted, past all limits."""
    for location in (HERE, THERE):
        unreached(fleet, location, kind)
    fleet.pass_time(2 * HOUR)
    assert {location: each.due.total() for location, each in snapshot(fleet).stats.items()} == dict.fromkeys(
        (HERE, THERE), new
    )


def test_machines_that_lost_their_agent_by_a_recovery_are_known(fleet: Fleet) -> None:
    """Without an agent they are neither reporting nor late; those that are, and those that report, count once."""
    recovered(fleet)
    back = recovered(fleet)
    session = fleet.open_session()
    works = claimed(session, START)
    work.finish_agent_start(session, {each: AgentStarted(KEY, None) for each in works if each.machine_id == back})
    session.close()
    record_heartbeat(fleet.connection, back)
    stats = snapshot(fleet).stats[HERE]
    assert (stats.reporting, stats.recovered[STOPPED], stats.uncounted[STOPPED]) == (1, 2, 1)


@pytest.mark.parametrize(("minutes", "reached"), [(59, 1), (61, 0)])
def test_an_agent_start_shows_for_an_hour_that_ssh_works(fleet: Fleet, minutes: int, reached: int) -> None:
    """An older one says nothing about the present network."""
    unreached(fleet)
    fleet.locate(fleet.started_machine(minutes * MINUTE), HERE)
    assert snapshot(fleet).ssh == {HERE: SshReach(unreached=1, reached=reached)}


def test_gaps_of_another_provider_do_not_count(fleet: Fleet) -> None:
    """Its Recoverer runs on its own schedule, or not at all."""
    fleet.sql("INSERT INTO recovery_snapshots VALUES ('equinix', now() - interval '1 hour')")
    fleet.sql(
        "INSERT INTO recovery_gaps (provider, began_at, ended_at) VALUES ('equinix', now() - interval '2 hours', now())"
    )
    assert snapshot(fleet).gaps == ()


@each_due
def test_a_paused_machine_is_not_due(fleet: Fleet, due_machine: Callable[..., UUID]) -> None:
    """No claim takes it; counted, it could suspend the recovery of the others."""
    machine_id = due_machine(fleet)
    assert due(fleet) == {HERE: 1}
    pauses.pause(fleet.connection, owner="me", reason="?", machine_id=machine_id)
    found = snapshot(fleet)
    assert (found.due, found.stats[HERE].late) == ({}, {})


@each_due
def test_machines_are_due_by_location_suspended_or_not(fleet: Fleet, due_machine: Callable[..., UUID]) -> None:
    """The circuit breaker counts those that its suspension holds, too; a claim does not take them."""
    for location in (HERE, THERE, None):
        due_machine(fleet, location)
    suspension.set_suspensions(fleet.open_session(), PROVIDER, {HERE: "many are unhealthy"})
    assert due(fleet).keys() >= {HERE, THERE, None} - ({HERE} if due_machine is unhealthy else set())
    assert {row.machine_id for row in claimed(fleet.open_session(), RECOVER)} == {
        row[0]
        for row in fleet.sql(
            "SELECT machine_id FROM machine_provided WHERE provider_location IS DISTINCT FROM :at", at=HERE
        )
    }


def test_a_machine_that_is_being_recovered_is_not_due(fleet: Fleet) -> None:
    """Another invocation has it; it counts as recovering."""
    unhealthy(fleet)
    claimed(fleet.open_session(), RECOVER)
    found = snapshot(fleet)
    assert (found.due, found.stats[HERE].recovered[STOPPED]) == ({}, 1)


def test_of_a_location_with_many_due_machines_others_are_not_hidden(fleet: Fleet) -> None:
    """One rack may have more dead machines than a snapshot looks at."""
    fleet.machines(2100, started_ago=3 * HOUR, reported_ago=2 * HOUR, location=HERE)
    unhealthy(fleet, THERE)
    found = due(fleet)
    assert (found[HERE], found[THERE]) == (1999, 1)
    assert snapshot(fleet).stats[HERE].late[STOPPED] == 2100
