"""The settings of Hetzner's dedicated servers, and what Shepherd can do there."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from shepherd_core.domain.provider import Capability
from shepherd_core.settings.base import Settings
from shepherd_core.settings.providers.spec import FilledIn, ProviderSpec


class HetznerSettings(Settings):
    """Hetzner's dedicated servers."""

    table = "provider.hetzner"

    credential_parameter: str = Field(
        description="Name of the SSM parameter that holds USER:PASSWORD of the Robot web service."
    )
    hetzner_name_prefix: FilledIn = Field(
        description="Prefix of our servers' names in Robot; all other servers are ignored."
    )
    hetzner_key_name: FilledIn = Field(description="Name of our SSH key in Robot's key store.")
    hetzner_reboot: Literal["software", "hardware"] = Field(
        "software",
        description="How servers are rebooted: with Ctrl+Alt+Del where Robot offers it (software), or with the reset "
        "button (hardware).",
    )
    hetzner_reinstall: Literal["linux", "rescue"] = Field(
        "linux",
        description="What a reinstall boots: the installation of a distribution (linux), or the rescue system, which "
        "leaves the disks alone (rescue).",
    )
    hetzner_dist: str = Field("Debian 12 base", description="Distribution to install, by Robot's name for it.")
    hetzner_api_url: str = Field("https://robot-ws.your-server.de", description="Base URL of the web service.")


SPEC = ProviderSpec(
    name="hetzner",
    module="hetzner.adapter",
    settings=HetznerSettings,
    secrets=("credential_parameter",),
    always=frozenset({Capability.CREATE, Capability.REBOOT, Capability.POWER_CYCLE, Capability.REINSTALL}),
)
