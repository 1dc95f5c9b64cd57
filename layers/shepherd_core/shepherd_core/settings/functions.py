"""
The settings: one type for each function, composed of small ones.

A field has its default here and nowhere else, and a description with unit,
meaning and range. ``sources`` says where values come from.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from shepherd_core.domain.backoff import Backoff
from shepherd_core.domain.remediation import Step, Timeouts
from shepherd_core.rules.remediation import parse_policy
from shepherd_core.settings.base import Count, Seconds, Settings
from shepherd_core.settings.health import BreakerSettings, HealthSettings
from shepherd_core.settings.providers import ProviderName  # noqa: TC001 - pydantic looks it up
from shepherd_core.settings.relays import parse_relays


def _valid_policy(text: str) -> str:
    parse_policy(text, Timeouts(boot_wait=0, grace=0, cooldown=0))
    return text


def _valid_relays(text: str) -> str:
    parse_relays(text)
    return text


ROLES = ("provisioner", "initializer", "recoverer", "updater", "agent-api", "operator")
"""Who has a database user of its own, where ``bmdb_roles`` is set: every function but the Migrator, and operators."""


class BmdbSettings(Settings):
    """How to connect to the BMDB."""

    table = "bmdb"

    bmdb_host: str = Field(description="Host name of the database, or the folder of its Unix socket.")
    bmdb_port: int = Field(5432, ge=1, le=65_535, description="Port of the database.")
    bmdb_name: str = Field("shepherd", description="Name of the database.")
    bmdb_user: str = Field("shepherd", description="User of the database, who owns the schema.")
    bmdb_roles: str | None = Field(
        None,
        pattern="^[a-zA-Z0-9_-]{1,50}$",
        description="Prefix of the functions' own database users, such as PREFIX-updater, which the Migrator makes; "
        "each one's password is in a parameter with the same ending. Unset: all log in as bmdb_user, which is weaker.",
    )
    bmdb_auth: Literal["password", "iam"] = Field(
        "password", description="How functions log in to the database: with a password, or with IAM (RDS and Aurora)."
    )
    bmdb_password_parameter: str | None = Field(
        None, description="Name of the SSM parameter that holds the database password; unset: no password is sent."
    )
    bmdb_ca_source: str | None = Field(
        None,
        description="PEM certificates of the CAs that may sign the database's certificate: a path, https://…, "
        "ssm:NAME or s3://BUCKET/KEY; unset: the system's CAs.",
    )
    bmdb_connect_timeout_seconds: Seconds = Field(5, description="Seconds to wait for a connection to the database.")
    bmdb_statement_timeout_seconds: Seconds = Field(30, description="Maximum seconds for one statement.")

    def of_role(self, role: str) -> Self:
        """Return these settings with the login of *role*, a name in ``ROLES``."""
        parameter = self.bmdb_password_parameter
        return self.model_copy(
            update={
                "bmdb_user": f"{self.bmdb_roles}-{role}",
                "bmdb_password_parameter": None if parameter is None else f"{parameter}-{role}",
            }
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
        "user; requests beyond are answered with 503. The rest is for the loops. Without effect if all functions log "
        "in as one user.",
    )


def _loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _encrypted(endpoint: str) -> str:
    parts = urlsplit(endpoint)
    if parts.scheme == "http" and not _loopback(parts.hostname or ""):
        message = "must be an https URL: http carries heartbeats and installation requests unencrypted"
        raise ValueError(message)
    return endpoint


class EndpointSettings(Settings):
    """The endpoint that agents are moved to."""

    new_agent_endpoint: Annotated[str, AfterValidator(_encrypted)] | None = Field(
        None,
        description="Endpoint that all agents should report to from now on: running agents are told, try it, and keep "
        "it once it has answered them; new agents get it at takeover. Unset: running agents keep theirs.",
    )


class AgentApiSettings(BmdbSettings, EndpointSettings):
    """The agent API."""

    table = "agent_api"

    bmdb_statement_timeout_seconds: Seconds = Field(
        5, description="Maximum seconds for one statement of an agent's report."
    )
    path_prefix: str | None = Field(
        None,
        pattern="^/[^/?#]+$",
        description="What the path of the endpoint begins with, as the deployment says; requests for any other are "
        "refused unread. Unset: any.",
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
        "At least 10. A machine has two and a half of them, and at least heartbeat_timeout_seconds, until it is "
        "unhealthy.",
    )
    relays: Annotated[str, AfterValidator(_valid_relays)] = Field(
        "",
        description="Relays that agents report through, as PROVIDER=HOST:PORT or PROVIDER/LOCATION=HOST:PORT, "
        "separated by commas; docs/relays.md says when that pays.",
    )
    report_seconds: float = Field(
        5,
        ge=0,
        le=3_600,
        description="Minimum seconds between two reports of an agent to one process of the function; those that come "
        "sooner are refused.",
    )
    hardware_report_seconds: float = Field(
        60, ge=0, le=86_400, description="Minimum seconds between two hardware reports of an agent, in the same way."
    )
    stale_seconds: Seconds = Field(
        300,
        description="Maximum difference in seconds between an agent's clock and the database's; beyond it, the "
        "agent's reports are refused.",
    )


class ProviderChoice(Settings):
    """The choice of the provider."""

    provider: ProviderName = Field(description="Provider whose machines the function works on.")


class SessionSettings(Settings):
    """When the session of a function expires, so that other functions get its work."""

    session_seconds: Seconds = Field(
        60, ge=2, description="Seconds without a renewal after which a session expires and others may take its work."
    )


class ConcurrencySettings(SessionSettings):
    """How many machines one invocation works on at once, and for how long."""

    concurrency: Count = Field(
        10, description="Maximum number of machines that one invocation works on at the same time."
    )
    machine_seconds: Seconds = Field(120, description="Maximum seconds of work on one machine.")
    history_days: int = Field(
        0, ge=0, le=36_500, description="Days for which the history of machines is kept; 0: without limit."
    )


class SshKeySettings(Settings):
    """Shepherd's SSH key."""

    ssh_key_parameter: str = Field(
        "/shepherd/ssh-key",
        description="Name of the SSM parameter that holds the SSH key; that of its public half ends with .pub besides.",
    )


