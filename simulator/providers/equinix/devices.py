"""The operations of the simulated Equinix API on devices."""

from typing import Any

from simulator.providers.equinix import bodies
from simulator.providers.equinix.answers import one
from simulator.providers.equinix.base import EquinixBase
from simulator.providers.equinix.keys import authorized_lines, keys_for_device
from simulator.providers.equinix.objects import device_json, provisionable
from simulator.providers.equinix.records import DeviceRecord, ReservationRecord, metro_of, now
from simulator.providers.equinix.state import EquinixState
from simulator.providers.kit.http_server import Reply
from simulator.providers.kit.machines import Refused
from simulator.providers.kit.rest import Call, route

_SORTABLE = ("id", "hostname", "state", "created_at", "updated_at")


class DeviceOperations(EquinixBase):
    """The operations on devices."""

    @route("GET", "/projects/{id}/devices")
    def list_devices(self, request: Call, project_id: str) -> Any:
        """List the devices of a project: newest first, unless sorted."""
        self.machines.project(project_id)
        found = [
            device
            for device in reversed(self.machines.all.values())
            if device.project_id == project_id and _fits(device, request.query)
        ]
        if (name := request.query.get("sort_by")) is not None:
            if name not in _SORTABLE:
                raise Refused(422, f"sort_by: cannot sort by {name!r}")
            descending = request.query.get("sort_direction", "asc") == "desc"
            found.sort(key=lambda device: str(getattr(device, name)), reverse=descending)
        return self.listing(request, "devices", found, device_json)

    @route("GET", "/devices/{id}")
    def get_device(self, request: Call, device_id: str) -> Any:
        """Return a device."""
        return one(device_json(self.machines, self.machines.device(device_id)), request)

    @route("PUT", "/devices/{id}")
    @route("PATCH", "/devices/{id}")
    def update_device(self, request: Call, device_id: str) -> Any:
        """Change a device."""
        device = self.machines.device(device_id)
        change = bodies.read(bodies.DeviceChange, request.body)
        device.hostname = device.hostname if change.hostname is None else change.hostname
        device.tags = device.tags if change.tags is None else change.tags
        device.locked = device.locked if change.locked is None else change.locked
        device.fields |= change.settings()
        device.updated_at = now()
        return one(device_json(self.machines, device), request)

    @route("DELETE", "/devices/{id}")
    def delete_device(self, _: Call, device_id: str) -> Any:
        """Begin to delete a device."""
        self.machines.delete(self.machines.device(device_id))

    @route("POST", "/devices/{id}/actions")
    def act(self, request: Call, device_id: str) -> Any:
        """Begin an action: accepted at once, carried out later."""
        device = self.machines.device(device_id)
        action = bodies.read(bodies.Action, request.body)
        if action.operating_system is not None:
            bodies.check_operating_system(action.operating_system)
        self.machines.act(device, action.type)
        if action.type == "reinstall" and action.operating_system is not None:
            device.operating_system = action.operating_system
        return Reply(status=202)

    @route("POST", "/projects/{id}/devices")
    def create_device(self, request: Call, project_id: str) -> Any:
        """Begin to create a device: on a reservation, or on demand when none is named."""
        self.machines.project(project_id)
        wanted = bodies.read(bodies.DeviceWanted, request.body)
        bodies.check_operating_system(wanted.operating_system)
        metros = _listed(wanted.metro)
        facilities = _listed(wanted.facility)
        if not metros and not facilities:
            raise Refused(422, "metro: can't be blank")
        reservation = _reservation(self.machines, project_id, wanted, metros, facilities)
        keys = keys_for_device(self.machines, project_id, wanted)
        device = DeviceRecord(
            id=self.machines.new_id(),
            project_id=project_id,
            hostname=wanted.hostname or wanted.plan.replace(".", "-"),
            plan=wanted.plan,
            facility=reservation.facility if reservation else _on_demand(metros, facilities),
            operating_system=wanted.operating_system,
            reservation_id=reservation.id if reservation else None,
            tags=wanted.tags or [],
            locked=wanted.locked or False,
            fields=wanted.settings(),
            ssh_keys=keys,
            authorized_key=authorized_lines(keys),
        )
        self.machines.add(device)
        return Reply(status=201, body=one(device_json(self.machines, device), request))


def _reservation(
    state: EquinixState, project_id: str, wanted: bodies.DeviceWanted, metros: list[str], facilities: list[str]
) -> ReservationRecord | None:
    """
    Return the reservation to use, None for a device on demand.

    Raises:
        Refused: it does not exist, is not free, or has another place or plan than the request.
    """
    if wanted.hardware_reservation_id is None:
        return None
    ours = {item.id: item for item in state.reservations.values() if item.project_id == project_id}
    if wanted.hardware_reservation_id == "next-available":
        for reservation in ours.values():
            if not _objections(state, reservation, wanted.plan, metros, facilities):
                return reservation
        raise Refused(422, "hardware_reservation_id: no hardware reservation is available")
    if wanted.hardware_reservation_id not in ours:
        raise Refused(422, f"hardware_reservation_id: {wanted.hardware_reservation_id!r} does not exist")
    reservation = ours[wanted.hardware_reservation_id]
    if objections := _objections(state, reservation, wanted.plan, metros, facilities):
        raise Refused(422, *objections)
    return reservation


def _objections(
    state: EquinixState, reservation: ReservationRecord, plan: str, metros: list[str], facilities: list[str]
) -> list[str]:
    """Return the reasons why a device cannot be created on a reservation."""
    name = f"hardware_reservation_id: hardware reservation {reservation.id}"
    objections = []
    if state.occupant(reservation.id) is not None:
        objections.append(f"{name} is already in use")
    elif not provisionable(state, reservation):
        objections.append(f"{name} is not provisionable")
    if plan != reservation.plan:
        objections.append(f"plan: {name} is of plan {reservation.plan!r}, not {plan!r}")
    places = (reservation.facility, reservation.metro, "any")
    if not any(place in places for place in metros + facilities):
        objections.append(f"metro: {name} is in {reservation.metro!r}, not in {metros + facilities}")
    return objections


def _on_demand(metros: list[str], facilities: list[str]) -> str:
    """Return the facility for a device that is not on a reservation."""
    place = (facilities + metros)[0]
    return "da11" if place == "any" else place if place != metro_of(place) else f"{place}1"


def _listed(place: bodies.Place) -> list[str]:
    return [place] if isinstance(place, str) else place or []


def _fits(device: DeviceRecord, query: dict[str, str]) -> bool:
    known = (device.hostname, device.id, device.address or "", *device.tags)
    search = query.get("search", "").lower()
    return (
        any(search in text.lower() for text in known)
        and query.get("hostname", "").lower() in device.hostname.lower()
        and query.get("tag") in (None, *device.tags)
        and query.get("facility") in (None, device.facility)
        and query.get("metro") in (None, metro_of(device.facility))
        and query.get("reserved") in (None, "true" if device.reservation_id else "false")
        and query.get("has_termination_time") != "true"
        and "mac_address" not in query
    )
