"""The simulated Equinix API answers as the published description of the real one says."""

from contextlib import ExitStack
from typing import Any

import pytest

from simulator.providers.equinix.records import ReservationRecord
from simulator.providers.kit.hardware import NoHardware
from tests.support.providers.equinix_client import DEVICES, KEYS, RESERVATIONS, EquinixClient, Make
from tests.support.waiting import eventually

NOBODY = "5d4f3c2b-0000-4000-8000-00000000ffff"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ7bXmpC5wLbvYJ1Pc3lkdKsjC2bYvF7CwL2mTLYYZ4t"
OTHER_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIK8bXmpC5wLbvYJ1Pc3lkdKsjC2bYvF7CwL2mTLYYZ4u"
LONG = 600.0  # seconds that no test lives to see


@pytest.mark.parametrize("headers", [{"X-Auth-Token": None}, {"X-Auth-Token": "wrong"}])
def test_a_call_without_the_api_key_is_refused(make: Make, headers: dict[str, str | None]) -> None:
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
def test_an_unknown_path_answers_404(make: Make, method: str, path: str) -> None:
    """The adapter tells a machine that is gone by this status alone."""
    response = make().call(method, path, json={})
    assert response.status_code == 404
    assert response.json()["errors"]


def test_a_page_has_ten_entries_unless_asked_otherwise_and_never_more_than_the_cap(make: Make) -> None:
    """A client that does not page, or trusts its own per_page, sees a part of a fleet."""
    for size, settings, query in ((10, {}, {}), (3, {"per_page_cap": 3}, {"per_page": 1000})):
        body = make(reservations=11, **settings).get(RESERVATIONS, **query)
        assert len(body["hardware_reservations"]) == size
        assert (body["meta"]["total"], body["meta"]["current_page"]) == (11, 1)
        # A client must send its other parameters again with every page, as the vendor's own did.
        assert body["meta"]["next"]["href"] == f"/metal/v1{RESERVATIONS}?page=2"


def test_a_page_behind_the_last_is_empty(make: Make) -> None:
    """A listing that shrinks while it is read ends so."""
    body = make(reservations=3).get(RESERVATIONS, page=2)
    assert body["hardware_reservations"] == []
    assert body["meta"]["next"] is None


@pytest.mark.parametrize("query", [{"page": "0"}, {"page": "x"}, {"per_page": "1001"}, {"page": "100001"}])
def test_a_page_out_of_range_is_refused(make: Make, query: dict[str, str]) -> None:
    """The description limits both."""
    assert make().call("GET", DEVICES, params=query).status_code == 422


def test_calls_beyond_the_rate_are_refused(make: Make) -> None:
    """The refusal says when to come back."""
    client = make(calls_per_minute=2)
    responses = [client.call("GET", KEYS) for _ in range(3)]
    assert [response.status_code for response in responses] == [200, 200, 429]
    assert 0 < int(responses[2].headers["Retry-After"]) <= 60


def test_nested_objects_are_links_until_they_are_included(make: Make) -> None:
    """An adapter that forgets an include finds no facility and no device."""
    client = make()
    device_id = client.active()
    path = f"/hardware-reservations/{client.api.reservations()[0].id}"
    plain = client.get(path)
    assert set(plain["facility"]) == set(plain["device"]) == set(plain["plan"]) == {"href"}
    included = client.get(path, include="facility,device")
    assert included["facility"]["code"] == "da11"
    assert included["device"]["id"] == device_id
    assert set(included["device"]["facility"]) == {"href"}
    deep = client.get(path, include="device.facility.metro")
    assert deep["device"]["facility"]["metro"]["code"] == "da"


def test_a_device_is_queued_without_addresses(make: Make) -> None:
    """A machine that was just created cannot be reached, and its listing must still be understood."""
    client = make(provision_seconds=LONG)
    created = client.create(tags=["token"])
    assert created.status_code == 201
    device = client.get(f"/devices/{created.json()['id']}")
    assert (device["state"], device["ip_addresses"], device["tags"]) == ("queued", [], ["token"])
    assert client.hardware.calls == []


