"""The objects of Hetzner's Robot web service, and their conversion to machines; makes no requests."""

from __future__ import annotations

import base64
import hashlib
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from shepherd_core.domain.errors.provider import ListingInvalid
from shepherd_core.domain.machine import Availability, Machine, ProviderId, ProviderStatus
from shepherd_core.providers.kit import fields
from shepherd_core.providers.kit.api_object import ApiObject, Text, parse
from shepherd_core.providers.kit.registered_key import StoredKey

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_STATUS = {"ready": ProviderStatus.RUNNING, "in process": ProviderStatus.PROVISIONING}
_HOST = 2
"""Hetzner's installer and rescue system give a server the second address of its IPv6 network."""


class HetznerServer(ApiObject):
    """A rented server."""

    server_number: Annotated[int, Field(ge=0, lt=10**18)]
    server_name: str | None = None
    server_ip: str | None = None
    server_ipv6_net: str | None = None
    ip: list[str] | None = None
    dc: Text | None = None
    status: str | None = None
    cancelled: bool = False

    def bears(self, prefix: str) -> bool:
        """Return whether its name begins with *prefix*."""
        return (self.server_name or "").startswith(prefix)


class ServerEntry(ApiObject):
    """The object around a server."""

    server: HetznerServer


class Reset(ApiObject):
    """The ways in which a server can be reset."""

    type: list[str]
    operating_status: str | None = None

    def choose(self, wanted: Sequence[str]) -> str | None:
        """Return the first of *wanted* that is offered; for a server that is off, the power button if offered."""
        if self.operating_status == "shut off":
            wanted = ("power", *wanted)  # this button would switch off a server that is on
        return next((one for one in wanted if one in self.type), None)


class ResetEntry(ApiObject):
    """The object around the resets."""

    reset: Reset


class HetznerKey(ApiObject):
    """An SSH key of the key store; without its data if it is part of another object."""

    name: str = ""
    fingerprint: str
    data: str = ""
    created_at: str = ""


class KeyEntry(ApiObject):
    """The object around a key."""

    key: HetznerKey


class BootOption(ApiObject):
    """A boot configuration, which replaces the disks; active: at the next boot."""

    active: bool = False
    authorized_key: list[KeyEntry] | None = None


class BootEntry(ApiObject):
    """All boot configurations of a server, by kind; null if not available for this server."""

    boot: dict[str, BootOption | None]

    def active(self) -> Iterator[tuple[str, set[str]]]:
        """Yield the kind of the active one, if any, with the fingerprints of its SSH keys."""
        for kind, option in self.boot.items():
            if option is not None and option.active:
                yield kind, {entry.key.fingerprint for entry in option.authorized_key or ()}


def machine(server: HetznerServer) -> Machine:
    """
    Return *server* as a machine.

    A cancelled server is marked as failed: it runs until its last day, but no
    new machine is created on it.
    """
    return Machine(
        provider_id=ProviderId(str(server.server_number)),
        availability=Availability.POSSIBLY_USED,
        address=_address(server),
        location=server.dc,
        status=_STATUS.get(server.status or "", ProviderStatus.UNKNOWN),
        failed=server.cancelled,
    )


def machines(prefix: str, listed: object) -> list[Machine]:
    """
    Return the machines of a complete listing: the servers whose name begins with *prefix*.

    Raises:
        ListingInvalid: an entry was not understood, or is listed twice.
    """
    if not isinstance(listed, list):
        raise ListingInvalid(f"the listing of servers is of type {type(listed).__name__}, not a list")
    found: dict[int, Machine] = {}
    seen: set[int] = set()
    for index, entry in enumerate(listed):
        server = parse(ServerEntry, entry, f"entry {index} of the listing of servers", ListingInvalid).server
        if server.server_number in seen:
            raise ListingInvalid(f"server {server.server_number} is listed twice")
        seen.add(server.server_number)
        if server.bears(prefix):
            found[server.server_number] = machine(server)
    return list(found.values())


def stored_keys(listed: object) -> list[StoredKey]:
    """Return the keys in the answer with all SSH keys; their ids are their fingerprints."""
    entries = listed if isinstance(listed, list) else [listed]
    keys = [parse(KeyEntry, entry, "the list of SSH keys").key for entry in entries]
    return [StoredKey(key.fingerprint, key.name, key.data, key.created_at) for key in keys]


def fingerprint(line: str) -> str:
    """Return the fingerprint by which Robot knows an SSH key; *line* as in ``authorized_keys``."""
    digest = hashlib.md5(base64.b64decode(line.split()[1]), usedforsecurity=False).digest()
    return digest.hex(":")


def _address(server: HetznerServer) -> IPv4Address | IPv6Address | None:
    """Return the address for SSH: the main one, else any single one, else the host in the IPv6 network."""
    for text in (server.server_ip, *(server.ip or ())):
        address = fields.address(text)
        if address is not None:
            return address
    network = fields.address(server.server_ipv6_net)
    return network + _HOST if isinstance(network, IPv6Address) else None
