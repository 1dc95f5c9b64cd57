"""A whole environment whose machines report through relays, and whose interval changes while it runs."""

from contextlib import closing

import pg8000.native

from simulator.environment.environment import Environment, EnvironmentSettings
from simulator.environment.status import machine_statuses, report, violated_invariants
from tests.support.waiting import eventually

MACHINES = 4
LONG_SECONDS = 200
"""Until all machines exist and report, on a slow computer."""


def test_machines_report_through_relays_at_an_interval_that_changes() -> None:
    """They are told of both with the answers to heartbeats. A relay that is killed reboots none of its machines."""
    settings = EnvironmentSettings(machines=MACHINES, provider="equinix", relays=2, heartbeat_seconds=240)
    with Environment(settings) as environment, closing(_database(environment)) as database:
        accepted = environment.endpoint.accepted
        eventually(lambda: accepted["relayed"] >= 3 * MACHINES, "no relay brought heartbeats", LONG_SECONDS)
        environment.set_heartbeat_seconds(480)
        intervals = "SELECT report_interval_seconds FROM machine_agent_heartbeat"
        eventually(lambda: database.run(intervals) == [[8]] * MACHINES, "not all were told", LONG_SECONDS)
        next(iter(environment.relays.values())).close()
        before = accepted["directly"]
        eventually(lambda: accepted["directly"] >= before + MACHINES // 2, "they wait for it", LONG_SECONDS)
        eventually(lambda: all(each.running for each in machine_statuses(environment)), "not all run", LONG_SECONDS)
        environment.schedules.close()
        assert violated_invariants(environment) == []
        assert report(environment)["heartbeats"] == dict(accepted)


def _database(environment: Environment) -> pg8000.native.Connection:
    settings = environment.bmdb_settings
    socket = f"{settings.bmdb_host}/.s.PGSQL.{settings.bmdb_port}"
    return pg8000.native.Connection(settings.bmdb_user, database=settings.bmdb_name, unix_sock=socket)
