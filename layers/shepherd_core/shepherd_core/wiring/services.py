"""The agent API and the operators' drift repair, built from the settings in the environment."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from shepherd_core.bmdb.schema.migrate import require
from shepherd_core.settings import functions
from shepherd_core.wiring import adapters, providers

if TYPE_CHECKING:
    from shepherd_core.agent.endpoint import AgentApi
    from shepherd_core.operator.two_phase import TwoPhase


@cache
def agent_api() -> AgentApi:
    """
    Return the agent API as the environment configures it; the same object every time. Connects to nothing yet.

    Raises:
        ConfigError: the settings are wrong.
    """
    from shepherd_core.agent.endpoint import AgentApi  # noqa: PLC0415 - only this function needs it

    (settings,) = functions.load(functions.AgentApiSettings)
    connection = adapters.bmdb(settings, attempts=2)  # agents retry, and wait longer each time
    return AgentApi(connection, max_body_bytes=settings.max_body_bytes, stale_seconds=settings.stale_seconds)


def drift_repair(interval_seconds: float) -> TwoPhase:
    """
    Return the operators' drift repair, with the settings of the Provisioner.

    Raises:
        ConfigError: the settings are wrong.
        SchemaMismatch, BmdbError: the BMDB cannot be used.
    """
    from shepherd_core.operator.two_phase import TwoPhase  # noqa: PLC0415 - only operators need it

    settings, provider = providers.load(functions.ProvisionerSettings)
    connection = adapters.bmdb(settings)
    require(connection)  # a comparison opens no session, which would check the schema
    return TwoPhase(
        provider, connection, adapters.CLOCK, settings.max_machines, settings.session_seconds, interval_seconds
    )
