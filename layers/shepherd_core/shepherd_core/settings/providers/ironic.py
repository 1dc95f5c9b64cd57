"""The settings of OpenStack Ironic, and what Shepherd can do there."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from shepherd_core.domain.provider import Capability
from shepherd_core.settings.base import FilledIn, ProviderSettings
from shepherd_core.settings.providers.spec import ProviderSpec


class IronicSettings(ProviderSettings):
    """Your own machines, through OpenStack Ironic."""

    table = "provider.ironic"

    api_url: str = Field(description="Base URL of the API, without /v1: https://ironic.example.com:6385.")
    auth: Literal["none", "basic", "keystone"] = Field(
        "basic",
        description="How to log in: not at all (none), with user and password (basic), or with an application "
        "credential of Keystone (keystone).",
    )
    auth_url: str | None = Field(
        None,
        validate_default=True,
        description="Base URL of Keystone, with /v3: https://keystone.example.com:5000/v3; only with keystone.",
    )
    credential_parameter: str = Field(
        description="Name of the SSM parameter that holds USER:PASSWORD (basic) or ID:SECRET (keystone)."
    )
    fleet: FilledIn = Field(
        description="Value of shepherd_fleet in the instance_info of our nodes; all other instances are ignored."
    )
    machine_type: FilledIn = Field(description="Resource class of our nodes; all others are ignored.")
    trait: str | None = Field(
        None, description="Trait that a node must have to become a machine, such as CUSTOM_FLEET; unset: none."
    )
    project: str | None = Field(
        None,
        description="Id of the Keystone project that owns or leases our nodes: those of others are ignored; unset: "
        "nodes that are leased to any project.",
    )
    address_field: str = Field("ipv4_address", description="Field of a node's extra that holds its IP address for SSH.")
    image: str = Field(description="Image that is deployed: an https:// URL or the id of an image in Glance.")
    image_checksum: str | None = Field(
        None,
        description="SHA-256 or SHA-512 of the image, or the URL of a file with it; unset: the image is in Glance.",
    )

    @field_validator("auth_url")
    @classmethod
    def _where_needed(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is None and info.data.get("auth") == "keystone":
            msg = "is needed where auth is keystone"
            raise ValueError(msg)
        return value


SPEC = ProviderSpec(
    name="ironic",
    module="shepherd_core.providers.ironic.adapter",
    settings=IronicSettings,
    given=frozenset({"credential_parameter"}),
    always=frozenset(
        {Capability.CREATE, Capability.REBOOT, Capability.POWER_CYCLE, Capability.REINSTALL, Capability.RELEASE}
    ),
)
