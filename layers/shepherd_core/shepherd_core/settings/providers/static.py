"""The settings of a list of machines, and what Shepherd can do there."""

from __future__ import annotations

from pydantic import Field

from shepherd_core.domain.provider import Capability
from shepherd_core.settings.base import Settings
from shepherd_core.settings.providers.spec import ProviderSpec


class StaticSettings(Settings):
    """The static list."""

    table = "provider.static"

    static_list: str = Field(
        description="Location of the list: a path, https://…, ssm:NAME or s3://BUCKET/KEY.",
    )


SPEC = ProviderSpec(
    name="static",
    module="static",
    settings=StaticSettings,
    always=frozenset({Capability.CREATE}),
)
