"""The settings of Amazon EC2, and what Shepherd can do there."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from shepherd_core.domain.provider import Capability
from shepherd_core.settings.base import Count, FilledIn, ProviderSettings
from shepherd_core.settings.providers.spec import ProviderSpec


def _listed(value: str) -> str:
    """Refuse a list with empty entries or spaces."""
    if not all(value.split(",")) or value != "".join(value.split()):
        msg = "is not one or more ids separated by commas, without spaces"
        raise ValueError(msg)
    return value


Ids = Annotated[str, AfterValidator(_listed)]


class Ec2Settings(ProviderSettings):
    """Amazon EC2, in the account and the region that the functions run in."""

    table = "provider.ec2"

    fleet: FilledIn = Field(
        max_length=64,
        pattern=r"^[A-Za-z0-9._:/=+@-]+$",
        description="Value of the tag shepherd-fleet on our instances; all other instances are ignored.",
    )
    limit: Count = Field(description="Maximum number of instances.")
    subnets: Ids = Field(
        description="Subnets of new instances, separated by commas; if one has no capacity, the next is tried."
    )
    security_groups: Ids | None = Field(
        None,
        description="Security groups of new instances, separated by commas; unset: those of the launch template, or "
        "the default group.",
    )
    launch_template: str | None = Field(
        None, description="Launch template of new instances, by id (lt-…) or name; unset: none."
    )
    launch_template_version: str | None = Field(
        None, description="Version of that launch template; unset: its default version."
    )
    image: str | None = Field(
        None,
        pattern="^ami-[0-9a-f]+$",
        validate_default=True,
        description="AMI of new and reinstalled instances; unset: that of the launch template.",
    )
    machine_type: str | None = Field(
        None,
        validate_default=True,
        description="Type of new instances, such as m7i.metal-24xl; unset: that of the launch template.",
    )
    address: Literal["private", "public"] = Field(
        "private", description="Which address of an instance SSH connects to."
    )

    @field_validator("image", "machine_type")
    @classmethod
    def _from_somewhere(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is None and info.data.get("launch_template") is None:
            msg = "is needed where there is no launch template"
            raise ValueError(msg)
        return value


SPEC = ProviderSpec(
    name="ec2",
    module="shepherd_core.providers.ec2.adapter",
    settings=Ec2Settings,
    given=frozenset({"fleet"}),
    always=frozenset({Capability.CREATE, Capability.REBOOT, Capability.POWER_CYCLE, Capability.RELEASE}),
    sometimes={Capability.REINSTALL: "unless bare metal; Macs: yes"},
)
