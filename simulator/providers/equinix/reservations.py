"""The operations of the simulated Equinix API on hardware reservations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simulator.providers.equinix import bodies
from simulator.providers.equinix.answers import one
from simulator.providers.equinix.base import EquinixBase
from simulator.providers.equinix.objects import provisionable, reservation_json
from simulator.providers.kit.http_server import Reply
from simulator.providers.kit.machines import Refused
from simulator.providers.kit.rest import Call, route

if TYPE_CHECKING:
    from simulator.providers.equinix.records import ReservationRecord
    from simulator.providers.equinix.state import EquinixState


class ReservationOperations(EquinixBase):
    """The operations on hardware reservations."""

    @route("GET", "/projects/{id}/hardware-reservations")
    def list_reservations(self, request: Call, project_id: str) -> Any:
        """List the reservations of a project."""
        self.machines.project(project_id)
        found = [
            reservation
            for reservation in self.machines.reservations.values()
            if reservation.project_id == project_id and _fits(self.machines, reservation, request.query)
        ]
        return self.listing(request, "hardware_reservations", found, reservation_json)

    @route("GET", "/hardware-reservations/{id}")
    def get_reservation(self, request: Call, reservation_id: str) -> Any:
        """Return a reservation."""
        return one(reservation_json(self.machines, self.machines.reservation(reservation_id)), request)

    @route("POST", "/hardware-reservations/{id}/move")
    def move_reservation(self, request: Call, reservation_id: str) -> Any:
        """Move a free reservation to another project."""
        reservation = self.machines.reservation(reservation_id)
        target = bodies.read(bodies.Move, request.body).project_id
        self.machines.project(target)
        if self.machines.occupant(reservation_id) is not None:
            raise Refused(422, "Cannot move a hardware reservation that a device occupies")
        reservation.project_id = target
        return Reply(status=201, body=one(reservation_json(self.machines, reservation), request))

    @route("POST", "/hardware-reservations/{id}/activate")
    def activate_reservation(self, request: Call, reservation_id: str) -> Any:
        """Make a spare an ordinary reservation."""
        reservation = self.machines.reservation(reservation_id)
        if not reservation.spare:
            raise Refused(422, "The hardware reservation is not a spare")
        reservation.spare = False
        return Reply(status=201, body=one(reservation_json(self.machines, reservation), request))


def _fits(state: EquinixState, reservation: ReservationRecord, query: dict[str, str]) -> bool:
    in_state = {
        "active": not (reservation.spare or reservation.need_of_service),
        "spare": reservation.spare,
        "need_of_service": reservation.need_of_service,
    }
    if (wanted := query.get("state")) is not None and not in_state.get(wanted, False):
        return False
    if query.get("provisionable") == "only" and not provisionable(state, reservation):
        return False
    device = state.occupant(reservation.id)
    texts = (reservation.id, reservation.facility, reservation.plan, device.hostname if device else "")
    return any(query.get("query", "").lower() in text.lower() for text in texts)
