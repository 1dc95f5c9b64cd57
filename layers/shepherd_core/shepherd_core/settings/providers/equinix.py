"""The settings of Equinix Metal, and what Shepherd can do there."""

from __future__ import annotations

from pydantic import Field

from shepherd_core.domain.provider import Capability
from shepherd_core.settings.base import Settings
from shepherd_core.settings.providers.spec import FilledIn, ProviderSpec


class EquinixSettings(Settings):
    """Equinix Metal."""

    table = "provider.equinix"

    equinix_project_id: str = Field(description="Project whose reservations and devices are managed.")
    credential_parameter: str = Field(description="Name of the SSM parameter that holds the API key.")
    equinix_device_prefix: FilledIn = Field(
        description="Prefix of our devices' host names; all other devices are ignored."
    )
    equinix_key_label: FilledIn = Field(description="Label of our SSH key in the project.")
    equinix_os: str = Field("ubuntu_24_04", description="Operating system of new devices.")
    equinix_api_url: str = Field("https://api.equinix.com/metal/v1", description="Base URL of the API.")


SPEC = ProviderSpec(
    name="equinix",
    module="equinix.adapter",
    settings=EquinixSettings,
    secrets=("credential_parameter",),
    always=frozenset({Capability.CREATE, Capability.REBOOT, Capability.REINSTALL}),
)
