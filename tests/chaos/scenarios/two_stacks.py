"""Two deployments of different providers that share a BMDB, all their loops concurrently."""

import json
from collections.abc import Callable
from functools import partial
from random import Random

from shepherd_core.domain.provider import Provider
from shepherd_core.providers.static import StaticProvider

from tests.chaos.crash_points import Points
from tests.chaos.scenarios.fleet_operation import FleetOperation, Machines
from tests.chaos.stage.environment import Environment
from tests.support.bmdb.fleet import Fleet


class Rack(FleetOperation):
    """The loops of a deployment for machines of a list, which cannot restart them."""

    provider = "static"
    entries = tuple({"ID": f"rack-{number}", "Addr": f"192.0.2.{number}"} for number in range(1, 7))

    def __init__(self, fleet: Fleet, machines: Machines) -> None:
        super().__init__(fleet)
        self._machines = machines

    def arrange_beside(self, environment: Environment) -> None:
        """Add machines that report, one that needs its agent, and capacity."""
        fleet = self._fleet
        reporting = [fleet.started_machine(3600, self.provider) for _ in self.entries[2:]]
        for machine_id, entry in zip(
            [fleet.provided_machine(self.provider), *reporting], self.entries[1:], strict=True
        ):
            fleet.change(f"UPDATE machine_provided SET provider_id = '{entry['ID']}' WHERE machine_id = '{machine_id}'")
        fleet.sql(
            "INSERT INTO machine_agent_heartbeat (machine_id, agent_heartbeat_at) "
            "SELECT id, clock_timestamp() FROM unnest(CAST(:ids AS uuid[])) AS r (id)",
            ids=reporting,
        )
        environment.healthy += reporting

    def _adapter(self, environment: Environment, points: Points) -> Provider:
        return StaticProvider(lambda: json.dumps(self.entries).encode())


class TwoStacks(FleetOperation):
    """All loops of two deployments, of which one may be invoked twice."""

    name = "two stacks"

    def arrange(self) -> Environment:
        environment = super().arrange()
        self._rack = Rack(self._fleet, self._machines)
        self._rack.arrange_beside(environment)
        return environment

    @property
    def loops(self) -> dict[str, Callable[[Environment, Points], object]]:
        return super().loops | {f"{name} of the rack": loop for name, loop in self._rack.loops.items()}

    def cast(self, environment: Environment, points: Points, chance: Random) -> dict[str, Callable[[], object]]:
        chosen = [chance.choice(list(loops)) for loops in (super().loops, self._rack.loops)]
        of_both = [chosen[0], f"{chosen[1]} of the rack", *chance.choices(list(self.loops), k=2)]
        loops = self.loops
        return {f"{name} {number}": partial(loops[name], environment, points) for number, name in enumerate(of_both, 1)}

    def missing(self, environment: Environment) -> list[str]:
        rows = self._fleet.sql("SELECT provider_id FROM machine_provided WHERE provider = :name", name=Rack.provider)
        found = {row[0] for row in rows}
        missing = {entry["ID"] for entry in Rack.entries} ^ found
        return super().missing(environment) + [f"{each} is not recorded, or not in the list" for each in missing]
