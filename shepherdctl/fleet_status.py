"""Reading the status of the fleet, for the commands and the console."""

from shepherd_core.bmdb.connection import Connection
from shepherd_core.bmdb.listings import provisioning
from shepherd_core.bmdb.machines import overview, pauses
from shepherd_core.bmdb.recovery import budget, remediation
from shepherd_core.bmdb.wire import server
from shepherd_core.bmdb.work import ticks
from shepherd_core.settings.deployment import DeploymentSettings, loop_minutes
from shepherd_core.wiring.settings import load

from shepherdctl.descriptions.condition import Condition
from shepherdctl.descriptions.conditions import OLD_TRANSACTION_SECONDS, SILENT_SECONDS, FleetStatus, conditions


def read(connection: Connection) -> FleetStatus:
    """Return the status of the whole fleet; reads each machine once."""
    now = server.now(connection)
    return FleetStatus(
        now,
        now.timestamp() - connection.clock["time"] / 1000,
        overview.fleet_counts(connection, [SILENT_SECONDS], places=True),
        overview.unsteady(connection),
        remediation.bad_agents(connection),
        budget.shown_budgets(connection),
        provisioning.waiting(connection),
        len(pauses.pauses_in_force(connection)),
        server.oldest_transaction(connection, OLD_TRANSACTION_SECONDS),
        server.limited_user(connection),
        server.read_only(connection),
        ticks.last_ticks(connection),
    )


def judged(fleet: FleetStatus) -> list[Condition]:
    """
    Return what is wrong with the fleet, by the schedules of this deployment.

    Raises:
        ConfigError: the settings are wrong.
    """
    (deployment,) = load(DeploymentSettings)
    return conditions(fleet, loop_minutes(deployment.loop_minutes))
