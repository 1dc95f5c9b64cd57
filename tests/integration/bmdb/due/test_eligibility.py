"""The machines that a claim returns, at the boundaries of time; tests of ready machines have every kind of facts."""

from collections.abc import Callable
from uuid import UUID

import pytest
from shepherd_core.bmdb.recovery import remediation
from shepherd_core.domain.errors import SecretMissing, ShepherdError
from shepherd_core.domain.errors.machine import NoAddress, SshTimedOut
from shepherd_core.domain.machine import Process
from shepherd_core.domain.remediation import REBOOT, NextStep, Step
from shepherd_core.settings.functions.specs import PROCESS_OF_LOOP

from tests.support import defaults
from tests.support.bmdb import work_ends
from tests.support.bmdb.fleet import Fleet, claimed, ids


def failed(process: Process, interval: int, ago: float, error: ShepherdError | None = None) -> Callable[[Fleet], UUID]:
    def plant(fleet: Fleet) -> UUID:
        machine_id = work_ends.failed(fleet, error or ShepherdError("no luck"), interval, process)
        fleet.pass_time(ago)
        return machine_id

    return plant


def rebooted(settle: float, ago: float) -> Callable[[Fleet], UUID]:
    def plant(fleet: Fleet) -> UUID:
        machine_id = fleet.unhealthy_machine()
        session = fleet.open_session()
        held = claimed(session, Process.RECOVERY)
        remediation.record_attempts(session, dict.fromkeys(held, NextStep(Step(REBOOT, 1, defaults.TIMEOUTS), 1)))
        work_ends.finish_recovery(session, held, settle)
        session.close()
        fleet.pass_time(ago)
        return machine_id

    return plant


def restarted(started_ago: float) -> Callable[[Fleet], UUID]:
    return lambda fleet: fleet.unhealthy_machine(reported_ago=started_ago + 60, started_ago=started_ago)


START, RECOVER, NOTHING = Process.AGENT_START, Process.RECOVERY, None

STATES: dict[str, tuple[Callable[[Fleet], UUID], Process | None]] = {
    "bare": (Fleet.bare_machine, NOTHING),
    "provided": (Fleet.provided_machine, START),
    "provided by another provider": (lambda fleet: fleet.provided_machine("equinix"), NOTHING),
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


@pytest.mark.parametrize(("interval", "minutes"), [(0, 10), (10, 10), (240, 10), (300, 12.5), (600, 25), (3600, 150)])
def test_a_machine_is_unhealthy_after_two_and_a_half_intervals(fleet: Fleet, interval: int, minutes: float) -> None:
    """And after the timeout at the earliest; so no change of the interval makes a healthy machine look unhealthy."""
    machine_id = fleet.unhealthy_machine(60 * minutes - 20, started_ago=86_400)
    fleet.tell_interval(machine_id, interval)
    session = fleet.open_session()
    assert claimed(session, RECOVER) == []
    fleet.pass_time(20)
    assert ids(claimed(session, RECOVER)) == [machine_id]
