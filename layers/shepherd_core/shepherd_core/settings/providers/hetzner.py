"""The settings of Hetzner's dedicated servers, and what Shepherd can do there."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from shepherd_core.domain.provider import Capability
from shepherd_core.settings.base import FilledIn, ProviderSettings
from shepherd_core.settings.providers.spec import ProviderSpec


class HetznerSettings(ProviderSettings):
    """Hetzner's dedicated servers."""

    table = "provider.hetzner"

    credential_parameter: str = Field(
        description="Name of the SSM parameter that holds USER:PASSWORD of the Robot web service."
    )
    fleet: FilledIn = Field(description="Prefix of our servers' names in Robot; all other servers are ignored.")
    key_name: FilledIn = Field(description="Name of our SSH key in Robot's key store.")
    graceful: bool = Field(
        True,  # noqa: FBT003 - the default of a field
        description="Reboot with Ctrl+Alt+Del where Robot offers it, which a hung system ignores; false: with the "
        "reset button.",
    )
    reinstall: Literal["linux", "rescue"] = Field(
        "linux",
        description="What a reinstall boots: the installation of a distribution (linux), or the rescue system, which "
        "leaves the disks alone (rescue).",
    )
    os: str = Field("Debian 12 base", description="Distribution to install, by Robot's name for it.")
    api_url: str = Field("https://robot-ws.your-server.de", description="Base URL of the web service.")


SPEC = ProviderSpec(
    name="hetzner",
    module="shepherd_core.providers.hetzner.adapter",
    settings=HetznerSettings,
    given=frozenset({"credential_parameter"}),
    always=frozenset({Capability.CREATE, Capability.REBOOT, Capability.POWER_CYCLE, Capability.REINSTALL}),
)
