"""The simulated Equinix API answers as the published description of the real one says."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import requests

from simulator.providers.equinix.api import EquinixApi
from simulator.providers.equinix.records import ReservationRecord
from simulator.providers.kit.hardware import NoHardware
from simulator.providers.kit.machines import Options
from tests.support.waiting import eventually

PROJECT = "5d4f3c2b-0000-4000-8000-000000000001"
NOBODY = "5d4f3c2b-0000-4000-8000-00000000ffff"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ7bXmpC5wLbvYJ1Pc3lkdKsjC2bYvF7CwL2mTLYYZ4t"
OTHER_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIK8bXmpC5wLbvYJ1Pc3lkdKsjC2bYvF7CwL2mTLYYZ4u"
LONG = 600.0  # seconds that no test lives to see


class World:
    """An API with its hardware, and a client of it."""

    def __init__(self, stack: ExitStack, **settings: Any) -> None:
        self.hardware = settings.pop("hardware", None) or NoHardware()
        reservations = settings.pop("reservations", 1)
        options = Options(**settings)
        self.api = stack.enter_context(
            EquinixApi(self.hardware, project_id=PROJECT, api_key="key", reservations=reservations, options=options)
        )
        self._session = stack.enter_context(requests.Session())
        self._session.headers["X-Auth-Token"] = "key"

    def call(self, method: str, path: str, **more: Any) -> requests.Response:
        """Send a request."""
        return self._session.request(method, self.api.url + path, timeout=10, **more)

    def get(self, path: str, **query: Any) -> Any:
        """Return the body of a good answer."""
        response = self.call("GET", path, params=query)
        assert response.status_code == 200, response.text
        return response.json()

    def create(self, reservation: int | None = 0, **more: Any) -> requests.Response:
        """Ask for a device on the reservation with this index; None: on demand."""
        body = {"plan": "c3.small.x86", "operating_system": "ubuntu_24_04", "metro": "da", "hostname": "shepherd-1"}
        if reservation is not None:
            body["hardware_reservation_id"] = self.api.reservations()[reservation].id
        return self.call("POST", f"/projects/{PROJECT}/devices", json=body | more)

    def active(self, **more: Any) -> str:
        """Return the id of a new device that is active."""
        response = self.create(**more)
        assert response.status_code == 201, response.text
        device_id: str = response.json()["id"]
        self.until(device_id, "active")
        return device_id

    def until(self, device_id: str, state: str) -> Any:
        """Return the device as soon as it is in *state*."""
        return eventually(lambda: (device := self.get(f"/devices/{device_id}"))["state"] == state and device)

    def act(self, device_id: str, **body: Any) -> int:
        """Ask for an action; return the status."""
        return self.call("POST", f"/devices/{device_id}/actions", json=body).status_code


@pytest.fixture
def make() -> Iterator[Callable[..., World]]:
    """Make worlds that end with the test, none of them with a fault of its own."""
    worlds: list[World] = []
    with ExitStack() as stack:

        def world(**settings: Any) -> World:
            worlds.append(World(stack, **settings))
            return worlds[-1]

        yield world
        for made in worlds:
            assert isinstance(made.hardware, BrokenHardware) or made.api.errors == []


class BrokenHardware(NoHardware):
    """Machines that cannot be racked."""

    def rack(self, name: str, authorized_key: str, provision_seconds: float, reserved: str | None = None) -> str:
        """Fail."""
        raise OSError("no more racks")


@pytest.mark.parametrize("headers", [{"X-Auth-Token": None}, {"X-Auth-Token": "wrong"}])
def test_a_call_without_the_api_key_is_refused(make: Callable[..., World], headers: dict[str, str | None]) -> None:
    """An adapter that forgets the header must not pass."""
    response = make().call("GET", f"/projects/{PROJECT}/devices", headers=headers)
    assert response.status_code == 401
    assert response.json()["error"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", f"/projects/{NOBODY}/devices"),
        ("POST", f"/projects/{NOBODY}/devices"),
        ("GET", f"/projects/{NOBODY}/hardware-reservations"),
        ("GET", f"/projects/{NOBODY}/ssh-keys"),
        ("GET", f"/devices/{NOBODY}"),
        ("DELETE", f"/devices/{NOBODY}"),
        ("POST", f"/devices/{NOBODY}/actions"),
        ("GET", f"/hardware-reservations/{NOBODY}"),
        ("DELETE", f"/ssh-keys/{NOBODY}"),
        ("GET", "/no-such-thing"),
    ],
)
def test_an_unknown_path_answers_404(make: Callable[..., World], method: str, path: str) -> None:
    """The adapter tells a machine that is gone by this status alone."""
    response = make().call(method, path, json={})
    assert response.status_code == 404
    assert response.json()["errors"]


def test_a_page_has_ten_entries_unless_asked_otherwise(make: Callable[..., World]) -> None:
    """A client that does not page sees ten machines of a fleet."""
    body = make(reservations=11).get(f"/projects/{PROJECT}/hardware-reservations")
    assert len(body["hardware_reservations"]) == 10
    assert (body["meta"]["total"], body["meta"]["current_page"], body["meta"]["last_page"]) == (11, 1, 2)


def test_more_than_the_cap_is_never_given(make: Callable[..., World]) -> None:
    """A client that trusts its own per_page misses what the cap cut off."""
    body = make(reservations=5, per_page_cap=3).get(f"/projects/{PROJECT}/hardware-reservations", per_page=1000)
    assert len(body["hardware_reservations"]) == 3
    assert body["meta"]["last_page"] == 2


def test_the_next_page_is_named_without_the_other_parameters(make: Callable[..., World]) -> None:
    """A client must send its parameters again with every page, as the vendor's own did."""
    body = make(reservations=11).get(f"/projects/{PROJECT}/hardware-reservations", include="facility")
    assert body["meta"]["next"]["href"] == f"/metal/v1/projects/{PROJECT}/hardware-reservations?page=2"


