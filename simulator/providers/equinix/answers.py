"""The objects in the answers of the simulated Equinix API, and the links between them."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from simulator.providers.kit.machines import FakeMachine, RequestRefused
from simulator.providers.kit.rest import Call, Page

Json = dict[str, Any]

BASE = "/metal/v1"
_PLAN, _FACILITY, _METRO = "c3.small.x86", "da11", "da"
"""Of all reservations."""


class Nested(NamedTuple):
    """A nested object: ``{href}`` alone, unless the request includes it."""

    href: str
    body: Callable[[], Json]


class Objects:
    """The devices and reservations of one answer."""

    def __init__(self, reservations: Collection[str], devices: Mapping[str, FakeMachine]) -> None:
        self._reservations = reservations
        self._occupants = {reservation_of(each): each for each in devices.values() if reservation_of(each)}

    def occupant(self, reservation_id: str) -> FakeMachine | None:
        """Return the device on a reservation, None if it is free."""
        return self._occupants.get(reservation_id)

    def free(self, wanted: Json) -> str:
        """
        Return the reservation that a new device goes to.

        Raises:
            RequestRefused: it does not exist, is not free, or has another place or plan than the request.
        """
        identity: str = wanted["hardware_reservation_id"]
        name = f"hardware_reservation_id: hardware reservation {identity}"
        objections = {
            f"{name} does not exist": identity not in self._reservations,
            f"{name} is already in use": self.occupant(identity) is not None,
            f"plan: {name} is of plan {_PLAN!r}": wanted["plan"] != _PLAN,
            f"metro: {name} is in {_METRO!r}": wanted["metro"] not in (_METRO, "any"),
        }
        if any(objections.values()):
            raise RequestRefused(422, *(text for text, holds in objections.items() if holds))
        return identity

    def device(self, device: FakeMachine) -> Json:
        """Return a device; its private address comes first."""
        body = {
            **_head("devices", device.id),
            "hostname": device.name,
            "state": device.state,
            "tags": device.fields.get("tags", []),
            "facility": _facility(),
            "metro": _metro(),
            "ip_addresses": [
                {"address": address, "public": public}
                for address, public in (("10.70.0.1", False), (device.address, True))
                if device.address is not None
            ],
        }
        if (on := reservation_of(device)) is not None:
            body["hardware_reservation"] = _nested("hardware-reservations", on, self.reservation, on)
        return body

    def reservation(self, identity: str) -> Json:
        """Return a reservation."""
        device = self.occupant(identity)
        return {
            **_head("hardware-reservations", identity),
            "device": None if device is None else _nested("devices", device.id, self.device, device),
            "facility": _facility(),
            "plan": _nested("plans", _PLAN, lambda slug: {"slug": slug}, _PLAN),
            "provisionable": device is None,
            "spare": False,
        }


def key_json(key_id: str, key: Json) -> Json:
    """Return an SSH key."""
    return {**_head("ssh-keys", key_id), **key, "created_at": "2026-01-31T23:59:59Z"}


def reservation_of(device: FakeMachine) -> str | None:
    """Return the reservation that a device is on."""
    found: str | None = device.fields.get("hardware_reservation_id")
    return found


def included(body: Json, call: Call) -> Json:
    """Return *body* with the nested objects that the call includes by their dotted names."""
    return _expanded(body, {name for name in call.query.get("include", "").split(",") if name})


def _expanded(body: Json, include: set[str]) -> Json:
    result: Json = {}
    for name, value in body.items():
        below = {each.removeprefix(f"{name}.") for each in include if each.startswith(f"{name}.")}
        if not isinstance(value, Nested):
            result[name] = value
        elif name in include or below:
            result[name] = _expanded(value.body(), below)
        else:
            result[name] = {"href": value.href}
    return result


def meta(path: str, page: Page) -> Json:
    """
    Return the position of a page of *path*.

    The hrefs hold the page number alone: a client must send its other
    parameters again, as the vendor's own client does.
    """
    following = {"href": f"{BASE}{path}?page={page.number + 1}"} if page.number < page.last else None
    return {"next": following, "total": page.total, "current_page": page.number, "last_page": page.last}


def _head(collection: str, identity: str) -> Json:
    return {"id": identity, "href": f"{BASE}/{collection}/{identity}"}


def _nested(collection: str, identity: str, body: Callable[[Any], Json], of: Any) -> Nested:
    return Nested(f"{BASE}/{collection}/{identity}", lambda: body(of))


def _facility() -> Nested:
    return _nested("facilities", _FACILITY, lambda code: {"code": code, "metro": _metro()}, _FACILITY)


def _metro() -> Nested:
    return _nested("locations/metros", _METRO, lambda code: {"code": code}, _METRO)
