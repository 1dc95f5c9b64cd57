"""The settings of the functions that are not loops: the agent API and the Migrator."""

from __future__ import annotations

from pydantic import Field

from shepherd_core.settings.functions.bmdb import BmdbSettings


class AgentApiSettings(BmdbSettings):
    """The agent API."""

    table = "agent_api"

    path_prefix: str | None = Field(
        None,
        pattern="^/[^/?#]+$",
        description="Prefix that the path of every request must have, set by the deployment; other requests are "
        "refused unread. Unset: none.",
    )
    heartbeat_interval_seconds: int = Field(
        240,
        ge=1,
        le=3_600,
        description="Seconds between two heartbeats of an agent; told to each agent with the answer to its next one. "
        "At least 10. A machine is unhealthy after two and a half intervals without a heartbeat, but not before "
        "heartbeat_timeout_seconds.",
    )


class MigratorSettings(BmdbSettings):
    """The Migrator."""

    table = "migrator"
