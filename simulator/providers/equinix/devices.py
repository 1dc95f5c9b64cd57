"""The operations of the simulated Equinix API on devices and hardware reservations."""

from typing import Any

from simulator.providers.equinix import bodies
from simulator.providers.equinix.answers import one
from simulator.providers.equinix.base import EquinixBase
from simulator.providers.equinix.keys import authorized_lines, keys_for_device
from simulator.providers.equinix.objects import device_json, provisionable, reservation_json
from simulator.providers.equinix.records import DeviceRecord, ReservationRecord
from simulator.providers.equinix.state import EquinixState
from simulator.providers.kit.http_server import Reply
from simulator.providers.kit.machines import Refused
from simulator.providers.kit.rest import Call, route


class DeviceOperations(EquinixBase):
    """The operations on devices and reservations."""

    @route("GET", "/projects/{id}/hardware-reservations")
    def list_reservations(self, request: Call, project_id: str) -> Any:
        """List the reservations of the project."""
        self.machines.check_project(project_id)
        return self.listing(
            request, "hardware_reservations", list(self.machines.reservations.values()), reservation_json
        )

    @route("GET", "/hardware-reservations/{id}")
    def get_reservation(self, request: Call, reservation_id: str) -> Any:
        """Return a reservation."""
        return one(reservation_json(self.machines, self.machines.reservation(reservation_id)), request)

    @route("GET", "/projects/{id}/devices")
    def list_devices(self, request: Call, project_id: str) -> Any:
        """List the devices of the project: newest first, unless sorted."""
        self.machines.check_project(project_id)
        tag, order = request.query.get("tag"), request.query.get("sort_by")
        found = [device for device in reversed(self.machines.all.values()) if tag in (None, *device.tags)]
        if order not in (None, "hostname"):
            raise Refused(422, f"sort_by: cannot sort by {order!r}")
        if order is not None:
            found.sort(key=lambda device: device.hostname)
        return self.listing(request, "devices", found, device_json)

    @route("GET", "/devices/{id}")
    def get_device(self, request: Call, device_id: str) -> Any:
        """Return a device."""
        return one(device_json(self.machines, self.machines.device(device_id)), request)

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
        self.machines.check_project(project_id)
        wanted = bodies.read(bodies.DeviceWanted, request.body)
        bodies.check_operating_system(wanted.operating_system)
        reservation = _reservation(self.machines, wanted)
        keys = keys_for_device(self.machines, wanted)
        device = DeviceRecord(
            id=self.machines.new_id(),
            hostname=wanted.hostname,
            plan=wanted.plan,
            facility=reservation.facility if reservation else f"{wanted.metro}1",
            operating_system=wanted.operating_system,
            reservation_id=reservation.id if reservation else None,
            tags=wanted.tags,
            ssh_keys=keys,
            authorized_key=authorized_lines(keys),
        )
        self.machines.add(device)
        return Reply(status=201, body=one(device_json(self.machines, device), request))


def _reservation(state: EquinixState, wanted: bodies.DeviceWanted) -> ReservationRecord | None:
    """
    Return the reservation to use, None for a device on demand.

    Raises:
        Refused: it does not exist, is not free, or has another place or plan than the request.
    """
    identity = wanted.hardware_reservation_id
    if identity is None:
        return None
    name = f"hardware_reservation_id: hardware reservation {identity}"
    if (reservation := state.reservations.get(identity)) is None:
        raise Refused(422, f"{name} does not exist")
    objections = []
    if state.occupant(identity) is not None:
        objections.append(f"{name} is already in use")
    elif not provisionable(state, reservation):
        objections.append(f"{name} is not provisionable")
    if wanted.plan != reservation.plan:
        objections.append(f"plan: {name} is of plan {reservation.plan!r}, not {wanted.plan!r}")
    if wanted.metro not in (reservation.metro, "any"):
        objections.append(f"metro: {name} is in {reservation.metro!r}, not in {wanted.metro!r}")
    if objections:
        raise Refused(422, *objections)
    return reservation
