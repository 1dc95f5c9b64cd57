"""Reading the status of the fleet, for the commands and the console."""

from collections.abc import Mapping

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

_MISSED = 2
"""Intervals of the most frequent loop in which no loop recorded a tick."""


def read(connection: Connection) -> FleetStatus:
    """
    Return the status of the whole fleet; reads each machine once.

    Raises:
        ConfigError: the settings are wrong.
    """
    last, now = ticks.last_ticks(connection), server.now(connection)
    # A loop that finds no room records no tick.
    often = min(filter(None, _minutes().values()), default=0)
    silent = all((now - each.ended_at).total_seconds() > _MISSED * often * 60 for each in last)
    return FleetStatus(
        now,
        now.timestamp() - connection.clock["time"] / 1000,
        server.checkpoint_ahead(connection),
        overview.fleet_counts(connection, [SILENT_SECONDS]),
        overview.unsteady(connection),
        remediation.bad_agents(connection),
        budget.shown_budgets(connection),
        provisioning.waiting(connection),
        len(pauses.pauses_in_force(connection)),
        server.oldest_transaction(connection, OLD_TRANSACTION_SECONDS),
        server.limited_user(connection),
        server.read_only(connection),
        silent and server.is_full(connection),
        last,
    )


def judged(fleet: FleetStatus) -> list[Condition]:
    """
    Return what is wrong with the fleet, by the schedules of this deployment.

    Raises:
        ConfigError: the settings are wrong.
    """
    return conditions(fleet, _minutes())


def _minutes() -> Mapping[str, int]:
    (deployment,) = load(DeploymentSettings)
    return loop_minutes(deployment.loop_minutes)
