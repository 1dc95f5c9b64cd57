"""The settings of Equinix Metal, and what Shepherd can do there."""

from __future__ import annotations

from pydantic import Field

from shepherd_core.domain.provider import Capability
from shepherd_core.settings.base import FilledIn, ProviderSettings
from shepherd_core.settings.providers.spec import ProviderSpec


class EquinixSettings(ProviderSettings):
    """Equinix Metal."""

    table = "provider.equinix"

    project: str = Field(description="Project whose reservations and devices are managed.")
    credential_parameter: str = Field(description="Name of the SSM parameter that holds the API key.")
    fleet: FilledIn = Field(description="Prefix of our devices' host names; all other devices are ignored.")
    key_name: FilledIn = Field(description="Label of our SSH key in the project.")
    os: str = Field("ubuntu_24_04", description="Operating system of new devices.")
    api_url: str = Field("https://api.equinix.com/metal/v1", description="Base URL of the API.")


SPEC = ProviderSpec(
    name="equinix",
    module="shepherd_core.providers.equinix.adapter",
    settings=EquinixSettings,
    given=frozenset({"credential_parameter"}),
    always=frozenset({Capability.CREATE, Capability.REBOOT, Capability.REINSTALL}),
)
