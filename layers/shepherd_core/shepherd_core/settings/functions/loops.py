"""The settings of the loops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, Field

from shepherd_core.domain.remediation import STEPS_IF_FAILED, STEPS_IF_UNHEALTHY
from shepherd_core.rules.policy import parse_policy
from shepherd_core.settings.functions.bmdb import BmdbSettings
from shepherd_core.settings.functions.health import BudgetSettings, HealthSettings
from shepherd_core.settings.functions.shared import (
    ConcurrencySettings,
    EndpointUrl,
    ProviderChoice,
    SshKeySettings,
    SshSettings,
)

if TYPE_CHECKING:
    from shepherd_core.domain.remediation import Step


def _valid_policy(text: str) -> str:
    parse_policy(text, names=STEPS_IF_UNHEALTHY)
    return text


def _valid_failed_policy(text: str | None) -> str | None:
    if text is not None:
        parse_policy(text, names=STEPS_IF_FAILED)
    return text


class ProvisionerSettings(BmdbSettings, ProviderChoice, SshKeySettings):
    """The Provisioner."""

    table = "provisioner"

    max_machines: int = Field(50, ge=0, le=1_000_000, description="Maximum number of machines; 0: no limit.")
    creation_seconds: float = Field(
        5,
        ge=0,
        le=3_600,
        description="Seconds between two creations at the provider; 0: no wait. Machines that already exist are "
        "recorded without a wait.",
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


class UpdaterSettings(BmdbSettings, ProviderChoice, SshKeySettings):
    """The Updater."""

    table = "updater"


class InitializerSettings(BmdbSettings, ProviderChoice, ConcurrencySettings, SshSettings):
    """The Initializer."""

    table = "initializer"

    agent_source: str | None = Field(
        None, description="Location of an agent of your own: a path or s3://…; unset: the agent of this version."
    )
    agent_sha256: str | None = Field(
        None,
        pattern="^([0-9a-f]{64}|any)$",
        description="SHA-256 that an agent of your own must have; any: whatever file is there runs as root on the "
        "machines. A deployment must set this with agent_source.",
    )
    agent_endpoint: EndpointUrl = Field(description="Endpoint that agents report to; given to them at takeover.")
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


class RecovererSettings(BmdbSettings, ProviderChoice, ConcurrencySettings, SshSettings, HealthSettings, BudgetSettings):
    """The Recoverer."""

    table = "recoverer"

    remediation_policy: Annotated[str, AfterValidator(_valid_policy)] = Field(
        "reboot:3,power-cycle:2,quarantine",
        description="Steps taken for an unhealthy machine in this order, and how often each is tried; the last is "
        "quarantine. docs/providers says what each step does. A step may have times of its own, in seconds: "
        "boot-wait (120), grace (1800) and cooldown (600), as in reinstall:1:boot-wait=1800:grace=7200.",
    )
    failed_policy: Annotated[str | None, AfterValidator(_valid_failed_policy)] = Field(
        None,
        description="The same for a machine without an agent that its provider reports as failed for good. Its steps "
        "are reinstall, release and quarantine, as in reinstall:2,release,quarantine; unset: nothing is done.",
    )

    @property
    def policy(self) -> tuple[Step, ...]:
        """Return the remediation policy."""
        return parse_policy(self.remediation_policy)

    @property
    def policy_if_failed(self) -> tuple[Step, ...]:
        """Return the policy for machines that failed for good; empty: nothing is done."""
        return parse_policy(self.failed_policy) if self.failed_policy else ()
