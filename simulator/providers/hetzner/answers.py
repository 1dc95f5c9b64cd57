"""The objects in the answers of Hetzner's Robot web service, as in its published description."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Strict(BaseModel):
    """Unknown fields are an error."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Identity(Strict):
    """The server that an object belongs to."""

    server_ip: str | None  # observed: null where IPv4 was not ordered
    server_ipv6_net: str | None
    server_number: int


class Subnet(Strict):
    """A network of a server."""

    ip: str
    mask: str


class ListedServer(Identity):
    """A server in the listing."""

    server_name: str
    product: str
    dc: str
    traffic: str
    status: str
    cancelled: bool
    paid_until: str
    ip: list[str] | None  # observed: null where IPv4 was not ordered
    subnet: list[Subnet] | None


class ServerDetails(ListedServer):
    """A server in the answer to a query for it alone."""

    reset: bool
    rescue: bool
    vnc: bool
    windows: bool
    plesk: bool
    cpanel: bool
    wol: bool
    hot_swap: bool
    linked_storagebox: int | None


class Resets(Identity):
    """The ways in which a server can be reset."""

    type: list[str]
    operating_status: str


class ResetDone(Strict):
    """A reset that was begun."""

    server_ip: str | None
    server_ipv6_net: str | None
    server_number: int | None = None  # in the table of the description, not in its example
    type: str


class KeyName(Strict):
    """A key without its data."""

    name: str
    fingerprint: str
    type: str
    size: int


class Key(KeyName):
    """A key of the key store."""

    data: str
    created_at: str


class Boot(Identity):
    """The common fields of boot configurations; the password is null unless it is active."""

    active: bool
    password: str | None
    arch: list[int] | int | None = Field(None, alias="@deprecated arch")


class KeyedBoot(Boot):
    """A boot configuration with SSH keys."""

    authorized_key: list[dict[str, KeyName]]  # observed: keys without their data, each in an object
    host_key: list[Any]


class Rescue(KeyedBoot):
    """The rescue system; ``os`` lists the choices, or is the active one."""

    os: list[str] | str


class Linux(KeyedBoot):
    """The installation of a distribution."""

    dist: list[str] | str
    lang: list[str] | str


class OtherInstallation(Boot):
    """Any other installation."""

    dist: list[str] | str | None
    lang: list[str] | str | None
    hostname: str | None = None


class Boots(Strict):
    """All boot configurations of a server; at most one is active."""

    rescue: Rescue | None  # observed: null if it is not offered
    linux: Linux | None
    vnc: OtherInstallation | None
    windows: OtherInstallation | None
    plesk: OtherInstallation | None
    cpanel: OtherInstallation | None


class Error(Strict):
    """An error."""

    status: int
    code: str
    message: str
    missing: list[str] | None = None
    invalid: list[str] | None = None
    max_request: int | None = None
    interval: int | None = None
