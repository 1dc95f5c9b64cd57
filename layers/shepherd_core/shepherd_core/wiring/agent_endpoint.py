"""The agent API, built from the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shepherd_core.bmdb.wire.driver import TimeLimits
from shepherd_core.settings.functions.services import AgentApiSettings
from shepherd_core.wiring import adapters, pace, settings

if TYPE_CHECKING:
    from shepherd_core.agent.endpoint import AgentApi

LIMITS = TimeLimits(statement=5, scans=False)
"""Half of the function's timeout. Its statements find single machines."""


@settings.per_document
def build() -> AgentApi:
    """
    Return the agent API as the settings configure it; the same object as long as they do. Connects to nothing yet.

    Raises:
        ConfigError: the settings are wrong.
    """
    from shepherd_core.agent.endpoint import AgentApi  # noqa: PLC0415 - only this function needs it
    from shepherd_core.agent.judgement import Limits  # noqa: PLC0415

    (ours,) = settings.load(AgentApiSettings)
    # Agents retry.
    connection = adapters.bmdb(ours, attempts=2, limits=LIMITS)
    limits = Limits(
        report_seconds=min(pace.current.report_seconds, ours.heartbeat_interval_seconds / 2),
        hardware_seconds=pace.current.hardware_report_seconds,
        interval_seconds=ours.heartbeat_interval_seconds,
        path_prefix=ours.path_prefix,
    )
    return AgentApi(connection, limits)
