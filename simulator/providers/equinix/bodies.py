"""The request bodies that the simulated Equinix API accepts."""

from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from simulator.providers.equinix.records import fingerprint
from simulator.providers.kit.machines import Refused

OPERATING_SYSTEMS = (
    *("alma_9", "centos_9", "custom_ipxe", "debian_11", "debian_12", "nixos_24_05", "rocky_9"),
    *("ubuntu_20_04", "ubuntu_22_04", "ubuntu_24_04"),
)
"""The slugs of the operating systems that a device can have."""


class Body(BaseModel):
    """A request body: fields that Shepherd does not send are refused, the others must have the right type."""

    model_config = ConfigDict(extra="forbid", strict=True)


class DeviceWanted(Body):
    """A device to create."""

    hostname: Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?$")]
    plan: str
    operating_system: str
    metro: str
    hardware_reservation_id: str | None = None
    project_ssh_keys: list[str] = []
    tags: list[str] = []


class Action(Body):
    """An action on a device."""

    type: Literal["reboot", "reinstall"]
    operating_system: str | None = None
    deprovision_fast: bool = False


class KeyWanted(Body):
    """An SSH key to create."""

    label: Annotated[str, Field(min_length=1)]
    key: str


B = TypeVar("B", bound=Body)


def read(kind: type[B], body: object) -> B:
    """
    Return *body* as a *kind*.

    Raises:
        Refused: it does not fit; names every wrong field.
    """
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        faults = [(".".join(map(str, item["loc"])) or "body", item["msg"]) for item in error.errors(include_url=False)]
        raise Refused(422, *(f"{place}: {message}" for place, message in faults)) from error


def check_key(text: str) -> None:
    """
    Check that *text* is an SSH public key.

    Raises:
        Refused: it is not one.
    """
    if fingerprint(text) is None:
        raise Refused(422, "key: is not an SSH public key")


def check_operating_system(slug: str) -> None:
    """
    Check that there is an operating system with this slug.

    Raises:
        Refused: there is none.
    """
    if slug not in OPERATING_SYSTEMS:
        raise Refused(422, f"operating_system: {slug!r} is not a valid operating system")