def test_a_page_behind_the_last_is_empty(make: Callable[..., World]) -> None:
    """A listing that shrinks while it is read ends so."""
    body = make(reservations=3).get(f"/projects/{PROJECT}/hardware-reservations", page=2)
    assert body["hardware_reservations"] == []
    assert body["meta"]["next"] is None


@pytest.mark.parametrize("query", [{"page": "0"}, {"page": "x"}, {"per_page": "1001"}, {"page": "100001"}])
def test_a_page_out_of_range_is_refused(make: Callable[..., World], query: dict[str, str]) -> None:
    """The description limits both."""
    assert make().call("GET", f"/projects/{PROJECT}/devices", params=query).status_code == 422


def test_rate_headers_count_down_until_calls_are_refused(make: Callable[..., World]) -> None:
    """A client that honours them never sees the refusal."""
    world = make(calls_per_minute=2)
    responses = [world.call("GET", f"/projects/{PROJECT}/ssh-keys") for _ in range(3)]
    assert [response.headers["X-RateLimit-Remaining"] for response in responses] == ["1", "0", "0"]
    assert [response.status_code for response in responses] == [200, 200, 429]
    assert 0 < int(responses[2].headers["Retry-After"]) <= 60
    assert int(responses[0].headers["X-RateLimit-Reset"]) > time.time() - 1


def test_nested_objects_are_links_until_they_are_included(make: Callable[..., World]) -> None:
    """An adapter that forgets an include finds no facility and no device."""
    world = make()
    device_id = world.active()
    reservation_id = world.api.reservations()[0].id
    path = f"/hardware-reservations/{reservation_id}"
    plain = world.get(path)
    assert set(plain["facility"]) == set(plain["device"]) == {"href"}
    assert plain["plan"]["slug"] == "c3.small.x86"
    included = world.get(path, include="facility,device")
    assert included["facility"]["code"] == "da11"
    assert included["device"]["id"] == device_id
    assert set(included["device"]["facility"]) == {"href"}
    deep = world.get(path, include="device.facility.metro")
    assert deep["device"]["facility"]["metro"]["code"] == "da"


def test_excluded_objects_are_links_and_excluded_fields_are_missing(make: Callable[..., World]) -> None:
    """What the predecessor excluded to save time must not be relied on."""
    world = make()
    device_id = world.active(tags=["a"])
    device = world.get(f"/devices/{device_id}", exclude="plan,tags,ip_addresses")
    assert set(device["plan"]) == {"href"}
    assert all(set(address) == {"href"} for address in device["ip_addresses"])
    assert "tags" not in device


