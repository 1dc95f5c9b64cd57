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

from collections.abc import Sequence
from typing import Any, ClassVar

from simulator.providers.equinix.answers import BASE, Json, Objects, included, key_json, meta
from simulator.providers.kit.credentials import in_header
from simulator.providers.kit.hardware import Hardware
from simulator.providers.kit.hosting import HostingApi
from simulator.providers.kit.http_server import HttpRequest, Reply
from simulator.providers.kit.machines import FakeMachine, FakeMachines, Options, RequestRefused, States
from simulator.providers.kit.rest import Call, route

_UNREACHABLE = "192.0.2.1"  # reserved for documentation: no host has it
_OPERATING_SYSTEMS = ("debian_12", "ubuntu_22_04", "ubuntu_24_04")


class _Devices(FakeMachines[FakeMachine]):
    """The devices of the project."""

    def delete(self, machine: FakeMachine) -> None:
        """
        Begin to delete a device.

        Raises:
            RequestRefused: it is being made or deleted.
        """
        if machine.state in ("queued", "provisioning", "reinstalling", "deprovisioning"):
            raise self.objection(machine, "delete")
        super().delete(machine)

    def objection(self, machine: FakeMachine, action: str) -> RequestRefused:
        """Return the answer to an action that the state of a device does not allow."""
        return RequestRefused(422, f"Cannot {action} a device that is {machine.state}")


class EquinixApi(HostingApi):
    """
    The API on its own port; a context manager.

    All methods are safe to use from any thread while it runs. The records it
    returns are copies.
    """

    base = BASE
    servers = "/devices"
    public_key = "key"
    page_size: ClassVar[int] = 10

    def __init__(
        self, hardware: Hardware, *, project_id: str, reservations: int, options: Options | None = None, **more: Any
    ) -> None:
        """Create the project with so many *reservations*; answer from ``start`` on."""
        project, options = f"/projects/{project_id}", options or Options()
        self.orders, self.key_store = f"{project}/devices", f"{project}/ssh-keys"
        self._listed = f"{project}/hardware-reservations"
        devices = _Devices(hardware, options, States())
        self._reservations = [devices.new_id() for _ in range(reservations)]
        super().__init__(hardware, options=options, machines=devices, **more)

    def path_of(self, path: str) -> str:
        """See ``RestApi``."""
        return super().path_of(path).replace("RESERVATIONS", self._listed)

    def logged_in(self, http: HttpRequest) -> bool:
        """Look for the key in a header of its own."""
        return in_header("X-Auth-Token")(http, self.secret)

    def error(self, refused: RequestRefused) -> Json:
        """Return the body of an error; errors that come before the operation have another form."""
        if refused.status in (401, 429, 500):
            return {"error": "; ".join(refused.messages)}
        return {"errors": list(refused.messages)}

    # What tests and environments see and do

    def reservations(self) -> list[str]:
        """Return the ids of the reservations."""
        return list(self._reservations)

    def add_active_device(
        self, hostname: str, tags: Sequence[str] = (), *, reservation_id: str | None = None, racked: bool = True
    ) -> FakeMachine:
        """
        Add an active device, as an operator would in the console, and return it.

        Unless it is *racked*, nothing answers at its address.
        """
        with self.machines.lock:
            if reservation_id is not None and self._objects().occupant(reservation_id) is not None:
                raise ValueError(f"reservation {reservation_id} is in use")
            fields = {"hardware_reservation_id": reservation_id, "tags": list(tags)}
            return self.add_active(hostname, address=None if racked else _UNREACHABLE, **fields)

    def occupy(self, reservation_id: str) -> FakeMachine:
        """Put another user's device on a free reservation and return it."""
        return self.add_active_device("somebody-else", reservation_id=reservation_id, racked=False)

    def forget(self, device_id: str) -> None:
        """Make a device and its machine vanish."""
        with self.machines.lock:
            self.machines.forget(self.machines.all[device_id])

    # Reservations

    @route("GET", "RESERVATIONS")
    def list_reservations(self, call: Call) -> Any:
        """List the reservations of the project."""
        return self.listing(call, "hardware_reservations", [*map(self._objects().reservation, self._reservations)])

    @route("GET", "/hardware-reservations/{id}")
    def get_reservation(self, call: Call, reservation_id: str) -> Any:
        """Return a reservation."""
        if reservation_id not in self._reservations:
            raise RequestRefused(404, "Not found")
        return included(self._objects().reservation(reservation_id), call)

    # Devices

    def shown(self, machine: FakeMachine) -> Json:
        """See ``HostingApi``."""
        return self._objects().device(machine)

    def single(self, call: Call, shown: Json) -> Any:
        """See ``HostingApi``."""
        return included(shown, call)

    def listing(self, call: Call, name: str, items: list[Json]) -> Any:
        """See ``HostingApi``; keys are not paged."""
        if name == "ssh_keys":
            return {name: items}
        entries, page = self.page(call, items)
        return {name: [included(each, call) for each in entries], "meta": meta(call.path, page)}

    def list_servers(self, call: Call) -> Any:
        """List the devices of the project: newest first, unless sorted."""
        tag = call.query.get("tag")
        found = [each for each in reversed(self.machines.all.values()) if tag in (None, *each.fields.get("tags", []))]
        if "sort_by" in call.query:
            found.sort(key=lambda device: device.name)
        return self.listing(call, "devices", [*map(self._objects().device, found)])

    @route("POST", "/devices/{id}/actions")
    def act(self, call: Call, device_id: str) -> Any:
        """Begin an action: accepted at once, carried out later."""
        device, wanted = self.machine(device_id), _body(call)
        if wanted.get("type") not in ("reboot", "reinstall"):
            raise RequestRefused(422, f"type: {wanted.get('type')!r} is not an action")
        _check_system(wanted.get("operating_system", _OPERATING_SYSTEMS[0]))
        self.machines.act(device, wanted["type"])
        return Reply(status=202)

    def ordered(self, call: Call) -> FakeMachine:
        """Begin to create a device on a reservation."""
        wanted = _body(call, "hostname", "plan", "operating_system", "metro", "hardware_reservation_id")
        _check_system(wanted["operating_system"])
        fields = {"hardware_reservation_id": self._objects().free(wanted), "tags": wanted.get("tags", [])}
        # The key trap: a device gets every key if the request names none.
        lines = self.lines(wanted.get("project_ssh_keys") or self.keys)
        return self.create(wanted["hostname"], lines, **fields)

    # SSH keys

    def key(self, key_id: str, fields: Json) -> Json:
        """See ``HostingApi``."""
        return key_json(key_id, fields)

    def new_key(self, call: Call) -> Json:
        """See ``HostingApi``; several keys may have the same label."""
        wanted = _body(call, "label", "key")
        if not wanted["key"].startswith("ssh-"):
            raise RequestRefused(422, "key: is not an SSH public key")
        return {"label": wanted["label"], "key": wanted["key"].strip()}

    def _objects(self) -> Objects:
        return Objects(self._reservations, self.machines.all)


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


def _check_system(slug: str) -> None:
    if slug not in _OPERATING_SYSTEMS:
        raise RequestRefused(422, f"operating_system: {slug!r} is not a valid operating system")
