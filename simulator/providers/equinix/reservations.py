"""The operations of the simulated Equinix API on hardware reservations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.providers.equinix import bodies
from simulator.providers.equinix.answers import ApiRequest, Json, listing, one
from simulator.providers.equinix.objects import provisionable, reservation_json
from simulator.providers.equinix.records import EquinixRefused, ReservationRecord

if TYPE_CHECKING:
    from simulator.providers.equinix.state import EquinixState


def list_reservations(state: EquinixState, request: ApiRequest, project_id: str) -> tuple[int, Json]:
    """GET /projects/{id}/hardware-reservations."""
    state.project(project_id)
    found = [
        reservation
        for reservation in state.reservations.values()
        if reservation.project_id == project_id and _fits(state, reservation, request.query)
    ]
    return 200, listing("hardware_reservations", found, lambda item: reservation_json(state, item), request)


def get_reservation(state: EquinixState, request: ApiRequest, reservation_id: str) -> tuple[int, Json]:
    """GET /hardware-reservations/{id}."""
    return 200, one(reservation_json(state, state.reservation(reservation_id)), request)


def move_reservation(state: EquinixState, request: ApiRequest, reservation_id: str) -> tuple[int, Json]:
    """POST /hardware-reservations/{id}/move."""
    reservation = state.reservation(reservation_id)
    target = bodies.read(bodies.Move, request.body).project_id
    state.project(target)
    if state.occupant(reservation_id) is not None:
        raise EquinixRefused(422, "Cannot move a hardware reservation that a device occupies")
    reservation.project_id = target
    return 201, one(reservation_json(state, reservation), request)


def activate_reservation(state: EquinixState, request: ApiRequest, reservation_id: str) -> tuple[int, Json]:
    """POST /hardware-reservations/{id}/activate."""
    reservation = state.reservation(reservation_id)
    if not reservation.spare:
        raise EquinixRefused(422, "The hardware reservation is not a spare")
    reservation.spare = False
    return 201, one(reservation_json(state, reservation), request)


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