def test_addresses_are_assigned_when_provisioning_begins(make: Make) -> None:
    """They are known minutes before SSH answers."""
    client = make(provision_seconds=LONG, queue_seconds=0)
    device_id = client.create().json()["id"]
    device = eventually(lambda: (seen := client.get(f"/devices/{device_id}"))["ip_addresses"] and seen)
    assert device["state"] == "provisioning"
    assert device["ip_addresses"] == [
        {"address": "10.70.0.1", "public": False},
        {"address": "198.18.0.1", "public": True},
    ]
    assert client.hardware.calls == [("rack", device_id)]


def test_a_device_becomes_active_and_its_reservation_is_taken(make: Make) -> None:
    """The end of provisioning, as both listings show it."""
    client = make()
    device_id = client.active()
    device = client.get(f"/devices/{device_id}", include="hardware_reservation")
    assert device["hardware_reservation"]["id"] == client.api.reservations()[0].id
    [reservation] = client.get(RESERVATIONS)["hardware_reservations"]
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
def test_a_device_that_makes_no_sense_is_refused(make: Make, change: dict[str, Any], word: str) -> None:
    """The refusal names the field, and nothing is created."""
    client = make()
    response = client.create(**change)
    assert response.status_code == 422
    assert any(word in message for message in response.json()["errors"])
    assert client.api.devices() == []
    assert client.api.keys() == []


def test_a_reservation_that_is_not_free_is_refused(make: Make) -> None:
    """The adapter learns so that somebody else was faster. A spare must be activated first."""
    client = make(
        reservations=[ReservationRecord(), ReservationRecord(provisionable=False), ReservationRecord(spare=True)]
    )
    assert client.create(0).status_code == 201
    for number, words in enumerate(("is already in use", "is not provisionable", "is not provisionable")):
        response = client.create(number)
        assert response.status_code == 422
        assert words in response.json()["errors"][0]
    assert len(client.api.devices()) == 1


def test_without_named_keys_every_key_lands_on_the_device(make: Make) -> None:
    """The key trap: people who once uploaded a key could log in to every machine."""
    client = make(reservations=2)
    ours = client.call("POST", KEYS, json={"label": "ours", "key": KEY}).json()
    client.call("POST", KEYS, json={"label": "somebody's", "key": OTHER_KEY})
    trapped = client.active(reservation=0)
    chosen = client.active(reservation=1, project_ssh_keys=[ours["id"]])
    on_device = {device.id: [key.label for key in device.ssh_keys] for device in client.api.devices()}
    assert on_device == {trapped: ["ours", "somebody's"], chosen: ["ours"]}
    assert client.hardware.authorized_keys[trapped] == f"{KEY}\n{OTHER_KEY}"
    assert client.hardware.authorized_keys[chosen] == KEY


def test_a_reboot_is_accepted_at_once_and_done_later(make: Make) -> None:
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


def test_a_reinstall_takes_as_long_as_provisioning(make: Make) -> None:
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
def test_an_unknown_action_is_refused(make: Make, body: Any) -> None:
    """Nothing happens to the machine."""
    client = make()
    device_id = client.active()
    assert client.call("POST", f"/devices/{device_id}/actions", json=body).status_code == 422
    assert client.get(f"/devices/{device_id}")["state"] == "active"


def test_a_device_being_made_is_neither_rebooted_nor_deleted(make: Make) -> None:
    """The API refuses both while it provisions."""
    client = make(provision_seconds=LONG)
    device_id = client.create().json()["id"]
    assert client.act(device_id, type="reboot") == 422
    response = client.call("DELETE", f"/devices/{device_id}")
    assert response.status_code == 422
    assert response.json()["errors"] == ["Cannot delete a device that is queued"]


