"""The settings of Vultr's bare metal, and what Shepherd can do there."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from shepherd_core.domain.provider import Capability
from shepherd_core.settings.base import FilledIn, FleetName, ProviderSettings, Slots
from shepherd_core.settings.providers.spec import ProviderSpec


class VultrSettings(ProviderSettings):
    """Vultr's bare metal."""

    table = "provider.vultr"

    credential_parameter: str = Field(description="Name of the SSM parameter that holds the API key.")
    fleet: FleetName = Field(
        description="Name of the fleet, in the tags of our servers; all other servers of the account are left alone. "
        "Lower case, digits and hyphens, at most 20 characters."
    )
    limit: Slots = Field(description="Maximum number of servers of the fleet.")
    location: FilledIn = Field(description="Region where servers are made, such as ewr.")
    machine_type: FilledIn = Field(description="Plan of new servers, such as vbm-4c-32gb.")
    os: Annotated[int, Field(ge=1)] = Field(description="Id of the operating system of new servers, a number.")
    key_name: FilledIn = Field(description="Name of our SSH key in the account.")
    api_url: str = Field("https://api.vultr.com/v2", description="Base URL of the API.")


SPEC = ProviderSpec(
    name="vultr",
    module="shepherd_core.providers.vultr",
    settings=VultrSettings,
    given=frozenset({"credential_parameter"}),
    always=frozenset({Capability.CREATE, Capability.REBOOT, Capability.REINSTALL, Capability.RELEASE}),
)
