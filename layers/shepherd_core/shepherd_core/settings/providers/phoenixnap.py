"""The settings of phoenixNAP's Bare Metal Cloud, and what Shepherd can do there."""

from __future__ import annotations

from pydantic import Field

from shepherd_core.domain.provider import Capability
from shepherd_core.settings.base import FilledIn, FleetName, ProviderSettings, Slots
from shepherd_core.settings.providers.spec import ProviderSpec


class PhoenixnapSettings(ProviderSettings):
    """phoenixNAP's Bare Metal Cloud."""

    table = "provider.phoenixnap"

    credential_parameter: str = Field(description="Name of the SSM parameter that holds CLIENT_ID:CLIENT_SECRET.")
    fleet: FleetName = Field(
        description="Name of the fleet, with which our servers' host names begin; all other servers are ignored. Lower "
        "case, digits and hyphens, at most 20 characters."
    )
    limit: Slots = Field(description="Maximum number of servers of the fleet.")
    location: FilledIn = Field(description="Location where servers are made, such as PHX.")
    machine_type: FilledIn = Field(description="Type of new servers, such as s1.c1.small.")
    os: str = Field(
        "ubuntu/jammy", description="Operating system of new servers; one that the provider runs cloud-init in."
    )
    api_url: str = Field("https://api.phoenixnap.com/bmc/v1", description="Base URL of the API.")
    auth_url: str = Field(
        "https://auth.phoenixnap.com/auth/realms/BMC/protocol/openid-connect/token",
        description="URL that gives access tokens for the credential.",
    )


SPEC = ProviderSpec(
    name="phoenixnap",
    module="shepherd_core.providers.phoenixnap",
    settings=PhoenixnapSettings,
    given=frozenset({"credential_parameter"}),
    always=frozenset({Capability.CREATE, Capability.REBOOT, Capability.REINSTALL, Capability.RELEASE}),
)
