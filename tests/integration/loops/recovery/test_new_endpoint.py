"""A fleet whose endpoint has gone: each machine is found alive, and gets an agent that reports to the new one."""

from tests.conftest import ManualClock
from tests.integration.loops.recovery.site import NEW, OLD, Site
from tests.support.bmdb.fleet import Fleet
from tests.support.bmdb.recovery import RecoveryEnvironment

MACHINES = 100


def test_a_fleet_moves_to_a_new_endpoint_without_a_reboot(fleet: Fleet, clock: ManualClock) -> None:
    """Looks find the machines alive, and their agents are started with the endpoint in force; no budget is used."""
    env = RecoveryEnvironment(fleet, clock)
    machines = fleet.machines(MACHINES, started_ago=3 * 3600, reported_ago=0)
    env.provider = site = Site(fleet)
    env.look = site.look
    address = dict(fleet.sql("SELECT machine_id, provider_ip_address FROM machine_provided"))

    def minutes(number: int, alive: str) -> None:
        for _ in range(number):
            env.reporting = [each for each in machines if site.endpoints[address[each]] == alive]
            env.tick()
            site.start_agents(fleet, clock)

    minutes(5, OLD)
    minutes(30, NEW)
    assert set(site.endpoints.values()) == {NEW}
    assert env.limited() == {}
    assert site.asked == []
    assert fleet.sql("SELECT DISTINCT step FROM work_history WHERE step IS NOT NULL") == [["restart-agent"]]
    assert fleet.sql("SELECT DISTINCT state FROM machine_states") == [["running"]]
    assert fleet.sql("SELECT count(*) FROM machine_agent_heartbeat") == [[MACHINES]]