def test_a_device_is_queued_without_addresses(make: Callable[..., World]) -> None:
    """A machine that was just created cannot be reached, and its listing must still be understood."""
    world = make(provision_seconds=LONG)
    created = world.create(tags=["token"])
    assert created.status_code == 201
    device = world.get(f"/devices/{created.json()['id']}")
    assert (device["state"], device["ip_addresses"], device["tags"]) == ("queued", [], ["token"])
    assert world.hardware.calls == []


def test_addresses_are_assigned_when_provisioning_begins(make: Callable[..., World]) -> None:
    """They are known minutes before SSH answers."""
    world = make(provision_seconds=LONG, queue_seconds=0)
    device_id = world.create().json()["id"]
    device = eventually(lambda: (seen := world.get(f"/devices/{device_id}"))["ip_addresses"] and seen)
    assert device["state"] == "provisioning"
    public, private = device["ip_addresses"]
    assert (public["address"], public["public"], public["address_family"]) == ("198.18.0.1", True, 4)
    assert (private["public"], private["address"][:3]) == (False, "10.")
    assert world.hardware.calls == [("rack", device_id)]


def test_a_device_becomes_active_and_its_reservation_is_taken(make: Callable[..., World]) -> None:
    """The end of provisioning, as both listings show it."""
    world = make()
    device_id = world.active()
    device = world.get(f"/devices/{device_id}", include="hardware_reservation")
    assert device["hardware_reservation"]["id"] == world.api.reservations()[0].id
    [reservation] = world.get(f"/projects/{PROJECT}/hardware-reservations")["hardware_reservations"]
    assert reservation["device"]["href"].endswith(device_id)
    assert reservation["provisionable"] is False


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"metro": None}, "metro"),
        ({"metro": "sv"}, "metro"),
        ({"plan": None}, "plan"),
        ({"plan": "m3.large.x86"}, "plan"),
        ({"operating_system": "multics"}, "operating_system"),
        ({"hostname": "not a name"}, "hostname"),
        ({"hostname": 7}, "hostname"),
        ({"tags": "one"}, "tags"),
        ({"billing_cycle": "hourly"}, "billing_cycle"),
        ({"project_ssh_keys": [NOBODY]}, "project_ssh_keys"),
        ({"hardware_reservation_id": NOBODY}, "hardware_reservation_id"),
    ],
)
def test_a_device_that_makes_no_sense_is_refused(make: Callable[..., World], change: dict[str, Any], word: str) -> None:
    """The refusal names the field, and nothing is created."""
    world = make()
    response = world.create(**change)
    assert response.status_code == 422
    assert any(word in message for message in response.json()["errors"])
    assert world.api.devices() == []
    assert world.api.keys() == []


def test_a_body_that_is_not_json_is_refused(make: Callable[..., World]) -> None:
    """It is the client's fault, not a fault of the server."""
    response = make().call("POST", f"/projects/{PROJECT}/devices", data=b"{")
    assert response.status_code == 422


def test_a_reservation_in_use_is_refused(make: Callable[..., World]) -> None:
    """The adapter learns so that somebody else was faster."""
    world = make()
    assert world.create().status_code == 201
    response = world.create()
    assert response.status_code == 422
    assert "already in use" in response.json()["errors"][0]
    assert len(world.api.devices()) == 1


@pytest.mark.parametrize("blocked", [{"provisionable": False}, {"spare": True}])
def test_a_reservation_that_is_not_provisionable_is_refused(make: Callable[..., World], blocked: Any) -> None:
    """A spare must be activated first."""
    response = make(reservations=[ReservationRecord(**blocked)]).create()
    assert response.status_code == 422
    assert "not provisionable" in response.json()["errors"][0]


def test_a_device_can_be_created_on_demand(make: Callable[..., World]) -> None:
    """A project may hold devices without a reservation."""
    device = make().create(None, metro="sv").json()
    assert "hardware_reservation" not in device
    assert device["metro"]["code"] == "sv"


