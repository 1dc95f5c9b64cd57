"""The simulated Equinix API goes wrong exactly as told, and stays whole under load."""

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests
from shepherd_core.domain.errors import ConfigError

from simulator.environment import faults
from simulator.providers.equinix.api import EquinixApi
from simulator.providers.kit.hardware import NoHardware
from tests.support.providers.equinix_client import DEVICES, KEYS, PROJECT, RESERVATIONS, EquinixClient, Make
from tests.support.waiting import eventually

LONG = 600.0  # seconds that no test lives to see
RESERVATIONS_PATH = "/projects/{id}/hardware-reservations"


def page(client: EquinixClient, number: int) -> Any:
    """Return a page of three of seven reservations."""
    return client.get(RESERVATIONS, page=number, per_page=3)


def ids(page: Any) -> list[str]:
    """Return the ids of the reservations on a page."""
    return [reservation["id"] for reservation in page["hardware_reservations"]]


@pytest.mark.parametrize("status", [401, 403, 404, 422, 429, 500, 503])
def test_an_answer_can_be_replaced(make: Make, status: int) -> None:
    """Before the call had its effect, with headers and body as told; the next call is sound."""
    rule = faults.FakeAnswer(method="POST", status=status, body={"errors": ["scripted"]}, retry_after=1.5)
    client = make(rule)
    response = client.create()
    assert (response.status_code, response.json()) == (status, {"errors": ["scripted"]})
    assert response.headers["Retry-After"] == "1.5"
    assert client.api.devices() == []
    assert client.create().status_code == 201


@pytest.mark.parametrize(("body", "text"), [(None, ""), ("<h1>Bad gateway</h1>", "<h1>Bad gateway</h1>")])
def test_an_error_need_not_have_a_json_body(make: Make, body: str | None, text: str) -> None:
    """A load balancer may answer."""
    response = make(faults.FakeAnswer(status=502, body=body)).call("GET", DEVICES)
    assert (response.status_code, response.text) == (502, text)


@pytest.mark.parametrize(
    ("rule", "created"),
    [
        (faults.Drop(method="POST"), 0),
        (faults.Drop(method="POST", when="after"), 1),
        (faults.Cut(method="POST"), 1),
    ],
)
def test_a_lost_answer_does_not_tell_whether_the_device_was_made(make: Make, rule: faults.Rule, created: int) -> None:
    """The client sees the same in all cases and must ask."""
    client = make(rule)
    with pytest.raises((requests.ConnectionError, requests.exceptions.ChunkedEncodingError)):
        client.create()
    assert len(client.api.devices()) == created


def test_an_error_after_the_effect_hides_it(make: Make) -> None:
    """A 500 does not mean that nothing happened."""
    client = make(faults.FakeAnswer(method="POST", status=500, when="after"))
    assert client.create().status_code == 500
    assert len(client.api.devices()) == 1


def test_a_creation_can_succeed_long_after_its_failure(make: Make) -> None:
    """The device appears after the request was given up."""
    client = make(faults.CreateLate(path="/projects/{id}/devices", seconds=0))
    assert client.create().status_code == 504
    eventually(client.api.devices)
    client = make(faults.CreateLate(path="/projects/{id}/devices", seconds=LONG, status=503))
    assert client.create().status_code == 503
    assert client.api.devices() == []


@pytest.mark.parametrize(("when", "created"), [("before", 0), ("after", 1)])
def test_a_delay_outlasts_the_client(make: Make, when: faults.When, created: int) -> None:
    """The client gives up before or after the effect; closing the API ends the delay."""
    client = make(faults.Delay(method="POST", seconds=LONG, when=when))
    with pytest.raises(requests.ReadTimeout):
        client.create(timeout=0.2)
    eventually(lambda: len(client.api.devices()) == created)


def test_a_delay_goes_together_with_another_fault(make: Make) -> None:
    """Slow and wrong is how overload looks."""
    client = make(faults.Delay(seconds=0), faults.FakeAnswer(status=503), faults.FakeAnswer(status=500))
    assert client.call("GET", DEVICES).status_code == 503


def test_a_page_can_be_empty_although_there_is_more(make: Make) -> None:
    """The total in its meta is still right, so a client can notice."""
    client = make(faults.EmptyPage(path=RESERVATIONS_PATH, nth=2), reservations=7)
    pages = [page(client, number) for number in (1, 2, 3)]
    assert [len(ids(page)) for page in pages] == [3, 0, 1]
    assert (pages[1]["meta"]["total"], pages[1]["meta"]["current_page"]) == (7, 2)


