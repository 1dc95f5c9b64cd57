"""Machines that are dead at the same time, so that it looks as if SSH failed: the budget of recovery gets small."""

from dataclasses import replace
from uuid import UUID

from shepherd_core.domain.clock import Deadline, SystemClock
from shepherd_core.domain.errors.machine import SshTimedOut

from tests.chaos.crash_points import Points
from tests.chaos.scenarios.fleet_operation import FleetOperation, Machines
from tests.chaos.stage.environment import Environment
from tests.support import defaults
from tests.support.bmdb.fleet import Fleet

_DEAD, _HEALTHY = 6, 3
"""One of the dead is given time after its step, and one is not known to be dead if its function was killed."""


class DeadMachines(Machines):
    """Machines that do not answer; a ``takeover.Dialer``."""

    def dial(self, address: str, pinned_host_key: str | None, deadline: Deadline) -> Machines:
        message = f"{address} does not answer"
        raise SshTimedOut(message)


class SshBrake(FleetOperation):
    """Machines that did not come back after a reboot, and cannot be reached: one step an hour is taken."""

    name = "recoverer, SSH brake"
    rules = replace(defaults.RULES, limits=replace(defaults.LIMITS, dead_share=1))

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet)
        self._dead: list[UUID] = []

    def arrange(self) -> Environment:
        fleet = self._fleet
        self._machines = DeadMachines()
        environment = Environment(fleet, SystemClock(), steps_per_hour=1)
        environment.healthy = [fleet.reporting_machine(60) for _ in range(_HEALTHY)]
        for machine_id in environment.healthy:
            environment.machine_at_provider(machine_id)
        self._dead = [fleet.provided_machine() for _ in range(_DEAD)]
        environment.may_be_rebooted = {environment.machine_at_provider(machine_id) for machine_id in self._dead}
        for machine_id in self._dead:
            fleet.make_overdue(machine_id)
        return environment

    def tick(self, environment: Environment, points: Points) -> object:
        self._recover(environment, points)
        return self._initialize(environment, points)

    def missing(self, environment: Environment) -> list[str]:
        taken = any("Attempted" in self._fleet.events(machine_id) for machine_id in self._dead)
        return [] if taken else ["no_machine_waits_without_end: none was recovered"]