def test_without_named_keys_every_key_lands_on_the_device(make: Callable[..., World]) -> None:
    """The key trap: people who once uploaded a key could log in to every machine."""
    world = make(reservations=2)
    path = f"/projects/{PROJECT}/ssh-keys"
    ours = world.call("POST", path, json={"label": "ours", "key": KEY}).json()
    world.call("POST", path, json={"label": "somebody's", "key": OTHER_KEY})
    trapped = world.active(reservation=0)
    chosen = world.active(reservation=1, project_ssh_keys=[ours["id"]])
    on_device = {device.id: [key.label for key in device.ssh_keys] for device in world.api.devices()}
    assert on_device == {trapped: ["ours", "somebody's"], chosen: ["ours"]}
    assert world.hardware.authorized_keys[trapped] == f"{KEY}\n{OTHER_KEY}"
    assert world.hardware.authorized_keys[chosen] == KEY
    assert [key["href"] for key in world.get(f"/devices/{chosen}")["ssh_keys"]] == [f"/metal/v1/ssh-keys/{ours['id']}"]


def test_a_reboot_is_accepted_at_once_and_done_later(make: Callable[..., World]) -> None:
    """The API is asynchronous: accepted does not mean rebooted."""
    slow = make(action_seconds=LONG)
    device_id = slow.active()
    assert slow.act(device_id, type="reboot") == 202
    assert ("reboot", device_id) not in slow.hardware.calls
    quick = make()
    device_id = quick.active()
    assert quick.act(device_id, type="reboot") == 202
    eventually(lambda: ("reboot", device_id) in quick.hardware.calls)
    assert quick.get(f"/devices/{device_id}")["state"] == "active"


def test_a_reinstall_takes_as_long_as_provisioning(make: Callable[..., World]) -> None:
    """The operating system is another one, the machine the same."""
    slow = make(provision_seconds=LONG)
    device_id = slow.api.add_active_device("shepherd-1").id
    assert slow.act(device_id, type="reinstall", operating_system="debian_12") == 202
    eventually(lambda: ("reinstall", device_id) in slow.hardware.calls)
    device = slow.get(f"/devices/{device_id}")
    assert (device["state"], device["operating_system"]["slug"]) == ("reinstalling", "debian_12")
    quick = make()
    device_id = quick.active()
    assert quick.act(device_id, type="reinstall") == 202
    quick.until(device_id, "active")
    assert quick.hardware.calls == [("rack", device_id), ("reinstall", device_id)]


@pytest.mark.parametrize("body", [{}, {"type": "explode"}, {"type": "reinstall", "operating_system": "multics"}, None])
def test_an_unknown_action_is_refused(make: Callable[..., World], body: Any) -> None:
    """Nothing happens to the machine."""
    world = make()
    device_id = world.active()
    assert world.call("POST", f"/devices/{device_id}/actions", json=body).status_code == 422
    assert world.get(f"/devices/{device_id}")["state"] == "active"


def test_a_device_being_made_is_neither_rebooted_nor_deleted(make: Callable[..., World]) -> None:
    """The API refuses both while it provisions."""
    world = make(provision_seconds=LONG)
    device_id = world.create().json()["id"]
    assert world.act(device_id, type="reboot") == 422
    response = world.call("DELETE", f"/devices/{device_id}")
    assert response.status_code == 422
    assert response.json()["errors"] == ["Cannot delete a device while it is provisioning"]


def test_a_deleted_device_occupies_its_reservation_until_it_is_gone(make: Callable[..., World]) -> None:
    """Creating on it at once fails, and the deletion cannot be repeated."""
    world = make(deprovision_seconds=LONG)
    device_id = world.active()
    assert world.call("DELETE", f"/devices/{device_id}").status_code == 204
    assert world.get(f"/devices/{device_id}")["state"] == "deprovisioning"
    assert world.call("DELETE", f"/devices/{device_id}").status_code == 422
    assert world.create().status_code == 422
    eventually(lambda: ("remove", device_id) in world.hardware.calls)


def test_a_deleted_device_is_gone_and_its_reservation_free(make: Callable[..., World]) -> None:
    """The capacity can be used again."""
    world = make()
    device_id = world.active()
    assert world.call("DELETE", f"/devices/{device_id}").status_code == 204
    eventually(lambda: world.call("GET", f"/devices/{device_id}").status_code == 404)
    [reservation] = world.get(f"/projects/{PROJECT}/hardware-reservations")["hardware_reservations"]
    assert (reservation["device"], reservation["provisionable"]) == (None, True)
    assert world.create().status_code == 201


