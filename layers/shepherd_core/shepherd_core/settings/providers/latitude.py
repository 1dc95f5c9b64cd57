"""The settings of Latitude.sh, and what Shepherd can do there."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from shepherd_core.domain.provider import Capability
from shepherd_core.settings.base import FilledIn, ProviderSettings, Slots
from shepherd_core.settings.providers.spec import ProviderSpec


class LatitudeSettings(ProviderSettings):
    """Latitude.sh."""

    table = "provider.latitude"

    credential_parameter: str = Field(description="Name of the SSM parameter that holds the API token.")
    project: FilledIn = Field(
        description="Id of the project of our servers. Servers that others make in it are left alone."
    )
    limit: Slots = Field(description="Maximum number of Shepherd's servers in the project.")
    location: FilledIn = Field(description="Slug of the site where servers are made, such as ASH.")
    machine_type: FilledIn = Field(description="Slug of the plan of new servers, such as c3-small-x86.")
    billing: Literal["hourly", "monthly", "yearly"] = Field(
        "hourly",
        description="How new servers are paid for. The provider's own default is monthly, charged at once.",
    )
    os: str = Field("ubuntu_24_04_x64_lts", description="Slug of the operating system of new servers.")
    key_name: FilledIn = Field(description="Name of our SSH key in the project.")
    api_url: str = Field("https://api.latitude.sh", description="Base URL of the API.")


SPEC = ProviderSpec(
    name="latitude",
    module="shepherd_core.providers.latitude",
    settings=LatitudeSettings,
    given=frozenset({"credential_parameter"}),
    always=frozenset({Capability.CREATE, Capability.REBOOT, Capability.REINSTALL, Capability.RELEASE}),
)
