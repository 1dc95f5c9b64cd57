from contextlib import nullcontext

import pytest
from shepherd_core.bmdb.connection import Connection
from shepherd_core.domain.clock import Deadline
from shepherd_core.domain.errors import DriftLimitExceeded
from shepherd_core.operator.adopt_forget import ActionResult, Adopt
from shepherd_core.operator.drift_repair import DriftRepair
from shepherd_core.rules.drift import DriftKind
from shepherd_core.settings.functions.bmdb import BmdbSettings

from simulator.environment.postgres import Postgres
from tests.conftest import ManualClock
from tests.support.bmdb.capacity import provided, provisioner
from tests.support.bmdb.fleet import HOUR, Fleet
from tests.support.providers.fake_provider import Cloud

LIMIT, DRIFT_LIMIT = 6, 3


def provision(connection: Connection, cloud: Cloud, clock: ManualClock, limit: int = LIMIT) -> None:
    found = provisioner(cloud, connection, clock, max_machines=limit, drift_limit=DRIFT_LIMIT)
    found.run(Deadline(clock, 600), "a test")


@pytest.mark.parametrize("lost", range(LIMIT + 1))
def test_a_restored_bmdb_gets_its_machines_back(
    postgres: Postgres, database: BmdbSettings, clock: ManualClock, lost: int
) -> None:
    """Whatever number of creations the backup lacks; up to the drift limit, the rest of the fleet goes on."""
    cloud = Cloud(2 * LIMIT)
    connection = Connection(database, None, clock)
    if lost < LIMIT:
        provision(connection, cloud, clock, LIMIT - lost)
    connection.close()
    backup = postgres.new_database(database.bmdb_name)
    provision(connection, cloud, clock)
    connection.close()
    assert len(cloud.machines) == LIMIT

    restored = Fleet(backup, clock)
    for _ in range(3):
        with pytest.raises(DriftLimitExceeded) if lost > DRIFT_LIMIT else nullcontext():
            provision(restored.connection, cloud, clock)
        restored.pass_time(HOUR)
        assert (len(cloud.machines), len(provided(restored))) == (LIMIT, LIMIT - lost)

    repair = DriftRepair(cloud, restored.connection, clock, LIMIT, 60)
    deadline = Deadline(clock, 600)
    comparison = repair.compare(deadline)
    action = Adopt(comparison.unknown(DriftKind.FOREIGN), DriftKind.FOREIGN, LIMIT, "me")
    outcomes = repair.carry_out(action, action.evaluate(comparison), deadline, "a test")
    assert [outcome.result for outcome in outcomes] == [ActionResult.DONE] * lost
    provision(restored.connection, cloud, clock)
    assert set(provided(restored)) == set(cloud.machines)
    restored.close()
    postgres.drop(backup)