class SshSettings(SshKeySettings):
    """How to log in to the machines, and where their agent is."""

    agent_path: str = Field("/root/agent", pattern="^/[^\\s'\"]+$", description="Path of the agent on the machines.")
    ssh_user: str = Field("root", description="User to log in as on the machines.")
    ssh_port: int = Field(22, ge=1, le=65_535, description="SSH port of the machines.")


class ProvisionerSettings(BmdbSettings, ProviderChoice, SessionSettings, SshKeySettings):
    """The Provisioner."""

    table = "provisioner"

    max_machines: int = Field(50, ge=0, le=1_000_000, description="Maximum number of machines to manage; 0: no limit.")
    chunk: Count = Field(20, description="Maximum number of machines that one invocation creates.")
    creation_seconds: float = Field(
        5,
        ge=0,
        le=3_600,
        description="Seconds between two creations at the provider; 0: no wait. Machines that already exist are taken "
        "over without a wait.",
    )
    penalty_seconds: Seconds = Field(
        3_600,
        description="Seconds for which capacity is left alone after a failure, and after which a begun creation that "
        "left no trace at the provider is abandoned.",
    )
    boot_seconds: float | None = Field(
        None,
        ge=0,
        le=86_400,
        description="Seconds after a machine's creation before the first agent start is tried, if the machine has yet "
        "to boot; unset: the provider's usual boot time.",
    )
    drift_limit: int = Field(
        3,
        ge=0,
        le=1_000_000,
        description="Number of machines with new, unexplained drift that are set aside one by one. If there are more, "
        "and more than 1 % of the fleet, the invocation changes nothing; 0: any drift stops it.",
    )
    assimilate: bool = Field(
        False,  # noqa: FBT003 - the default of a field
        description="Take machines that are ours at the provider and unknown to the BMDB into the BMDB, instead of "
        "disputing them.",
    )


class UpdaterSettings(BmdbSettings, ProviderChoice, SessionSettings, SshKeySettings):
    """The Updater."""

    table = "updater"

    update_seconds: Seconds = Field(
        3_600, description="Seconds after which steady machines are compared with the provider's listing again."
    )


