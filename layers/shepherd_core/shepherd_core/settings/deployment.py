"""The settings of a deployment as a whole. The cross-setting rules read them; functions read two of them."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from shepherd_core.settings.base import Count, Settings
from shepherd_core.settings.functions.specs import LOOPS

AGENT_API_CONNECTIONS = 50
"""Of 100, which a small PostgreSQL accepts: the rest is for the loops. Requests beyond them are answered with 503."""
_DAY_MINUTES = 1_440


def loop_minutes(text: str) -> dict[str, int]:
    """
    Return the minutes between two runs of each loop; 0: it is off.

    Raises:
        ValueError: *text* is not a number for each, separated by commas.
    """
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != len(LOOPS) or not all(part.isdecimal() and int(part) <= _DAY_MINUTES for part in parts):
        message = (
            f"must be {len(LOOPS)} whole numbers from 0 to {_DAY_MINUTES}, separated by commas: {', '.join(LOOPS)}"
        )
        raise ValueError(message)
    return dict(zip(LOOPS, map(int, parts), strict=True))


def _minutes(text: str) -> str:
    loop_minutes(text)
    return text


class CapacitySettings(Settings):
    """The capacity of the database. No function reads it; the cross-setting rules do."""

    table = "bmdb"

    bmdb_max_connections: int = Field(
        100,
        ge=1,
        le=100_000,
        description="Number of connections that the database accepts (max_connections); more concurrent invocations "
        "are refused when settings are checked.",
    )


class DeploymentSettings(Settings):
    """The facts of the deployment, in environment variables alone. The cross-setting rules read them."""

    loop_minutes: Annotated[str, AfterValidator(_minutes)] = Field(
        ",".join("1" for _ in LOOPS),
        description=f"Minutes between two runs of {', '.join(map(str.capitalize, LOOPS))}; 0: that loop is off.",
    )
    bucket_owner: str | None = Field(
        None,
        pattern="^[0-9]{12}$",
        description="AWS account that the bucket with agent, settings and documents must belong to; unset: any.",
    )
    loop_concurrency: Count | None = Field(
        None,
        description="Maximum number of concurrent invocations of each loop; unset: as many as its schedule can start "
        "before the first one times out.",
    )
    agent_api_rate: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description="Requests a second that the agent API accepts; unset: not checked against the fleet's limit.",
    )
    agent_api_concurrency: Count | None = Field(
        None,
        description="Maximum number of concurrent requests to the agent API, each with a connection to the database; "
        "unset: the account's limit, and 50 connections if the functions have database users of their own.",
    )

    @property
    def agent_api_connections(self) -> int:
        """Return how many connections the user of the agent API may have."""
        return self.agent_api_concurrency or AGENT_API_CONNECTIONS


class OperatorSettings(Settings):
    """The settings of operators' commands, in environment variables alone. No function may read them."""

    installation_key_source: str = Field(
        "ssm:/shepherd/installation-key",
        description="Where the private key is that installations are signed with: a path, or ssm:NAME.",
    )
    logs: str = Field(
        "shepherd",
        description="Where `shepherdctl logs` reads: the name of a stack, or the path of a file, which must contain a "
        "slash.",
    )
