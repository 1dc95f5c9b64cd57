"""What operators are told about a machine, compared with what claims do, under all that may hold a machine back."""

from collections.abc import Callable
from uuid import UUID

import pytest
from shepherd_core.bmdb.recovery import explain
from shepherd_core.bmdb.work import work
from shepherd_core.settings.functions import PROCESS_OF_LOOP

from tests.support.bmdb.fleet import PROVIDER, Fleet, claimed, ids

LOOPS = tuple(PROCESS_OF_LOOP.values())
HERE = "ams"
_NOW = "clock_timestamp()"


def _not_back(fleet: Fleet) -> UUID:
    machine_id = fleet.provided_machine()
    fleet.sql(
        f"INSERT INTO machine_grace SELECT :id, {_NOW} - interval '2 hours', {_NOW} - interval '1 hour'", id=machine_id
    )
    fleet.sql(
        "INSERT INTO work_backoff (machine_id, process, until, cause, last_interval_seconds, fault) "
        f"SELECT :id, 'ShepherdAgentStart', {_NOW}, '?', 60, 'unreached'",
        id=machine_id,
    )
    return machine_id


def _backing_off(fleet: Fleet) -> UUID:
    machine_id = fleet.unhealthy_machine()
    fleet.sql(
        f"INSERT INTO work_backoff SELECT :id, 'ShepherdRecovery', {_NOW} + interval '1 hour', '?', 60", id=machine_id
    )
    return machine_id


def _booting(fleet: Fleet) -> UUID:
    machine_id = fleet.provided_machine()
    fleet.sql(f"INSERT INTO machine_rebooted SELECT :id, {_NOW}, {_NOW} + interval '5 minutes'", id=machine_id)
    return machine_id


def _installed(fleet: Fleet) -> UUID:
    machine_id = fleet.unhealthy_machine()
    fleet.request_installation(machine_id, 1)
    fleet.report_installation(machine_id, 1)
    return machine_id


MACHINES: dict[str, Callable[[Fleet], UUID]] = {
    "without an agent": Fleet.provided_machine,
    "booting": _booting,
    "starting": Fleet.started_machine,
    "running": Fleet.reporting_machine,
    "unhealthy": Fleet.unhealthy_machine,
    "unhealthy, and its recovery failed": _backing_off,
    "not back": _not_back,
    "quarantined": lambda fleet: fleet.quarantine(fleet.unhealthy_machine()),
    "installed": _installed,
}


def _pause(machine: bool, process: str | None, provider: str | None, minutes: int) -> str:
    of = [f"'{value}'" if value else "NULL" for value in (process, provider)]
    return (
        "INSERT INTO pauses (machine_id, process, provider, owner, reason, expires_at) "
        f"SELECT {':id' if machine else 'NULL'}, {', '.join(of)}, 'me', '?', {_NOW} + interval '{minutes} minutes'"
    )


HOLDS: dict[str, tuple[str, ...]] = {
    "nothing": (),
    "its pause": (_pause(True, None, None, 5),),
    "its pause, which is over": (_pause(True, None, None, -5),),
    "its pause for recovery": (_pause(True, "ShepherdRecovery", None, 5),),
    "its pause for another provider": (_pause(True, None, "equinix", 5),),
    "a pause of everything": (_pause(False, None, None, 5),),
    "a pause of everything, which is over": (_pause(False, None, None, -5),),
    "a pause of the agent start here": (_pause(False, "ShepherdAgentStart", PROVIDER, 5),),
    "a pause of another provider": (_pause(False, None, "equinix", 5),),
    "its step waits for the budget": (
        "DELETE FROM work_backoff WHERE machine_id = :id AND process = 'ShepherdRecovery'",
        f"INSERT INTO work_backoff SELECT :id, 'ShepherdRecovery', {_NOW} + interval '5 minutes', '?'",
    ),
    "the budget is used up": (
        f"INSERT INTO recovery_budgets SELECT '{PROVIDER}', '{HERE}', 0, 'losing', '?'",
        f"INSERT INTO recovery_budgets SELECT '{PROVIDER}', '', 0, 'silent', '?'",
    ),
}


@pytest.mark.parametrize("name", MACHINES)
def test_operators_are_told_what_claims_do(fleet: Fleet, name: str) -> None:
    """Both read one view; what they read besides it must not differ either."""
    answers: set[bool] = set()
    for hold, statements in HOLDS.items():
        fleet.empty()
        fleet.watch(PROVIDER)
        machine_id = fleet.locate(MACHINES[name](fleet), HERE)
        for statement in statements:
            fleet.sql(statement, **({"id": machine_id} if ":id" in statement else {}))
        told = {verdict.process: verdict.eligible for verdict in explain.why(fleet.connection, machine_id)}
        session = fleet.open_session()
        taken = {}
        for loop in LOOPS:
            held = claimed(session, loop)
            taken[loop] = ids(held) == [machine_id]
            if held:
                work.cancel(session, held)
        assert told == taken, hold
        answers.update(told.values())
    assert answers == ({True, False} if name in ("without an agent", "unhealthy", "not back") else {False})
