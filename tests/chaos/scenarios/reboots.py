"""Scenario: an operator reboots an unhealthy machine and is killed; the Recoverer goes on."""

from typing import Any

from shepherd_core.bmdb.machines.search import Search, matching
from shepherd_core.bmdb.wire import server
from shepherd_core.bmdb.work import history
from shepherd_core.domain.remediation import REBOOT, provider_steps
from shepherd_core.operator.reboot import Reboot
from shepherd_core.recovery import Steps
from shepherd_core.rules.policy import step_of

from tests.chaos.crash_points import Context
from tests.chaos.scenarios.loops import Recoveries
from tests.chaos.stage.environment import MACHINE_SECONDS, SESSION_SECONDS, Environment
from tests.support import defaults


class Reboots(Recoveries):
    """The Recoverer's machines; an operator reboots the first unhealthy one, until an attempt is on record."""

    name = "reboot"

    def tick(self, environment: Environment, points: Context) -> Any:
        machine_id, connection = self._unhealthy[0], environment.connect()
        if any(line.event == "Attempted" for line in history.read_history(connection, machine_id)):
            return super().tick(environment, points)
        provider = self.access.equinix(environment, points.clock)
        step = Reboot(
            provider=provider,
            connection=connection,
            clock=points.clock,
            step=step_of(defaults.RULES.policy, REBOOT),
            steps=Steps(provider_steps(provider), defaults.RULES.backoff),
            reset_after_seconds=defaults.RULES.reset_after_seconds,
            machine_seconds=MACHINE_SECONDS,
            session_seconds=SESSION_SECONDS,
        )
        machines = list(matching(connection, Search(machine_ids=(machine_id,))))
        return list(step.carry_out(machines, server.now(connection), "an operator: chaos", "chaos"))
