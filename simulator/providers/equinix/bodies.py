"""The request bodies that the simulated Equinix API accepts."""

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from simulator.providers.equinix.records import fingerprint
from simulator.providers.kit.machines import Refused

Hostname = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?$")]
Place = str | list[str] | None

OPERATING_SYSTEMS = (
    *("alma_9", "centos_9", "custom_ipxe", "debian_11", "debian_12", "nixos_24_05", "rocky_9"),
    *("ubuntu_20_04", "ubuntu_22_04", "ubuntu_24_04"),
)
"""The slugs of the operating systems that a device can have."""


class Body(BaseModel):
    """A request body: unknown fields are ignored, known fields must have the right type."""

    model_config = ConfigDict(extra="ignore", strict=True)


class DeviceChange(Body):
    """A change of a device."""

    hostname: Hostname | None = None
    tags: list[str] | None = None
    locked: bool | None = None
    description: str | None = None
    userdata: str | None = None
    customdata: dict[str, Any] | None = None
    billing_cycle: Literal["hourly", "daily", "monthly", "yearly"] | None = None
    always_pxe: bool | None = None
    ipxe_script_url: str | None = None
    network_frozen: bool | None = None

    def settings(self) -> dict[str, Any]:
        """Return the given fields that have no meaning to the simulator."""
        return self.model_dump(exclude_unset=True, include=_SETTINGS)


_SETTINGS = set(DeviceChange.model_fields) - {"hostname", "tags", "locked"}


class InlineKey(Body):
    """An SSH key in the request for a device."""

    label: str = "inline"
    key: str


class DeviceWanted(DeviceChange):
    """A device to create."""

    plan: str
    operating_system: str
    metro: Place = None
    facility: Place = None
    hardware_reservation_id: str | None = None
    project_ssh_keys: list[str] = []
    user_ssh_keys: list[str] = []
    ssh_keys: list[InlineKey] = []
    no_ssh_keys: bool = False


class Action(Body):
    """An action on a device."""

    type: Literal["power_on", "power_off", "reboot", "rescue", "reinstall"]
    operating_system: str | None = None
    preserve_data: bool = False
    deprovision_fast: bool = False
    force_delete: bool = False
    ipxe_script_url: str | None = None


class Move(Body):
    """The project that a reservation moves to."""

    project_id: str


class KeyWanted(Body):
    """An SSH key to create."""

    label: Annotated[str, Field(min_length=1)]
    key: str
    tags: list[str] = []


class KeyChange(Body):
    """A change of an SSH key."""

    label: Annotated[str, Field(min_length=1)] | None = None
    key: str | None = None
    tags: list[str] | None = None


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