def test_devices_can_be_filtered_and_sorted(make: Callable[..., World]) -> None:
    """The newest comes first unless sorted; a filter narrows the total too."""
    world = make(reservations=2)
    world.active(hostname="shepherd-b", tags=["token", "x"])
    world.active(reservation=1, hostname="shepherd-a")
    world.active(reservation=None, hostname="other", metro="sv")

    def hostnames(**query: str) -> list[str]:
        body = world.get(f"/projects/{PROJECT}/devices", **query)
        assert body["meta"]["total"] == len(body["devices"])
        return [device["hostname"] for device in body["devices"]]

    assert hostnames() == ["other", "shepherd-a", "shepherd-b"]
    assert hostnames(sort_by="hostname") == ["other", "shepherd-a", "shepherd-b"]
    assert hostnames(tag="token") == ["shepherd-b"]
    assert hostnames(tag="tok") == []
    for unknown in ({"sort_by": "mood"}, {"search": "tok"}):
        assert world.call("GET", f"/projects/{PROJECT}/devices", params=unknown).status_code == 422


@pytest.mark.parametrize("body", [{"label": "x", "key": "ssh-ed25519 AAAA"}, {"label": "", "key": KEY}, {"key": KEY}])
def test_a_key_that_is_none_is_refused(make: Callable[..., World], body: dict[str, str]) -> None:
    """So is one without a label."""
    assert make().call("POST", f"/projects/{PROJECT}/ssh-keys", json=body).status_code == 422


def test_the_same_key_is_not_taken_twice(make: Callable[..., World]) -> None:
    """A client must look first; the same label is no hindrance."""
    world = make()
    path = f"/projects/{PROJECT}/ssh-keys"
    statuses = [
        world.call("POST", path, json={"label": "ours", "key": key}).status_code
        for key in (KEY, KEY + " me", OTHER_KEY)
    ]
    assert statuses == [201, 422, 201]


def test_a_taken_reservation_belongs_to_another_project(make: Callable[..., World]) -> None:
    """Nothing of ours is behind it, and we cannot use it."""
    world = make()
    reservation_id = world.api.reservations()[0].id
    world.api.occupy(reservation_id)
    device = world.get(f"/hardware-reservations/{reservation_id}", include="device")["device"]
    assert (device["hostname"], device["tags"]) == ("somebody-else", [])
    assert world.create().status_code == 422
    assert world.hardware.calls == []
    with pytest.raises(ValueError, match="in use"):
        world.api.occupy(reservation_id)


def test_a_forgotten_device_vanishes_with_its_machine(make: Callable[..., World]) -> None:
    """Its reservation is free again."""
    world = make()
    device_id = world.active()
    world.api.forget(device_id)
    assert world.call("GET", f"/devices/{device_id}").status_code == 404
    assert world.create().status_code == 201
    eventually(lambda: ("remove", device_id) in world.hardware.calls)


def test_a_failed_device_stays_and_goes_dark(make: Callable[..., World]) -> None:
    """It is not provisioned any further, occupies its reservation and can be deleted."""
    world = make(provision_seconds=LONG, queue_seconds=0)
    device_id = world.create().json()["id"]
    eventually(lambda: world.get(f"/devices/{device_id}")["ip_addresses"])
    world.api.fail(device_id)
    eventually(lambda: ("power_off", device_id) in world.hardware.calls)
    assert world.get(f"/devices/{device_id}")["state"] == "failed"
    assert world.create().status_code == 422
    assert world.call("DELETE", f"/devices/{device_id}").status_code == 204
    eventually(lambda: world.api.devices() == [])


def test_a_device_whose_hardware_fails_is_failed_and_the_error_kept(make: Callable[..., World]) -> None:
    """A world must notice that its own machines do not work."""
    world = make(hardware=BrokenHardware())
    device_id = world.create().json()["id"]
    world.until(device_id, "failed")
    eventually(lambda: [str(error) for error in world.api.errors] == ["no more racks"])


def test_the_same_seed_makes_the_same_ids(make: Callable[..., World]) -> None:
    """A world that went wrong can be run again."""
    first, again, other = (
        [reservation.id for reservation in make(reservations=2, seed=seed).api.reservations()] for seed in (7, 7, 8)
    )
    assert first == again != other
