"""The settings of Scaleway's Elastic Metal, and what Shepherd can do there."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from shepherd_core.domain.provider import Capability
from shepherd_core.settings.base import FilledIn, FleetName, ProviderSettings, Slots
from shepherd_core.settings.providers.spec import ProviderSpec


class ScalewaySettings(ProviderSettings):
    """Scaleway's Elastic Metal."""

    table = "provider.scaleway"

    credential_parameter: str = Field(description="Name of the SSM parameter that holds the secret key of an API key.")
    project: FilledIn = Field(description="Id of the project of our servers.")
    fleet: FleetName = Field(
        description="Name of the fleet, in the tags of our servers; all other servers of the project are left alone. "
        "Lower case, digits and hyphens, at most 20 characters."
    )
    limit: Slots = Field(description="Maximum number of servers of the fleet in the zone.")
    location: str = Field(description="Availability zone of our servers, such as fr-par-2.")
    machine_type: FilledIn = Field(description="Id of the offer that new servers are ordered with.")
    billing: Literal["hourly", "monthly"] = Field(
        "hourly",
        description="How the offer is paid for; if the offer says otherwise, nothing is ordered. Monthly offers have a "
        "commitment fee.",
    )
    os: FilledIn = Field(description="Id of the operating system that is installed.")
    key_name: FilledIn = Field(description="Name of our SSH key in the project.")
    api_url: str = Field("https://api.scaleway.com", description="Base URL of the API.")


SPEC = ProviderSpec(
    name="scaleway",
    module="shepherd_core.providers.scaleway",
    settings=ScalewaySettings,
    given=frozenset({"credential_parameter"}),
    always=frozenset({Capability.CREATE, Capability.REBOOT, Capability.REINSTALL, Capability.RELEASE}),
)
