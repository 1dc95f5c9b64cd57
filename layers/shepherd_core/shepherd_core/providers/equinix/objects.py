"""The objects of the Equinix Metal API, and their conversion to machines; makes no requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shepherd_core.domain import labels
from shepherd_core.domain.errors.provider import ListingInvalid
from shepherd_core.domain.machine import INVALID, Availability, Machine, ProviderId, ProviderStatus
from shepherd_core.providers.kit import fields
from shepherd_core.providers.kit.api_object import ApiObject, Id, MachineAddress, Text, parse

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

TOKEN_TAG = "shepherd-token="  # noqa: S105 - the prefix of the tag with the machine id

_STATUS = {
    "queued": ProviderStatus.PROVISIONING,
    "provisioning": ProviderStatus.PROVISIONING,
    "post_provisioning": ProviderStatus.PROVISIONING,
    "reinstalling": ProviderStatus.PROVISIONING,
    "active": ProviderStatus.RUNNING,
    "inactive": ProviderStatus.STOPPED,
    "powering_on": ProviderStatus.STOPPED,
    "powering_off": ProviderStatus.STOPPED,
    "failed": ProviderStatus.PROVISIONING_FAILED_PERMANENT,
    "deleted": ProviderStatus.MISSING,
    "deprovisioning": ProviderStatus.UNKNOWN,
}


class Link(ApiObject):
    """Another object, or a link to it."""

    id: Text | None = None
    href: str | None = None

    @property
    def key(self) -> str:
        """Return the id, which is also the end of the link."""
        return self.id or (self.href or "").rstrip("/").rpartition("/")[2]


class Site(ApiObject):
    """A metro, or a facility in one."""

    code: Text | None = None
    metro: Site | None = None


class Address(ApiObject):
    """One address of a device."""

    address: MachineAddress | None = None
    public: bool = False


class Plan(ApiObject):
    """A kind of hardware."""

    slug: str | None = None


class Device(ApiObject):
    """A machine."""

    id: Id
    hostname: str = ""
    state: str = ""
    tags: list[str] | None = None
    ip_addresses: list[Address] | None = None
    hardware_reservation: Link | None = None
    metro: Site | None = None
    facility: Site | None = None

    def has(self, token: UUID) -> bool:
        """Return whether the device was created with *token*."""
        return token_tag(token) in (self.tags or ())


class Reservation(ApiObject):
    """A hardware reservation."""

    id: Id
    device: Link | None = None
    facility: Site | None = None
    plan: Plan | None = None
    provisionable: bool = False

    @property
    def metro(self) -> str | None:
        """Return the code of the metro."""
        return self.facility.metro.code if self.facility and self.facility.metro else None


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeReservation(Machine):
    """Capacity, with the fields that the creation of a device needs."""

    plan: str | None
    """The kind of hardware."""
    metro: str | None


class DevicePage(ApiObject):
    """The first page of a listing of devices."""

    devices: list[Device]


class EquinixKey(ApiObject):
    """An SSH key of the project."""

    id: str
    label: str | None = None
    key: str = ""
    created_at: str = ""


class EquinixKeys(ApiObject):
    """All SSH keys of the project; not paged."""

    ssh_keys: list[EquinixKey]


def token_tag(token: UUID) -> str:
    """Return the tag of a device that was created with *token*."""
    return f"{TOKEN_TAG}{token}"


def machine(device: Device, reservation_id: str | None = None) -> Machine:
    """Return *device* as a machine; *reservation_id* is its reservation, if known."""
    public = [entry.address for entry in device.ip_addresses or () if entry.public and entry.address is not None]
    tokens = [token for tag in device.tags or () if (token := fields.token(tag, TOKEN_TAG)) is not None]
    return Machine(
        provider_id=ProviderId(device.id),
        availability=Availability.KNOWN_USED,
        address=min(public, key=lambda address: address.version, default=None),
        reservation_id=(device.hardware_reservation.key if device.hardware_reservation else reservation_id) or None,
        location=_location(device.metro, device.facility),
        status=_STATUS.get(device.state, ProviderStatus.UNKNOWN),
        failed=device.state == "failed",
        failure="failed" if device.state == "failed" else None,
        token=tokens[0] if tokens else None,
        labels=labels.of_tags(map(labels.split, device.tags or ())),
    )


def machines(prefix: str, devices: Sequence[dict[str, Any]], reservations: Sequence[dict[str, Any]]) -> list[Machine]:
    """
    Return the machines of two complete listings: the devices whose host name begins with *prefix*, and free capacity.

    Raises:
        ListingInvalid: a relevant entry was not understood.
    """
    found = [
        machine(parse(Device, entry, f"device {entry['id']}", ListingInvalid))
        for entry in devices
        if str(entry.get("hostname")).startswith(prefix)
    ]
    # Reservations are often more out of date than the devices on them.
    occupied = {
        parse(Link, entry["hardware_reservation"], f"device {entry['id']}", ListingInvalid).key
        for entry in devices
        if entry.get("hardware_reservation")
    }
    for entry in reservations:
        reservation = parse(Reservation, entry, f"reservation {entry['id']}", ListingInvalid)
        if reservation.provisionable and reservation.device is None and reservation.id not in occupied:
            found.append(
                FreeReservation(
                    provider_id=INVALID,
                    availability=Availability.KNOWN_UNUSED,
                    reservation_id=reservation.id,
                    location=_location(reservation.facility),
                    plan=reservation.plan.slug if reservation.plan else None,
                    metro=reservation.metro,
                )
            )
    return found


def _location(*places: Site | None) -> str | None:
    """Return the first code of the metros of *places*, else of the *places* themselves."""
    known = [place for place in places if place is not None]
    return next((place.code for place in [*(p.metro for p in known if p.metro), *known] if place.code), None)
