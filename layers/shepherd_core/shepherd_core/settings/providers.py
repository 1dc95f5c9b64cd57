"""
The providers that Shepherd knows: the settings of each, and the one table of them, ``SPECS``.

Only the settings of the chosen provider are read, and only its module is imported.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from shepherd_core.domain.provider import Capability
from shepherd_core.settings.base import Count, Seconds, Settings

if TYPE_CHECKING:
    from collections.abc import Mapping


def _filled_in(value: str) -> str:
    """Refuse a placeholder: with a wrong prefix, Shepherd would change machines that are not ours."""
    if "FIXME" in value:
        msg = "still contains FIXME"
        raise ValueError(msg)
    return value


FilledIn = Annotated[str, Field(min_length=1), AfterValidator(_filled_in)]


class StaticSettings(Settings):
    """The static list."""

    table = "provider.static"

    static_list: str = Field(
        description="Location of the list: a path, https://…, ssm:NAME or s3://BUCKET/KEY.",
    )


class EquinixSettings(Settings):
    """Equinix Metal."""

    table = "provider.equinix"

    equinix_project_id: str = Field(description="Project whose reservations and devices are managed.")
    equinix_api_key_parameter: str = Field(description="Name of the SSM parameter that holds the API key.")
    equinix_device_prefix: FilledIn = Field(
        description="Prefix of our devices' host names; all other devices are ignored."
    )
    equinix_key_label: FilledIn = Field(description="Label of our SSH key in the project.")
    equinix_os: str = Field("ubuntu_24_04", description="Operating system of new devices.")
    equinix_api_url: str = Field("https://api.equinix.com/metal/v1", description="Base URL of the API.")
    equinix_max_calls: Count = Field(3, description="Maximum number of concurrent calls to the API.")


class HetznerSettings(Settings):
    """Hetzner's dedicated servers."""

    table = "provider.hetzner"

    hetzner_credential_parameter: str = Field(
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


def _listed(value: str) -> str:
    """Refuse a list with empty entries or spaces."""
    if not all(value.split(",")) or value != "".join(value.split()):
        msg = "is not one or more ids separated by commas, without spaces"
        raise ValueError(msg)
    return value


Ids = Annotated[str, AfterValidator(_listed)]


class Ec2Settings(Settings):
    """Amazon EC2, in the account and the region that the functions run in."""

    table = "provider.ec2"

    ec2_fleet: FilledIn = Field(
        max_length=64,
        pattern=r"^[A-Za-z0-9._:/=+@-]+$",
        description="Value of the tag shepherd-fleet on our instances; all other instances are ignored.",
    )
    ec2_limit: Count = Field(description="Maximum number of instances.")
    ec2_subnets: Ids = Field(
        description="Subnets of new instances, separated by commas; if one has no capacity, the next is tried."
    )
    ec2_security_groups: Ids | None = Field(
        None,
        description="Security groups of new instances, separated by commas; unset: those of the launch template, or "
        "the default group.",
    )
    ec2_launch_template: str | None = Field(
        None, description="Launch template of new instances, by id (lt-…) or name; unset: none."
    )
    ec2_launch_template_version: str | None = Field(
        None, description="Version of that launch template; unset: its default version."
    )
    ec2_image: str | None = Field(
        None,
        pattern="^ami-[0-9a-f]+$",
        validate_default=True,
        description="AMI of new and reinstalled instances; unset: that of the launch template.",
    )
    ec2_instance_type: str | None = Field(
        None,
        validate_default=True,
        description="Type of new instances, such as m7i.metal-24xl; unset: that of the launch template.",
    )
    ec2_address: Literal["private", "public"] = Field(
        "private", description="Which address of an instance SSH connects to."
    )

    @field_validator("ec2_image", "ec2_instance_type")
    @classmethod
    def _from_somewhere(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is None and info.data.get("ec2_launch_template") is None:
            msg = "is needed where there is no launch template"
            raise ValueError(msg)
        return value


class RedfishSettings(Settings):
    """Your own machines, through their BMCs."""

    table = "provider.redfish"

    redfish_list: str = Field(
        description="Location of the list of machines and BMCs: a path, https://…, ssm:NAME or s3://BUCKET/KEY.",
    )
    redfish_ca_source: str | None = Field(
        None,
        description="PEM certificates of the CAs that may sign the BMCs' certificates: a path, https://…, ssm:NAME or "
        "s3://BUCKET/KEY; unset: the system's CAs.",
    )
    redfish_auth: Literal["basic", "session"] = Field(
        "basic",
        description="How to log in to the BMCs: with each request (basic), or with sessions, which are closed again "
        "(session).",
    )
    redfish_graceful: bool = Field(
        False,  # noqa: FBT003 - the default of a field
        description="Ask the operating system to restart, if the BMC can; a hung system may not react. Otherwise "
        "restart by force.",
    )
    redfish_boot_source: str | None = Field(
        None,
        pattern=r"^(pxe|[a-z][a-z0-9+.-]*://[^\s@]+)$",
        description="What a reinstall boots once: pxe, or the URL of an image for the BMC's virtual CD drive; unset: "
        "machines are not reinstalled.",
    )
    redfish_list_power: bool = Field(
        True,  # noqa: FBT003 - the default of a field
        description="Whether a listing asks each BMC for the power state; otherwise it is unknown.",
    )
    redfish_timeout_seconds: Seconds = Field(
        30,
        description="Maximum seconds for one request to a BMC, for all BMCs in a listing, and for a machine to power "
        "off.",
    )
    redfish_max_calls: Count = Field(16, description="Maximum number of BMCs that a listing asks at the same time.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderSpec:
    """A provider. Its page is ``docs/providers/NAME.md``; the table there has its capabilities in these words."""

    name: str
    module: str
    """The module in ``providers`` whose ``build`` returns the adapter, from these settings and a ProviderContext."""
    settings: type[Settings]
    secrets: tuple[str, ...] = ()
    """The settings that hold the name of a secret."""
    always: frozenset[Capability]
    """What it can do."""
    sometimes: Mapping[Capability, str] = field(default_factory=dict)
    """What it can do with some settings or machines, and with which."""


SPECS = (
    ProviderSpec(
        name="static",
        module="static",
        settings=StaticSettings,
        always=frozenset({Capability.CREATE}),
    ),
    ProviderSpec(
        name="redfish",
        module="redfish.adapter",
        settings=RedfishSettings,
        always=frozenset({Capability.CREATE, Capability.REBOOT, Capability.POWER_CYCLE}),
        sometimes={Capability.REINSTALL: "if there is something to boot from"},
    ),
    ProviderSpec(
        name="equinix",
        module="equinix.adapter",
        settings=EquinixSettings,
        secrets=("equinix_api_key_parameter",),
        always=frozenset({Capability.CREATE, Capability.REBOOT, Capability.REINSTALL}),
    ),
    ProviderSpec(
        name="ec2",
        module="ec2.adapter",
        settings=Ec2Settings,
        always=frozenset({Capability.CREATE, Capability.REBOOT, Capability.POWER_CYCLE, Capability.RELEASE}),
        sometimes={Capability.REINSTALL: "unless bare metal; Macs: yes"},
    ),
    ProviderSpec(
        name="hetzner",
        module="hetzner.adapter",
        settings=HetznerSettings,
        secrets=("hetzner_credential_parameter",),
        always=frozenset({Capability.CREATE, Capability.REBOOT, Capability.POWER_CYCLE, Capability.REINSTALL}),
    ),
)
"""All providers."""

PROVIDERS = {spec.name: spec.settings for spec in SPECS}
"""The settings of each provider."""

if TYPE_CHECKING:
    ProviderName = str
else:
    ProviderName = Literal[tuple(PROVIDERS)]
"""The name of one of them."""
