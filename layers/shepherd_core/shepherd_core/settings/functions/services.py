"""The settings of the functions that are not loops: the agent API and the Migrator."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from shepherd_core.settings.functions.bmdb import BmdbSettings
from shepherd_core.settings.functions.shared import EndpointSettings
from shepherd_core.settings.relays import parse_relays


def _valid_relays(text: str) -> str:
    parse_relays(text)
    return text


class AgentApiSettings(BmdbSettings, EndpointSettings):
    """The agent API."""

    table = "agent_api"

    path_prefix: str | None = Field(
        None,
        pattern="^/[^/?#]+$",
        description="Prefix that the path of every request must have, set by the deployment; other requests are "
        "refused unread. Unset: none.",
    )
    max_batch_bytes: int = Field(
        2_000_000,
        ge=1_000_000,
        le=4_000_000,
        description="Maximum size in bytes of the reports that a relay passes on at once; a relay sends up to "
        "1,000,000.",
    )
    heartbeat_interval_seconds: int = Field(
        240,
        ge=1,
        le=3_600,
        description="Seconds between two heartbeats of an agent; told to each agent with the answer to its next one. "
        "At least 10. A machine is unhealthy after two and a half intervals without a heartbeat, but not before "
        "heartbeat_timeout_seconds.",
    )
    relays: Annotated[str, AfterValidator(_valid_relays)] = Field(
        "",
        description="Relays that agents report through, as PROVIDER=HOST:PORT or PROVIDER/LOCATION=HOST:PORT, "
        "separated by commas; docs/relays.md says when that pays.",
    )


class MigratorSettings(BmdbSettings):
    """The Migrator."""

    table = "migrator"