class InitializerSettings(BmdbSettings, ProviderChoice, ConcurrencySettings, SshSettings, EndpointSettings):
    """The Initializer."""

    table = "initializer"

    agent_source: str = Field(description="Location of the agent executable: a path or s3://BUCKET/KEY.")
    agent_sha256: str | None = Field(
        None,
        pattern="^([0-9a-f]{64}|any)$",
        description="SHA-256 that the agent executable must have, as agent/build.py prints it; any: whatever is there "
        "runs as root on the machines. A deployment requires one of them.",
    )
    agent_endpoint: Annotated[str, AfterValidator(_encrypted)] = Field(
        description="Endpoint that agents report to; given to them at takeover, unless new_agent_endpoint is set."
    )
    agent_ca_source: str | None = Field(
        None,
        description="PEM certificate that agents trust for the endpoint: a path or s3://…; unset: the system's CAs.",
    )
    installation_public_key_parameter: str = Field(
        "/shepherd/installation-key.pub",
        description="Name of the SSM parameter with the public keys, one on each line, that installations may be "
        "signed with; given to agents at takeover. If it does not exist, agents install nothing.",
    )
    require_known_host_key: bool = Field(
        False,  # noqa: FBT003 - the default of a field
        description="Contact no machine whose SSH host key neither provider nor operator has named; false: pin the key "
        "that is seen first.",
    )
    ssh_connect_timeout_seconds: Seconds = Field(2, description="Seconds to wait for an SSH connection.")
    agent_timeout_seconds: Seconds = Field(60, description="Seconds to wait for the agent's answer at takeover.")
    backoff_initial_seconds: Seconds = Field(300, description="Seconds of backoff after a machine's first failure.")
    backoff_maximum_seconds: Seconds = Field(14_400, description="Maximum seconds of backoff.")
    backoff_exponent: float = Field(
        1.2, ge=1, le=10, description="Factor by which the backoff grows with each failure."
    )

    @property
    def backoff(self) -> Backoff:
        """Return the backoff of machines whose agent could not be started."""
        return Backoff(self.backoff_initial_seconds, self.backoff_maximum_seconds, self.backoff_exponent)


class RecovererSettings(
    BmdbSettings, ProviderChoice, ConcurrencySettings, SshSettings, HealthSettings, BreakerSettings
):
    """The Recoverer."""

    table = "recoverer"

    remediation_policy: Annotated[str, AfterValidator(_valid_policy)] = Field(
        "reboot:3,power-cycle:2,quarantine",
        description="Steps taken for an unhealthy machine in this order, and how often each is tried; the last is "
        "quarantine. docs/providers/README.md says what each step does.",
    )
    grace_seconds: Seconds = Field(
        1_800, description="Seconds that a machine has to come back after a step, before the next step may be taken."
    )
    cooldown_seconds: float = Field(
        600,
        ge=0,
        le=86_400,
        description="Minimum seconds between two steps for the same machine, whether it came back or not.",
    )
    reset_after_seconds: Seconds = Field(
        3_600,
        description="Seconds for which an agent must report before its machine's remediation policy starts over.",
    )
    look_seconds: float = Field(
        10,
        ge=0,
        le=3_600,
        description="Seconds to look over SSH, before a step that interrupts a machine, whether it is alive and its "
        "agent runs: then only the agent is started anew; 0: do not look.",
    )
    boot_wait_seconds: float = Field(
        120, ge=0, le=86_400, description="Seconds after a reboot before an agent start is tried."
    )
    backoff_initial_seconds: Seconds = Field(60, description="Seconds of backoff after a machine's first failure.")
    backoff_maximum_seconds: Seconds = Field(3_600, description="Maximum seconds of backoff.")
    backoff_exponent: float = Field(
        1.2, ge=1, le=10, description="Factor by which the backoff grows with each failure."
    )

    @property
    def policy(self) -> tuple[Step, ...]:
        """Return the remediation policy."""
        timeouts = Timeouts(boot_wait=self.boot_wait_seconds, grace=self.grace_seconds, cooldown=self.cooldown_seconds)
        return parse_policy(self.remediation_policy, timeouts)

    @property
    def backoff(self) -> Backoff:
        """Return the backoff of machines that could not be recovered."""
        return Backoff(self.backoff_initial_seconds, self.backoff_maximum_seconds, self.backoff_exponent)


FUNCTIONS: dict[str, type[Settings]] = {
    "provisioner": ProvisionerSettings,
    "initializer": InitializerSettings,
    "recoverer": RecovererSettings,
    "updater": UpdaterSettings,
    "agent_api": AgentApiSettings,
    "migrator": MigratorSettings,
}
"""The settings of each function, by the name that its table in the document has as well."""
