"""The settings of Cherry Servers, and what Shepherd can do there."""

from __future__ import annotations

from pydantic import Field

from shepherd_core.domain.provider import Capability
from shepherd_core.settings.base import FilledIn, FleetName, ProviderSettings, Slots
from shepherd_core.settings.providers.spec import ProviderSpec


class CherryserversSettings(ProviderSettings):
    """Cherry Servers."""

    table = "provider.cherryservers"

    credential_parameter: str = Field(description="Name of the SSM parameter that holds the API key.")
    project: FilledIn = Field(description="Id of the project of our servers, a number.")
    fleet: FleetName = Field(
        description="Name of the fleet, in a tag of our servers; all other servers of the project are left alone. "
        "Lower case, digits and hyphens, at most 20 characters."
    )
    limit: Slots = Field(description="Maximum number of servers of the fleet.")
    location: FilledIn = Field(description="Slug of the region where servers are made, such as eu_nord_1.")
    machine_type: FilledIn = Field(description="Slug of the plan of new servers, such as e5_1620v4.")
    os: str = Field("ubuntu_22_04", description="Slug of the image of new servers.")
    key_name: FilledIn = Field(description="Label of our SSH key in the account.")
    api_url: str = Field("https://api.cherryservers.com/v1", description="Base URL of the API.")


SPEC = ProviderSpec(
    name="cherryservers",
    module="shepherd_core.providers.cherryservers",
    settings=CherryserversSettings,
    given=frozenset({"credential_parameter"}),
    always=frozenset({Capability.CREATE, Capability.REBOOT, Capability.REINSTALL, Capability.RELEASE}),
)
