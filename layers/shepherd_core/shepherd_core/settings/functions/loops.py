"""The settings of the loops."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from shepherd_core.domain.backoff import Backoff
from shepherd_core.domain.remediation import Step, Timeouts
from shepherd_core.rules.policy import parse_policy
from shepherd_core.settings.base import Count, Seconds  # noqa: TC001 - pydantic looks them up
from shepherd_core.settings.functions.bmdb import BmdbSettings
from shepherd_core.settings.functions.health import BreakerSettings, HealthSettings
from shepherd_core.settings.functions.shared import (
    ConcurrencySettings,
    EndpointSettings,
    EndpointUrl,
    ProviderChoice,
    SessionSettings,
    SshKeySettings,
    SshSettings,
)


def _valid_policy(text: str) -> str:
    parse_policy(text, Timeouts(boot_wait=0, grace=0, cooldown=0))
    return text


class ProvisionerSettings(BmdbSettings, ProviderChoice, SessionSettings, SshKeySettings):
    """The Provisioner."""

    table = "provisioner"

    max_machines: int = Field(50, ge=0, le=1_000_000, description="Maximum number of machines to manage; 0: no limit.")
    chunk: Count = Field(20, description="Maximum number of machines that one invocation creates.")
    creation_seconds: float = Field(
        5,
        ge=0,
        le=3_600,
        description="Seconds between two creations at the provider; 0: no wait. Machines that already exist are "
        "recorded without a wait.",
    )
    penalty_seconds: Seconds = Field(
        3_600,
        description="Seconds for which capacity is left alone after a failure, and after which a creation is abandoned "
        "if it left no trace at the provider.",
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
        description="Take machines that are ours at the provider, but not in the BMDB, into the BMDB; otherwise they "
        "are drift.",
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
        description="SHA-256 that the agent executable must have, as agent/build.py prints it; any: whatever file is "
        "there runs as root on the machines. A deployment must set this.",
    )
    agent_endpoint: EndpointUrl = Field(
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
        description="Contact only machines whose SSH host key the provider or an operator has named; false: pin the "
        "key that is seen first.",
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
        description="Maximum seconds of the look over SSH before a step that interrupts a machine. If the machine is "
        "alive, only its agent is started anew; 0: do not look.",
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