def test_a_page_can_repeat_the_one_before(make: Make) -> None:
    """Duplicates in place of entries that are missing: the count is right and the listing wrong."""
    client = make(faults.RepeatPage(nth=2), reservations=7)
    first, second, third = (page(client, number) for number in (1, 2, 3))
    assert ids(first) == ids(second) != ids(third)
    assert second["meta"]["current_page"] == 2


def test_a_listing_can_shrink_between_two_pages(make: Make) -> None:
    """Entries move up, so one is never seen; the total tells."""
    client = make(faults.Shrink(nth=2, times=0), reservations=7)
    everything = [reservation.id for reservation in client.api.reservations()]
    first, second, third = (page(client, number) for number in (1, 2, 3))
    assert ids(first) + ids(second) + ids(third) == everything[:3] + everything[4:]
    assert [page["meta"]["total"] for page in (first, second, third)] == [7, 6, 6]


def test_any_value_of_an_answer_can_be_replaced(make: Make) -> None:
    """In an answer alone, by the names and indexes of its place: the device itself is sound."""
    client = make(
        faults.SetValue(path="/devices/*", at="**.state", value="odd"),
        faults.SetValue(method="GET", path="/projects/*/devices", at="devices.*.state", value="odd", times=2),
        faults.SetValue(method="GET", path="/projects/*/devices", at="devices.0.id", value=None, nth=3),
        reservations=2,
    )
    device_id = client.active()
    client.create(1)
    assert [device["state"] for device in client.get(DEVICES)["devices"]] == ["odd", "odd"]
    assert [device["id"] for device in client.get(DEVICES)["devices"]][1] == device_id
    assert [device["id"] for device in client.get(DEVICES)["devices"]] == [None, device_id]
    assert client.get(f"/devices/{device_id}")["state"] == "active"


@pytest.mark.parametrize(
    "rule", [faults.EmptyPage(), faults.RepeatPage(), faults.SetValue(at="devices.*.id", value=1), faults.Shrink()]
)
def test_a_fault_that_does_not_fit_the_answer_changes_nothing(make: Make, rule: faults.Rule) -> None:
    """A rule may hit calls that it has nothing to do with."""
    response = make(rule).call("GET", KEYS)
    assert (response.status_code, response.json()) == (200, {"ssh_keys": []})
    response = make(rule).call("GET", "/devices/none")
    assert response.status_code == 404


def test_a_rule_applies_from_its_nth_match_so_many_times(make: Make) -> None:
    """Only calls that match are counted."""
    client = make(faults.FakeAnswer(method="GET", path=KEYS, nth=2, times=2, status=503))
    statuses = []
    for _ in range(4):
        client.call("GET", DEVICES)
        statuses.append(client.call("GET", KEYS).status_code)
    assert statuses == [200, 503, 503, 200]


