"""Machines that are dead at the same time, so that it looks as if SSH had an outage."""

from uuid import UUID

from shepherd_core.domain.clock import Deadline, SystemClock
from shepherd_core.domain.errors.machine import SshTimedOut

from tests.chaos.crash_points import Points
from tests.chaos.scenarios.fleet_operation import FleetOperation, Machines
from tests.chaos.stage.environment import Environment
from tests.support.bmdb.fleet import HOUR, Fleet

_MINUTE = 60
_WAITED_SECONDS = 6 * HOUR - 15 * _MINUTE
"""For how long the machines should have been back. The outage ends after six hours."""
_DEAD = 3


class DeadMachines(Machines):
    """Machines that do not answer; a ``takeover.Dialer``."""

    def dial(self, address: str, pinned_host_key: str | None, deadline: Deadline) -> Machines:
        """See ``takeover.Dialer``."""
        message = f"{address} does not answer"
        raise SshTimedOut(message)


class SshOutage(FleetOperation):
    """
    Three machines that did not come back after a reboot, and cannot be reached.

    They wait until the evidence of an SSH outage is six hours old, and are then recovered.
    """

    name = "recoverer, SSH outage"

    def __init__(self, fleet: Fleet) -> None:
        """Play in *fleet*."""
        super().__init__(fleet)
        self._dead: list[UUID] = []

    def arrange(self) -> Environment:
        """See ``Scenario``."""
        fleet = self._fleet
        self._machines = DeadMachines()
        environment = Environment(fleet, SystemClock())
        environment.healthy = [fleet.reporting_machine(_MINUTE) for _ in range(_DEAD)]
        for machine_id in environment.healthy:
            environment.machine_at_provider(machine_id)
        self._dead = [fleet.provided_machine() for _ in range(_DEAD)]
        environment.may_be_rebooted = {environment.machine_at_provider(machine_id) for machine_id in self._dead}
        for machine_id in self._dead:
            fleet.make_overdue(machine_id, _WAITED_SECONDS)
        return environment

    def tick(self, environment: Environment, points: Points) -> object:
        """Invoke the Recoverer, then the Initializer."""
        self._recover(environment, points)
        return self._initialize(environment, points)

    def missing(self, environment: Environment) -> list[str]:
        """See ``Scenario``."""
        return [
            f"no_machine_waits_without_end: {machine_id} was not recovered"
            for machine_id in self._dead
            if "Attempted" not in self._fleet.events(machine_id)
        ]
