"""The settings of the functions that are not loops: the agent API and the Migrator."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from shepherd_core.settings.base import Seconds  # noqa: TC001 - pydantic looks it up
from shepherd_core.settings.functions.bmdb import BmdbSettings
from shepherd_core.settings.functions.shared import EndpointSettings
from shepherd_core.settings.relays import parse_relays


def _valid_relays(text: str) -> str:
    parse_relays(text)
    return text


class AgentApiSettings(BmdbSettings, EndpointSettings):
    """The agent API."""

    table = "agent_api"

    bmdb_statement_timeout_seconds: Seconds = Field(
        5, description="Maximum seconds for one statement of an agent's report."
    )
    path_prefix: str | None = Field(
        None,
        pattern="^/[^/?#]+$",
        description="Prefix that the path of every request must have, set by the deployment; other requests are "
        "refused unread. Unset: none.",
    )
    max_body_bytes: int = Field(
        65_536, ge=1_024, le=6_000_000, description="Maximum size of an agent's report in bytes."
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
    min_report_seconds: float = Field(
        5,
        ge=0,
        le=3_600,
        description="Minimum seconds between two reports of an agent; earlier ones are refused. Each instance of the "
        "function counts by itself.",
    )
    min_hardware_report_seconds: float = Field(
        60,
        ge=0,
        le=86_400,
        description="Minimum seconds between two hardware reports of an agent, counted in the same way.",
    )
    stale_seconds: Seconds = Field(
        300,
        description="Maximum difference in seconds between an agent's clock and the database's; beyond it, the "
        "agent's reports are refused.",
    )


class MigratorSettings(BmdbSettings):
    """The Migrator."""

    table = "migrator"

    bmdb_statement_timeout_seconds: Seconds = Field(
        240, description="Maximum seconds for one statement of a migration."
    )
    agent_api_connections: int = Field(
        50,
        ge=1,
        le=100_000,
        description="Maximum number of connections of the agent API to the database, which the Migrator sets for its "
        "user; requests beyond them are answered with 503. The rest is for the loops. Without effect if all functions "
        "log in as one user.",
    )