def test_rules_can_be_added_and_cleared_while_it_runs(make: Make) -> None:
    """A service gets worse, then better."""
    client = make()
    client.api.faults.add(faults.FakeAnswer(status=503, times=0))
    assert client.call("GET", DEVICES).status_code == 503
    client.api.faults.clear()
    assert client.call("GET", DEVICES).status_code == 200


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("**", "/devices/a", True),
        ("/devices/{id}", "/devices/a", True),
        ("/devices/*", "/devices/a", True),
        ("/devices/{id}", "/devices/a/actions", False),
        ("/devices/**", "/devices/a/actions", True),
        ("/devices/a", "/devices/b", False),
        ("/devices/a.c", "/devices/abc", False),
    ],
)
def test_a_path_is_matched_by_segments(pattern: str, path: str, expected: bool) -> None:
    """A rule for devices must not hit their actions."""
    assert faults.Drop(path=pattern).matches("GET", path) is expected


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """Let threads take turns so often that a missing lock shows."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


def test_only_one_of_many_gets_a_reservation(make: Make, hasty_threads: None) -> None:
    """The race that the adapter must survive is decided by the API."""
    client = make(reservations=30)
    with ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(lambda number: client.create(number // 8).status_code, range(240)))
    assert sorted(statuses) == 30 * [201] + 210 * [422]
    assert len(client.api.devices()) == 30


def test_it_stays_whole_with_many_clients(make: Make) -> None:
    """Creating, listing, rebooting and deleting at once: nothing is lost, doubled or stuck."""
    client = make(reservations=40)

    def live(index: int) -> None:
        device_id = client.create(index).json()["id"]
        eventually(lambda: client.call("GET", f"/devices/{device_id}").json()["state"] == "active")
        assert client.call("POST", f"/devices/{device_id}/actions", json={"type": "reboot"}).status_code == 202
        assert client.call("GET", DEVICES, params={"per_page": 100}).status_code == 200
        if index % 2:
            assert client.call("DELETE", f"/devices/{device_id}").status_code == 204

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(live, range(40)))
    eventually(lambda: len(client.api.devices()) == 20)
    assert sorted(device.hostname for device in client.api.devices()) == sorted(
        f"shepherd-{index}" for index in range(0, 40, 2)
    )
    assert client.api.calls["POST", "/projects/{id}/devices"] == 40


def test_closing_ends_connections_delays_and_threads() -> None:
    """A demo must end although clients still wait."""
    before = threading.active_count()
    api = EquinixApi(
        NoHardware(), project_id=PROJECT, api_key="key", reservations=1, faults=[faults.Delay(nth=2, seconds=LONG)]
    )
    with api, requests.Session() as session, ThreadPoolExecutor(1) as pool:
        assert session.get(api.url + KEYS, timeout=10).status_code == 401
        waiting = pool.submit(lambda: requests.get(api.url + KEYS, timeout=60))
        eventually(lambda: api.calls["GET", "/projects/{id}/ssh-keys"] == 2)
        api.close()
        assert isinstance(waiting.exception(), requests.ConnectionError)
    eventually(lambda: threading.active_count() == before)


def test_a_faults_file_holds_api_rules_and_machine_harm(tmp_path: Path) -> None:
    """Both sections are optional, and every kind of rule can be written down."""
    path = tmp_path / "faults.json"
    path.write_text(
        """{"api": [
            {"do": "answer", "method": "GET", "nth": 2, "times": 0, "status": 429, "retry_after": 1, "body": null},
            {"do": "delay", "seconds": 0.5, "when": "after"}, {"do": "drop", "path": "/devices/{id}"}, {"do": "cut"},
            {"do": "empty_page"}, {"do": "repeat_page"}, {"do": "shrink", "count": 2},
            {"do": "set", "at": "**.state", "value": 7}, {"do": "create_late", "seconds": 3}],
           "machines": [{"at_seconds": 20, "machine": 3, "fault": "stop_agents"}]}"""
    )
    loaded = faults.load(path)
    assert loaded.api[:3] == (
        faults.FakeAnswer(method="GET", nth=2, times=0, status=429, retry_after=1),
        faults.Delay(seconds=0.5, when="after"),
        faults.Drop(path="/devices/{id}"),
    )
    assert len(loaded.api) == 9
    assert loaded.machines == (faults.MachineFault(at_seconds=20, machine=3, fault="stop_agents"),)
    assert faults.parse("{}") == faults.Faults()


def test_every_fault_of_a_faults_file_is_named_with_rule_and_field() -> None:
    """Its author should be able to repair all faults at once."""
    text = """{"api": [{"do": "explode"}, {"do": "delay", "second": 1}, {"do": "answer", "status": "500", "nth": 0},
                       {"do": "drop", "path": "devices"}, {"do": "cut", "method": "get"}],
               "machines": [{"at_seconds": -1, "machine": 0, "fault": "melt"}], "more": 1}"""
    with pytest.raises(ConfigError) as caught:
        faults.parse(text, "f.json")
    places = [fault.split(":")[0].split(" is ")[0] for fault in caught.value.faults]
    assert places == [
        *("f.json api[0]", "f.json api[1].seconds", "f.json api[1].second", "f.json api[2].nth"),
        *("f.json api[2].status", "f.json api[3].path", "f.json api[4].method"),
        *("f.json machines[0].at_seconds", "f.json machines[0].fault", "f.json more"),
    ]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"api": {}}'])
def test_an_invalid_faults_file_is_refused(text: str) -> None:
    """The error is the simulator's own, and not one of a library."""
    with pytest.raises(ConfigError):
        faults.parse(text)


def test_a_faults_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """The message names the file."""
    with pytest.raises(ConfigError, match=r"missing\.json cannot be read"):
        faults.load(tmp_path / "missing.json")
