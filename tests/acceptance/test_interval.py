import pg8000.native

from simulator.environment.environment import Environment, EnvironmentSettings
from simulator.environment.status import machine_statuses, violated_invariants
from tests.support.waiting import eventually

MACHINES = 4
LONG_SECONDS = 200  # until all machines exist and report, on a slow computer


def test_agents_follow_an_interval_that_changes() -> None:
    with Environment(EnvironmentSettings(machines=MACHINES)) as environment, _database(environment) as database:
        intervals = "SELECT report_interval_seconds FROM machine_agent_heartbeat"
        for fleet_seconds, seconds in ((60, 1), (480, 8)):
            environment.set_heartbeat_seconds(fleet_seconds)
            told = [[seconds]] * MACHINES
            eventually(lambda told=told: database.run(intervals) == told, "not all were told", LONG_SECONDS)  # type: ignore[misc]
        eventually(lambda: all(each.running for each in machine_statuses(environment)), "not all run", LONG_SECONDS)
        environment.schedules.close()
        assert violated_invariants(environment) == []


def _database(environment: Environment) -> pg8000.native.Connection:
    name, socket = environment.bmdb_settings.bmdb_name, str(environment.postgres.socket)
    return pg8000.native.Connection("postgres", database=name, unix_sock=socket, ssl_context=False)
