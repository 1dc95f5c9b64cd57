"""The settings of Acme, and what Shepherd can do there."""

from __future__ import annotations

from pydantic import Field
from shepherd_core.domain.provider import Capability
from shepherd_core.settings.base import ProviderSettings
from shepherd_core.settings.providers.spec import ProviderSpec


class AcmeSettings(ProviderSettings):
    """Acme."""

    table = "provider.acme"

    credential_parameter: str = Field(description="Name of the SSM parameter that holds the key of the API.")
    api_url: str = Field("https://api.acme.example", description="Base URL of the API.")


SPEC = ProviderSpec(
    name="acme",
    module="shepherd_acme.adapter",
    settings=AcmeSettings,
    given=frozenset({"credential_parameter"}),
    always=frozenset({Capability.CREATE, Capability.REBOOT, Capability.RELEASE}),
)
