"""The machines that a claim returns, for every state."""

from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

import pytest
from shepherd_core.bmdb.recovery import remediation
from shepherd_core.bmdb.work import work
from shepherd_core.bmdb.work.work import Failure
from shepherd_core.domain.errors import SecretMissing, ShepherdError
from shepherd_core.domain.errors.machine import NoAddress, SshTimedOut
from shepherd_core.domain.machine import Process
from shepherd_core.domain.remediation import REBOOT, NextStep, Step
from shepherd_core.settings.functions import PROCESS_OF_LOOP

from tests.support import defaults
from tests.support.bmdb.fleet import Fleet, claimed, ids
from tests.support.bmdb.work_ends import finish_recovery


def installed(
    machine: Callable[[Fleet], UUID], wanted: int | None, reported: int | None, *results: str, anew: int | None = None
) -> Callable[[Fleet], UUID]:
    """Return how to plant a machine with an installation request, reports of these *results*, and another request."""

    def plant(fleet: Fleet) -> UUID:
        machine_id = machine(fleet)
        if wanted is not None:
            fleet.request_installation(machine_id, wanted)
        for result in results or ("Success",):
            if reported is not None:
                fleet.report_installation(machine_id, reported, result)
        if anew is not None:
            fleet.request_installation(machine_id, anew)
        return machine_id

    return plant


def failed(process: Process, interval: int, ago: float, error: ShepherdError | None = None) -> Callable[[Fleet], UUID]:
    def plant(fleet: Fleet) -> UUID:
        machine_id = fleet.unhealthy_machine() if process is Process.RECOVERY else fleet.provided_machine()
        session = fleet.open_session()
        (found,) = claimed(session, process)
        work.fail(session, {found: Failure(error or ShepherdError("no luck"), interval)})
        session.close()
        fleet.pass_time(ago)
        return machine_id

    return plant


def rebooted(settle: float, ago: float) -> Callable[[Fleet], UUID]:
    def plant(fleet: Fleet) -> UUID:
        machine_id = fleet.unhealthy_machine()
        session = fleet.open_session()
        held = claimed(session, Process.RECOVERY)
        remediation.record_attempts(session, dict.fromkeys(held, NextStep(Step(REBOOT, 1, defaults.TIMEOUTS), 1)))
        finish_recovery(session, held, settle)
        session.close()
        fleet.pass_time(ago)
        return machine_id

    return plant


def restarted(started_ago: float) -> Callable[[Fleet], UUID]:
    return lambda fleet: fleet.unhealthy_machine(reported_ago=started_ago + 60, started_ago=started_ago)


START, RECOVER, NOTHING = Process.AGENT_START, Process.RECOVERY, None
provided, unhealthy = Fleet.provided_machine, Fleet.unhealthy_machine

