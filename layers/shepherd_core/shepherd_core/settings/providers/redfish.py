"""The settings of your own machines, through their BMCs, and what Shepherd can do there."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from shepherd_core.domain.provider import Capability
from shepherd_core.settings.base import ProviderSettings
from shepherd_core.settings.providers.spec import ProviderSpec


class RedfishSettings(ProviderSettings):
    """Your own machines, through their BMCs."""

    table = "provider.redfish"

    machines: str = Field(
        description="Location of the list of machines and BMCs: a path, https://…, ssm:NAME or s3://BUCKET/KEY.",
    )
    ca_source: str | None = Field(
        None,
        description="PEM certificates of the CAs that may sign the BMCs' certificates: a path, https://…, ssm:NAME or "
        "s3://BUCKET/KEY; unset: the system's CAs.",
    )
    auth: Literal["basic", "session"] = Field(
        "basic",
        description="How to log in to the BMCs: with each request (basic), or with sessions, which are closed again "
        "(session).",
    )
    graceful: bool = Field(
        False,  # noqa: FBT003 - the default of a field
        description="Ask the operating system to restart, if the BMC can do so; a hung system may not react. false: "
        "restart by force.",
    )
    reinstall: str | None = Field(
        None,
        pattern=r"^(pxe|[a-z][a-z0-9+.-]*://[^\s@]+)$",
        description="What a reinstall boots once: pxe, or the URL of an image for the BMC's virtual CD drive; unset: "
        "machines are not reinstalled.",
    )


SPEC = ProviderSpec(
    name="redfish",
    module="shepherd_core.providers.redfish.adapter",
    settings=RedfishSettings,
    always=frozenset({Capability.CREATE, Capability.REBOOT, Capability.POWER_CYCLE}),
    sometimes={Capability.REINSTALL: "if there is something to boot from"},
)