@pytest.mark.parametrize("gone", [False, True])
def test_a_deleted_device_occupies_its_reservation_until_it_is_gone(make: Make, gone: bool) -> None:
    """Creating on it at once fails, and the deletion cannot be repeated; then the capacity can be used again."""
    client = make(deprovision_seconds=0 if gone else LONG)
    device_id = client.active()
    assert client.delete(device_id) == 204
    eventually(lambda: ("remove", device_id) in client.hardware.calls)
    if gone:
        eventually(lambda: client.api.devices() == [])
        assert client.create().status_code == 201
    else:
        assert client.get(f"/devices/{device_id}")["state"] == "deprovisioning"
        assert client.delete(device_id) == 422
        assert client.create().status_code == 422


def test_devices_can_be_filtered_and_sorted(make: Make) -> None:
    """The newest comes first unless sorted; a filter narrows the total too."""
    client = make(reservations=2)
    client.active(hostname="shepherd-b", tags=["token", "x"])
    client.active(reservation=1, hostname="shepherd-a")
    client.api.add_active_device("other")

    def hostnames(**query: str) -> list[str]:
        body = client.get(DEVICES, **query)
        assert body["meta"]["total"] == len(body["devices"])
        return [device["hostname"] for device in body["devices"]]

    assert hostnames() == ["other", "shepherd-a", "shepherd-b"]
    assert hostnames(sort_by="hostname") == ["other", "shepherd-a", "shepherd-b"]
    assert hostnames(tag="token") == ["shepherd-b"]
    assert hostnames(tag="tok") == []


def test_a_key_is_taken_once(make: Make) -> None:
    """A client must look first; the same label is no hindrance. What is no key is refused."""
    client = make()
    keys = (KEY, KEY + " me", OTHER_KEY, "nonsense")
    statuses = [client.call("POST", KEYS, json={"label": "ours", "key": key}).status_code for key in keys]
    assert statuses == [201, 422, 201, 422]


def test_a_forgotten_device_vanishes_with_its_machine(make: Make) -> None:
    """Its reservation is free again."""
    client = make()
    device_id = client.active()
    client.api.forget(device_id)
    assert client.call("GET", f"/devices/{device_id}").status_code == 404
    assert client.create().status_code == 201
    eventually(lambda: ("remove", device_id) in client.hardware.calls)


def test_a_failed_device_stays_and_goes_dark(make: Make) -> None:
    """It is not provisioned any further, occupies its reservation and can be deleted."""
    client = make(provision_seconds=LONG, queue_seconds=0)
    device_id = client.create().json()["id"]
    eventually(lambda: client.get(f"/devices/{device_id}")["ip_addresses"])
    client.api.fail(device_id)
    eventually(lambda: ("power_off", device_id) in client.hardware.calls)
    assert client.get(f"/devices/{device_id}")["state"] == "failed"
    assert client.create().status_code == 422
    assert client.delete(device_id) == 204
    eventually(lambda: client.api.devices() == [])


class BrokenHardware(NoHardware):
    """Machines that cannot be racked."""

    def rack(self, name: str, authorized_key: str, provision_seconds: float, reserved: str | None = None) -> str:
        """Fail."""
        raise OSError("no more racks")


def test_a_device_whose_hardware_fails_is_failed_and_the_error_kept() -> None:
    """A demo must notice that its own machines do not work."""
    with ExitStack() as stack:
        client = EquinixClient(stack, hardware=BrokenHardware())
        client.until(client.create().json()["id"], "failed")
        eventually(lambda: [str(error) for error in client.api.errors] == ["no more racks"])


def test_the_same_seed_makes_the_same_ids(make: Make) -> None:
    """A demo that went wrong can be run again."""
    first, again, other = (
        [reservation.id for reservation in make(reservations=2, seed=seed).api.reservations()] for seed in (7, 7, 8)
    )
    assert first == again != other