STATES: dict[str, tuple[Callable[[Fleet], UUID], Process | None]] = {
    "bare": (Fleet.bare_machine, NOTHING),
    "provided": (provided, START),
    "provided by another provider": (lambda fleet: fleet.provided_machine("equinix"), NOTHING),
    "agent just started": (Fleet.started_machine, NOTHING),
    "installation wanted, no report": (installed(provided, 2, None), START),
    "installation wanted, older report": (installed(provided, 2, 1), START),
    "installation wanted, report of another generation": (installed(provided, 2, 3), START),
    "installation wanted, it failed": (installed(provided, 2, 2, "Error"), START),
    "installation wanted, it failed and then succeeded": (installed(provided, 2, 2, "Error", "Success"), NOTHING),
    "installation wanted, an older one failed and then succeeded": (
        installed(provided, 3, 2, "Error", "Success"),
        START,
    ),
    "installation wanted and done": (installed(provided, 2, 2), NOTHING),
    "installation done, and another wanted": (installed(provided, 2, 2, anew=3), START),
    "installation failed, and another wanted": (installed(provided, 2, 2, "Error", anew=3), START),
    "report without a request": (installed(provided, None, 2), START),
    "installation wanted and done, agent just started": (installed(Fleet.started_machine, 2, 2), NOTHING),
    "agent start failed just now": (failed(START, 300, 0), NOTHING),
    "agent start failed, not quite long enough ago": (failed(START, 300, 295), NOTHING),
    "agent start failed, long enough ago": (failed(START, 300, 300), START),
    "no first heartbeat, not quite for 30 minutes": (lambda fleet: fleet.started_machine(1795), NOTHING),
    "no first heartbeat for 30 minutes": (lambda fleet: fleet.started_machine(1800), RECOVER),
    "no heartbeat, not quite for 10 minutes": (lambda fleet: fleet.unhealthy_machine(595), NOTHING),
    "no heartbeat for 10 minutes": (lambda fleet: fleet.unhealthy_machine(600), RECOVER),
    "no heartbeat for 10 minutes, started 15 minutes ago": (lambda fleet: fleet.unhealthy_machine(600, 900), RECOVER),
    "heartbeat older than the agent, not quite 30 minutes": (restarted(1795), NOTHING),
    "heartbeat older than the agent, 30 minutes": (restarted(1800), RECOVER),
    "unhealthy, installation wanted": (installed(unhealthy, 2, None), RECOVER),
    "unhealthy, installation wanted, older report": (installed(unhealthy, 2, 1), RECOVER),
    "unhealthy, installation wanted, it failed": (installed(unhealthy, 2, 2, "Error"), RECOVER),
    "unhealthy, installation wanted, report of another generation": (installed(unhealthy, 2, 3), RECOVER),
    "unhealthy, installation wanted, it failed and then succeeded": (
        installed(unhealthy, 2, 2, "Error", "Success"),
        NOTHING,
    ),
    "unhealthy, installation wanted, an older one failed, then succeeded": (
        installed(unhealthy, 3, 2, "Error", "Success"),
        RECOVER,
    ),
    "unhealthy, installation wanted and done": (installed(unhealthy, 2, 2), NOTHING),
    "unhealthy, installation done, and another wanted": (installed(unhealthy, 2, 2, anew=3), RECOVER),
    "unhealthy, installation failed, and another wanted": (installed(unhealthy, 2, 2, "Error", anew=3), RECOVER),
    "unhealthy, report without a request": (installed(unhealthy, None, 2), RECOVER),
    "unhealthy, never a heartbeat, installation wanted and done": (
        installed(lambda fleet: fleet.started_machine(1800), 2, 2),
        NOTHING,
    ),
    "recovery failed just now": (failed(RECOVER, 60, 0), NOTHING),
    "recovery failed, long enough ago": (failed(RECOVER, 60, 60), RECOVER),
    "never up, an agent start failed, not quite for six hours": (failed(START, 30_000, 21_595), NOTHING),
    "never up, an agent start failed, for six hours": (failed(START, 30_000, 21_600), RECOVER),
    "never up, nothing answered, for six hours": (failed(START, 30_000, 21_600, SshTimedOut()), RECOVER),
    "never up for six hours, by our own fault": (failed(START, 30_000, 21_600, SecretMissing()), NOTHING),
    "never up for six hours, no access": (failed(START, 30_000, 21_600, NoAddress()), NOTHING),
    "rebooted, not quite settled": (rebooted(120, 115), NOTHING),
    "rebooted and settled": (rebooted(120, 120), START),
}


@pytest.mark.parametrize(("plant", "needs"), STATES.values(), ids=STATES)
def test_only_the_loop_that_a_machine_needs_claims_it(
    fleet: Fleet, plant: Callable[[Fleet], UUID], needs: Process | None
) -> None:
    machine_id = plant(fleet)
    session = fleet.open_session()
    for loop in PROCESS_OF_LOOP.values():
        assert ids(claimed(session, loop)) == ([machine_id] if loop is needs else [])


def test_the_timeouts_of_an_agent_are_settings(fleet: Fleet) -> None:
    never, once = fleet.started_machine(30), fleet.unhealthy_machine(20)
    session = fleet.open_session()
    timeouts = replace(defaults.HEALTH, startup_timeout_seconds=100, heartbeat_timeout_seconds=50)
    assert claimed(session, RECOVER, timeouts=timeouts) == []
    fleet.pass_time(50)
    assert ids(claimed(session, RECOVER, timeouts=timeouts)) == [once]
    fleet.pass_time(50)
    assert ids(claimed(session, RECOVER, timeouts=timeouts)) == [never]


@pytest.mark.parametrize(("interval", "minutes"), [(0, 10), (10, 10), (240, 10), (300, 12.5), (600, 25), (3600, 150)])
def test_a_machine_is_unhealthy_after_two_and_a_half_intervals(fleet: Fleet, interval: int, minutes: float) -> None:
    """And after the timeout at the earliest; so no change of the interval makes a healthy machine look unhealthy."""
    machine_id = fleet.unhealthy_machine(60 * minutes - 20, started_ago=86_400)
    fleet.tell_interval(machine_id, interval)
    session = fleet.open_session()
    assert claimed(session, RECOVER) == []
    fleet.pass_time(20)
    assert ids(claimed(session, RECOVER)) == [machine_id]


def test_the_machine_that_waited_longest_is_claimed_first(fleet: Fleet) -> None:
    machines = [fleet.provided_machine() for _ in range(5)]
    for position, machine_id in enumerate(reversed(machines)):
        fleet.sql(
            "UPDATE machines SET machine_created_at = clock_timestamp() - :s * interval '1 second' "
            "WHERE machine_id = :id",
            id=machine_id,
            s=100 - position,
        )
    session = fleet.open_session()
    first = claimed(session, START, 2)
    second = claimed(session, START, 2)
    third = claimed(session, START, 2)
    assert [ids(claim) for claim in (first, second, third)] == [machines[:2:-1], machines[2:0:-1], machines[:1]]
