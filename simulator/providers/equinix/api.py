"""
A stateful local server of the Equinix Metal API, version 1, for tests and simulated environments.

It answers the requests that Shepherd sends about devices, hardware reservations
and SSH keys as the published description says: paging, includes, errors, states
that lag; it refuses others. Where the description is silent, it does what makes
a careless client fail: the hrefs of pages hold the page number alone, a page
never has more entries than ``per_page_cap``, fields that a request may exclude
are never there, a device that is being made cannot be deleted, and a reservation
is not provisionable while a device occupies it.
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from simulator.environment.faults import Rule
from simulator.providers.equinix.answers import BASE, Json, Objects, key_json, meta, shown
from simulator.providers.equinix.records import DeviceRecord, Devices, KeyRecord
from simulator.providers.kit.credentials import in_header
from simulator.providers.kit.hardware import Hardware
from simulator.providers.kit.http_server import HttpRequest, Reply
from simulator.providers.kit.machines import Options, RequestRefused, States
from simulator.providers.kit.rest import Call, RestApi, route

T = TypeVar("T")

_UNREACHABLE = "192.0.2.1"  # reserved for documentation: no host has it
_OPERATING_SYSTEMS = ("debian_12", "ubuntu_22_04", "ubuntu_24_04")


class EquinixApi(RestApi):
    """
    The API on its own port; a context manager.

    All methods are safe to use from any thread while it runs. The records it
    returns are copies.
    """

    base = BASE
    page_size = 10
    machines: Devices

    def __init__(
        self,
        hardware: Hardware,
        *,
        project_id: str,
        api_key: str,
        reservations: int,
        options: Options | None = None,
        faults: Iterable[Rule] = (),
        address: str = "127.0.0.1",
    ) -> None:
        """Create the project with so many *reservations*; answer from ``start`` on."""
        options = options or Options()
        devices = Devices(hardware, options, States())
        super().__init__(hardware, secret=api_key, options=options, faults=faults, address=address, machines=devices)
        self._project_id = project_id
        self._reservations = [devices.new_id() for _ in range(reservations)]
        self._keys: dict[str, KeyRecord] = {}

    def logged_in(self, http: HttpRequest) -> bool:
        """Look for the key in a header of its own."""
        return in_header("X-Auth-Token")(http, self.secret)

    def error(self, refused: RequestRefused) -> Json:
        """Return the body of an error; errors that come before the operation have another form."""
        if refused.status in (401, 429, 500):
            return {"error": "; ".join(refused.messages)}
        return {"errors": list(refused.messages)}

    # What tests and environments see and do

    def devices(self) -> list[DeviceRecord]:
        """Return the devices, oldest first."""
        return self._copied(self.machines.all)

    def reservations(self) -> list[str]:
        """Return the ids of the reservations."""
        return list(self._reservations)

    def keys(self) -> list[KeyRecord]:
        """Return the SSH keys."""
        return self._copied(self._keys)

    def add_active_device(
        self, hostname: str, tags: Sequence[str] = (), *, reservation_id: str | None = None, racked: bool = True
    ) -> DeviceRecord:
        """
        Add an active device, as an operator would in the console, and return it.

        It accepts every key of the project. Unless it is *racked*, nothing answers at its address.
        """
        with self.machines.lock:
            if reservation_id is not None and self._objects().occupant(reservation_id) is not None:
                raise ValueError(f"reservation {reservation_id} is in use")
            device = self._made(hostname, reservation_id, list(tags), list(self._keys.values()))
            device.address = None if racked else _UNREACHABLE
            self.machines.add_active(device)
            return copy.deepcopy(device)

    def occupy(self, reservation_id: str) -> DeviceRecord:
        """Put another user's device on a free reservation and return it."""
        return self.add_active_device("somebody-else", reservation_id=reservation_id, racked=False)

    def forget(self, device_id: str) -> None:
        """Make a device and its machine vanish."""
        with self.machines.lock:
            self.machines.forget(self.machines.all[device_id])

    def remove_keys(self) -> None:
        """Remove all SSH keys."""
        with self.machines.lock:
            self._keys.clear()

    # Reservations

    @route("GET", "/projects/{id}/hardware-reservations")
    def list_reservations(self, call: Call, project_id: str) -> Any:
        """List the reservations of the project."""
        shown_by = self._objects().reservation
        return self._listing(call, project_id, "hardware_reservations", self._reservations, shown_by)

    @route("GET", "/hardware-reservations/{id}")
    def get_reservation(self, call: Call, reservation_id: str) -> Any:
        """Return a reservation."""
        if reservation_id not in self._reservations:
            raise RequestRefused(404, "Not found")
        return shown(self._objects().reservation(reservation_id), call)

    # Devices

    @route("GET", "/projects/{id}/devices")
    def list_devices(self, call: Call, project_id: str) -> Any:
        """List the devices of the project: newest first, unless sorted."""
        tag = call.query.get("tag")
        found = [device for device in reversed(self.machines.all.values()) if tag in (None, *device.tags)]
        if "sort_by" in call.query:
            found.sort(key=lambda device: device.hostname)
        return self._listing(call, project_id, "devices", found, self._objects().device)

    @route("GET", "/devices/{id}")
    def get_device(self, call: Call, device_id: str) -> Any:
        """Return a device."""
        return shown(self._objects().device(_found(self.machines.all, device_id)), call)

    @route("DELETE", "/devices/{id}")
    def delete_device(self, _: Call, device_id: str) -> Any:
        """Begin to delete a device."""
        self.machines.delete(_found(self.machines.all, device_id))

    @route("POST", "/devices/{id}/actions")
    def act(self, call: Call, device_id: str) -> Any:
        """Begin an action: accepted at once, carried out later."""
        device, wanted = _found(self.machines.all, device_id), _body(call)
        if wanted.get("type") not in ("reboot", "reinstall"):
            raise RequestRefused(422, f"type: {wanted.get('type')!r} is not an action")
        system = _operating_system(wanted.get("operating_system", device.operating_system))
        self.machines.act(device, wanted["type"])
        device.operating_system = system
        return Reply(status=202)

    @route("POST", "/projects/{id}/devices")
    def create_device(self, call: Call, project_id: str) -> Any:
        """Begin to create a device on a reservation."""
        self._check_project(project_id)
        wanted = _body(call, "hostname", "plan", "operating_system", "metro", "hardware_reservation_id")
        system, reservation_id = _operating_system(wanted["operating_system"]), self._objects().free(wanted)
        named = wanted.get("project_ssh_keys", [])
        if unknown := [each for each in named if each not in self._keys]:
            raise RequestRefused(422, f"project_ssh_keys: {unknown[0]!r} is not a key of the project")
        # The key trap: a device gets every key if the request names none.
        keys = [key for key in self._keys.values() if not named or key.id in named]
        device = self._made(wanted["hostname"], reservation_id, wanted.get("tags", []), keys)
        device.operating_system = system
        self.machines.add(device)
        return Reply(status=201, body=shown(self._objects().device(device), call))

    # SSH keys

    @route("GET", "/projects/{id}/ssh-keys")
    def list_keys(self, _: Call, project_id: str) -> Any:
        """List the keys; not paged."""
        self._check_project(project_id)
        return {"ssh_keys": [key_json(key) for key in self._keys.values()]}

    @route("POST", "/projects/{id}/ssh-keys")
    def create_key(self, call: Call, project_id: str) -> Any:
        """Add a key; several keys may have the same label."""
        self._check_project(project_id)
        wanted = _body(call, "label", "key")
        if not wanted["key"].startswith("ssh-"):
            raise RequestRefused(422, "key: is not an SSH public key")
        if any(key.key.split()[1] == wanted["key"].split()[1] for key in self._keys.values()):
            raise RequestRefused(422, "key: has already been taken")
        key = KeyRecord(id=self.machines.new_id(), label=wanted["label"], key=wanted["key"].strip())
        self._keys[key.id] = key
        return Reply(status=201, body=key_json(key))

    def _copied(self, records: dict[str, T]) -> list[T]:
        with self.machines.lock:
            return copy.deepcopy(list(records.values()))

    def _objects(self) -> Objects:
        return Objects(self._reservations, self.machines.all)

    def _check_project(self, project_id: str) -> None:
        if project_id != self._project_id:
            raise RequestRefused(404, "Not found")

    def _listing(self, call: Call, project_id: str, name: str, items: Sequence[T], body: Callable[[T], Json]) -> Json:
        """Return the page of *items* that *call* asks for, each shown by *body*."""
        self._check_project(project_id)
        entries, page = self.page(call, items)
        return {name: [shown(body(item), call) for item in entries], "meta": meta(call.path, page)}

    def _made(self, hostname: str, reservation_id: str | None, tags: list[str], keys: list[KeyRecord]) -> DeviceRecord:
        return DeviceRecord(
            id=self.machines.new_id(),
            hostname=hostname,
            operating_system="ubuntu_24_04",
            reservation_id=reservation_id,
            tags=tags,
            ssh_keys=keys,
            authorized_key="\n".join(key.key for key in keys),
        )


def _found(records: dict[str, T], identity: str) -> T:
    if identity not in records:
        raise RequestRefused(404, "Not found")
    return records[identity]


def _body(call: Call, *required: str) -> Json:
    """
    Return the object in the body.

    Raises:
        RequestRefused: there is none, or one of the *required* texts is missing.
    """
    body = call.body if isinstance(call.body, dict) else {}
    if missing := [name for name in required if not body.get(name) or not isinstance(body[name], str)]:
        raise RequestRefused(422, *(f"{name}: is required" for name in missing))
    return body


def _operating_system(slug: str) -> str:
    if slug not in _OPERATING_SYSTEMS:
        raise RequestRefused(422, f"operating_system: {slug!r} is not a valid operating system")
    return slug
