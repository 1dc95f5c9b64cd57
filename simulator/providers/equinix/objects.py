"""The objects of the simulated Equinix API, as JSON."""

import uuid
from typing import Any

from simulator.providers.equinix.answers import BASE, Json, NestedObject
from simulator.providers.equinix.records import DeviceRecord, KeyRecord, ReservationRecord, fingerprint, metro_of
from simulator.providers.equinix.state import EquinixState


def device_json(state: EquinixState, device: DeviceRecord) -> Json:
    """Return a device, with links to related objects."""
    body: Json = {
        **_head("devices", device.id),
        "hostname": device.hostname,
        "state": device.state,
        "tags": list(device.tags),
        "plan": plan_link(device.plan),
        "operating_system": _named("operating-systems", device.operating_system),
        "facility": facility_link(device.facility),
        "metro": metro_link(metro_of(device.facility)),
        "project": project_link(state.project_id),
        "ip_addresses": _addresses(device),
        "ssh_keys": [_key_link(key) for key in device.ssh_keys],
    }
    if device.reservation_id is not None:
        reservation = state.reservations[device.reservation_id]
        body["hardware_reservation"] = NestedObject(
            f"{BASE}/hardware-reservations/{reservation.id}", lambda: reservation_json(state, reservation)
        )
    return body


def reservation_json(state: EquinixState, reservation: ReservationRecord) -> Json:
    """Return a reservation, with links to related objects."""
    device = state.occupant(reservation.id)
    return {
        **_head("hardware-reservations", reservation.id),
        "device": None if device is None else _device_link(state, device),
        "facility": facility_link(reservation.facility),
        "plan": plan_link(reservation.plan),
        "project": project_link(state.project_id),
        "provisionable": provisionable(state, reservation),
        "spare": reservation.spare,
    }


def _device_link(state: EquinixState, device: DeviceRecord) -> NestedObject:
    return NestedObject(f"{BASE}/devices/{device.id}", lambda: device_json(state, device))


def provisionable(state: EquinixState, reservation: ReservationRecord) -> bool:
    """Return whether a device can be created on a reservation now."""
    return reservation.provisionable and not reservation.spare and state.occupant(reservation.id) is None


def key_json(key: KeyRecord) -> Json:
    """Return an SSH key."""
    return {
        "id": key.id,
        "href": f"{BASE}/ssh-keys/{key.id}",
        "label": key.label,
        "key": key.key,
        "fingerprint": fingerprint(key.key),
        "created_at": key.created_at,
    }


def _key_link(key: KeyRecord) -> NestedObject:
    return NestedObject(f"{BASE}/ssh-keys/{key.id}", lambda: key_json(key))


def plan_link(slug: str) -> NestedObject:
    """Return the link to a plan."""
    body: Json = {"class": slug, "type": "standard", "specs": {"cpus": [], "drives": [], "nics": [], "features": {}}}
    return _named("plans", slug, **body)


def facility_link(code: str) -> NestedObject:
    """Return the link to a facility."""
    body: Json = {"metro": metro_link(metro_of(code)), "features": ["baremetal"], "ip_ranges": []}
    return _named("facilities", code, shown=False, **body)


def metro_link(code: str) -> NestedObject:
    """Return the link to a metro."""
    return _named("locations/metros", code, country="US")


def project_link(project_id: str) -> NestedObject:
    """Return the link to a project."""
    href = f"{BASE}/projects/{project_id}"
    return NestedObject(href, lambda: {"id": project_id, "href": href, "name": "Project"})


def _named(collection: str, slug: str, *, shown: bool = True, **more: Any) -> NestedObject:
    """Return the link to an entry of the catalogue, which has a slug (places: a code) and a name."""
    identity = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{collection}/{slug}"))
    href = f"{BASE}/{collection}/{identity}"
    word = "slug" if collection in ("plans", "operating-systems") else "code"
    return NestedObject(href, lambda: {"id": identity, "href": href, word: slug, "name": slug, **more}, shown=shown)


def _head(collection: str, identity: str) -> Json:
    return {"id": identity, "href": f"{BASE}/{collection}/{identity}"}


def _addresses(device: DeviceRecord) -> list[NestedObject]:
    return [
        _address(device, address, public=public)
        for address, public in ((device.address, True), (device.private_address, False))
        if address is not None
    ]


def _address(device: DeviceRecord, address: str, *, public: bool) -> NestedObject:
    identity = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{device.id}/{address}"))
    body: Json = {
        "id": identity,
        "href": f"{BASE}/ips/{identity}",
        "address": address,
        "address_family": 6 if ":" in address else 4,
        "public": public,
        "management": True,
        "manageable": True,
        "enabled": True,
        "cidr": 31,
        "global_ip": False,
        "assigned_to": {"href": f"{BASE}/devices/{device.id}"},
    }
    return NestedObject(body["href"], lambda: body, shown=True)
