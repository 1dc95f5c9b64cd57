"""The settings of the providers, one type for each; otherwise as ``config``. Only the chosen provider's are read."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from shepherd_core.config import Count, Settings


def _filled_in(value: str) -> str:
    """Refuse what was never filled in: a wrong prefix would touch machines that are not ours."""
    if "FIXME" in value:
        msg = "still contains FIXME"
        raise ValueError(msg)
    return value


FilledIn = Annotated[str, Field(min_length=1), AfterValidator(_filled_in)]


class StaticSettings(Settings):
    """The static list."""

    static_list: str = Field(
        description="Where the list is: a path, https://…, ssm:NAME or s3://BUCKET/KEY.",
    )


class EquinixSettings(Settings):
    """Equinix Metal."""

    equinix_project_id: str = Field(description="The project whose reservations and devices are managed.")
    equinix_api_key_parameter: str = Field(description="Name of the SSM parameter that holds the API key.")
    equinix_device_prefix: FilledIn = Field(
        description="Host names of our devices begin with this; all others are ignored."
    )
    equinix_key_label: FilledIn = Field(description="Label of our SSH key in the project.")
    equinix_os: str = Field("ubuntu_24_04", description="Operating system that new devices get.")
    equinix_api_url: str = Field("https://api.equinix.com/metal/v1", description="Base URL of the API.")
    equinix_max_calls: Count = Field(3, description="Calls to the API at the same time.")


class HetznerSettings(Settings):
    """Hetzner's dedicated servers."""

    hetzner_credential_parameter: str = Field(
        description="Name of the SSM parameter that holds USER:PASSWORD of the Robot web service."
    )
    hetzner_name_prefix: FilledIn = Field(
        description="Names of our servers in Robot begin with this; all others are ignored."
    )
    hetzner_key_name: FilledIn = Field(description="Name of our SSH key in Robot's key store.")
    hetzner_reboot: Literal["software", "hardware"] = Field(
        "software",
        description="How servers are rebooted: by Ctrl+Alt+Del (software) where that is offered, or by the reset "
        "button (hardware).",
    )
    hetzner_reinstall: Literal["linux", "rescue"] = Field(
        "linux",
        description="What a reinstall boots: the installation of a distribution (linux), or the rescue system, which "
        "leaves the disks alone (rescue).",
    )
    hetzner_dist: str = Field("Debian 12 base", description="Distribution that is installed, as Robot calls it.")
    hetzner_api_url: str = Field("https://robot-ws.your-server.de", description="Base URL of the web service.")
