"""The settings of a list of machines, and what Shepherd can do there."""

from __future__ import annotations

from pydantic import Field

from shepherd_core.domain.provider import Capability
from shepherd_core.settings.base import ProviderSettings
from shepherd_core.settings.providers.spec import ProviderSpec


class StaticSettings(ProviderSettings):
    """The static list."""

    table = "provider.static"

    machines: str = Field(
        description="Location of the list: a path, https://…, ssm:NAME or s3://BUCKET/KEY.",
    )


SPEC = ProviderSpec(
    name="static",
    module="shepherd_core.providers.static",
    settings=StaticSettings,
    always=frozenset({Capability.CREATE}),
)
