"""The simulated Equinix API answers as the published description of the real one says."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from simulator.providers.equinix.records import ReservationRecord
from simulator.providers.kit.hardware import NoHardware
from tests.support.providers.equinix_world import DEVICES, KEYS, RESERVATIONS, World
from tests.support.waiting import eventually

NOBODY = "5d4f3c2b-0000-4000-8000-00000000ffff"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ7bXmpC5wLbvYJ1Pc3lkdKsjC2bYvF7CwL2mTLYYZ4t"
OTHER_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIK8bXmpC5wLbvYJ1Pc3lkdKsjC2bYvF7CwL2mTLYYZ4u"
LONG = 600.0  # seconds that no test lives to see


@pytest.mark.parametrize("headers", [{"X-Auth-Token": None}, {"X-Auth-Token": "wrong"}])
def test_a_call_without_the_api_key_is_refused(make: Callable[..., World], headers: dict[str, str | None]) -> None:
    """An adapter that forgets the header must not pass."""
    response = make().call("GET", DEVICES, headers=headers)
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
        ("GET", "/no-such-thing"),
    ],
)
def test_an_unknown_path_answers_404(make: Callable[..., World], method: str, path: str) -> None:
    """The adapter tells a machine that is gone by this status alone."""
    response = make().call(method, path, json={})
    assert response.status_code == 404
    assert response.json()["errors"]


def test_a_page_has_ten_entries_unless_asked_otherwise_and_never_more_than_the_cap(make: Callable[..., World]) -> None:
    """A client that does not page, or trusts its own per_page, sees a part of a fleet."""
    for size, settings, query in ((10, {}, {}), (3, {"per_page_cap": 3}, {"per_page": 1000})):
        body = make(reservations=11, **settings).get(RESERVATIONS, **query)
        assert len(body["hardware_reservations"]) == size
        assert (body["meta"]["total"], body["meta"]["current_page"]) == (11, 1)
        # A client must send its other parameters again with every page, as the vendor's own did.
        assert body["meta"]["next"]["href"] == f"/metal/v1{RESERVATIONS}?page=2"


def test_a_page_behind_the_last_is_empty(make: Callable[..., World]) -> None:
    """A listing that shrinks while it is read ends so."""
    body = make(reservations=3).get(RESERVATIONS, page=2)
    assert body["hardware_reservations"] == []
    assert body["meta"]["next"] is None


@pytest.mark.parametrize("query", [{"page": "0"}, {"page": "x"}, {"per_page": "1001"}, {"page": "100001"}])
def test_a_page_out_of_range_is_refused(make: Callable[..., World], query: dict[str, str]) -> None:
    """The description limits both."""
    assert make().call("GET", DEVICES, params=query).status_code == 422


def test_calls_beyond_the_rate_are_refused(make: Callable[..., World]) -> None:
    """The refusal says when to come back."""
    world = make(calls_per_minute=2)
    responses = [world.call("GET", KEYS) for _ in range(3)]
    assert [response.status_code for response in responses] == [200, 200, 429]
    assert 0 < int(responses[2].headers["Retry-After"]) <= 60


def test_nested_objects_are_links_until_they_are_included(make: Callable[..., World]) -> None:
    """An adapter that forgets an include finds no facility and no device."""
    world = make()
    device_id = world.active()
    path = f"/hardware-reservations/{world.api.reservations()[0].id}"
    plain = world.get(path)
    assert set(plain["facility"]) == set(plain["device"]) == set(plain["plan"]) == {"href"}
    included = world.get(path, include="facility,device")
    assert included["facility"]["code"] == "da11"
    assert included["device"]["id"] == device_id
    assert set(included["device"]["facility"]) == {"href"}
    deep = world.get(path, include="device.facility.metro")
    assert deep["device"]["facility"]["metro"]["code"] == "da"


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
    assert device["ip_addresses"] == [
        {"address": "10.70.0.1", "public": False},
        {"address": "198.18.0.1", "public": True},
    ]
    assert world.hardware.calls == [("rack", device_id)]


def test_a_device_becomes_active_and_its_reservation_is_taken(make: Callable[..., World]) -> None:
    """The end of provisioning, as both listings show it."""
    world = make()
    device_id = world.active()
    device = world.get(f"/devices/{device_id}", include="hardware_reservation")
    assert device["hardware_reservation"]["id"] == world.api.reservations()[0].id
    [reservation] = world.get(RESERVATIONS)["hardware_reservations"]
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
        ({"hostname": 7}, "hostname"),
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


def test_a_reservation_that_is_not_free_is_refused(make: Callable[..., World]) -> None:
    """The adapter learns so that somebody else was faster. A spare must be activated first."""
    world = make(
        reservations=[ReservationRecord(), ReservationRecord(provisionable=False), ReservationRecord(spare=True)]
    )
    assert world.create(0).status_code == 201
    for number, words in enumerate(("is already in use", "is not provisionable", "is not provisionable")):
        response = world.create(number)
        assert response.status_code == 422
        assert words in response.json()["errors"][0]
    assert len(world.api.devices()) == 1


def test_without_named_keys_every_key_lands_on_the_device(make: Callable[..., World]) -> None:
    """The key trap: people who once uploaded a key could log in to every machine."""
    world = make(reservations=2)
    ours = world.call("POST", KEYS, json={"label": "ours", "key": KEY}).json()
    world.call("POST", KEYS, json={"label": "somebody's", "key": OTHER_KEY})
    trapped = world.active(reservation=0)
    chosen = world.active(reservation=1, project_ssh_keys=[ours["id"]])
    on_device = {device.id: [key.label for key in device.ssh_keys] for device in world.api.devices()}
    assert on_device == {trapped: ["ours", "somebody's"], chosen: ["ours"]}
    assert world.hardware.authorized_keys[trapped] == f"{KEY}\n{OTHER_KEY}"
    assert world.hardware.authorized_keys[chosen] == KEY


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
    (device,) = slow.api.devices()
    assert (device.state, device.operating_system) == ("reinstalling", "debian_12")
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
    assert response.json()["errors"] == ["Cannot delete a device that is queued"]


@pytest.mark.parametrize("gone", [False, True])
def test_a_deleted_device_occupies_its_reservation_until_it_is_gone(make: Callable[..., World], gone: bool) -> None:
    """Creating on it at once fails, and the deletion cannot be repeated; then the capacity can be used again."""
    world = make(deprovision_seconds=0 if gone else LONG)
    device_id = world.active()
    assert world.delete(device_id) == 204
    eventually(lambda: ("remove", device_id) in world.hardware.calls)
    if gone:
        eventually(lambda: world.api.devices() == [])
        assert world.create().status_code == 201
    else:
        assert world.get(f"/devices/{device_id}")["state"] == "deprovisioning"
        assert world.delete(device_id) == 422
        assert world.create().status_code == 422


def test_devices_can_be_filtered_and_sorted(make: Callable[..., World]) -> None:
    """The newest comes first unless sorted; a filter narrows the total too."""
    world = make(reservations=2)
    world.active(hostname="shepherd-b", tags=["token", "x"])
    world.active(reservation=1, hostname="shepherd-a")
    world.api.add_active_device("other")

    def hostnames(**query: str) -> list[str]:
        body = world.get(DEVICES, **query)
        assert body["meta"]["total"] == len(body["devices"])
        return [device["hostname"] for device in body["devices"]]

    assert hostnames() == ["other", "shepherd-a", "shepherd-b"]
    assert hostnames(sort_by="hostname") == ["other", "shepherd-a", "shepherd-b"]
    assert hostnames(tag="token") == ["shepherd-b"]
    assert hostnames(tag="tok") == []


def test_a_key_is_taken_once(make: Callable[..., World]) -> None:
    """A client must look first; the same label is no hindrance. What is no key is refused."""
    world = make()
    keys = (KEY, KEY + " me", OTHER_KEY, "nonsense")
    statuses = [world.call("POST", KEYS, json={"label": "ours", "key": key}).status_code for key in keys]
    assert statuses == [201, 422, 201, 422]


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
    assert world.delete(device_id) == 204
    eventually(lambda: world.api.devices() == [])


class BrokenHardware(NoHardware):
    """Machines that cannot be racked."""

    def rack(self, name: str, authorized_key: str, provision_seconds: float, reserved: str | None = None) -> str:
        """Fail."""
        raise OSError("no more racks")


def test_a_device_whose_hardware_fails_is_failed_and_the_error_kept() -> None:
    """A world must notice that its own machines do not work."""
    with ExitStack() as stack:
        world = World(stack, hardware=BrokenHardware())
        world.until(world.create().json()["id"], "failed")
        eventually(lambda: [str(error) for error in world.api.errors] == ["no more racks"])


def test_the_same_seed_makes_the_same_ids(make: Callable[..., World]) -> None:
    """A world that went wrong can be run again."""
    first, again, other = (
        [reservation.id for reservation in make(reservations=2, seed=seed).api.reservations()] for seed in (7, 7, 8)
    )
    assert first == again != other
