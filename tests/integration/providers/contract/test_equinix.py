import json
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl, urlsplit
from uuid import UUID

import pytest
from shepherd_core.domain.clock import Deadline, Permission
from shepherd_core.domain.errors.provider import CapacityTaken, MachineNotFound, ProviderRefused, ProviderUnavailable
from shepherd_core.domain.machine import INVALID, Availability, Machine, ProviderId
from shepherd_core.providers.equinix.adapter import EquinixProvider
from shepherd_core.providers.equinix.objects import FreeReservation
from shepherd_core.settings.providers.equinix import EquinixSettings

from simulator.environment.faults import EmptyPage, SetValue
from simulator.providers.equinix.api import EquinixApi
from simulator.providers.kit.hardware import NoHardware
from simulator.providers.kit.machines import Options
from tests.conftest import ManualClock
from tests.integration.providers.contract.description import Description
from tests.integration.providers.contract.provider_contract import PUBLIC_KEY, Places, ProviderContract, Setup
from tests.integration.providers.contract.provider_faults import ProviderFaults
from tests.support.providers.scripted_http import Answer, Request, said, scripted_server
from tests.support.waiting import eventually

PROJECT = "6ab2c9bd-3c32-4d0e-8d4a-0f4b1a5c7e10"
KEY = "an-api-key-that-nobody-may-see"


def provider(url: str, clock: ManualClock, project: str = "a/b", **more: Any) -> EquinixProvider:
    given = {"credential_parameter": "/unused", "fleet": "shepherd-", "key_name": "shepherd", "api_url": url, **more}
    return EquinixProvider(EquinixSettings(project=project, **given), lambda: KEY, lambda: PUBLIC_KEY, clock)


def settled(api: EquinixApi, hardware: NoHardware) -> bool:
    """Return whether everything that was asked of the provider has happened."""
    devices = api.snapshot()
    wanted = sum(device.actions_taken.count("reboot") for device in devices)
    done = [method for method, _ in hardware.calls].count("reboot")
    return done == wanted and all(device.state == "active" and device.address for device in devices)


class TestEquinix(ProviderContract, ProviderFaults):
    lacks = frozenset({"power-cycle", "release"})

    @pytest.fixture
    def setup(self, clock: ManualClock) -> Iterator[Setup]:
        hardware, path = NoHardware(), "/projects/{id}/devices"
        options = Options(per_page_cap=2)
        with EquinixApi(hardware, project_id=PROJECT, secret=KEY, reservations=5, options=options) as api:
            Description("equinix").hold(api)
            ids = api.reservations()
            api.add_active_device("shepherd-by-hand", reservation_id=ids[0])
            api.add_active_device("web-server", reservation_id=ids[1])
            yield Setup.of(
                api,
                hardware,
                EmptyPage(path=path, times=0),
                provider=provider(api.url, clock, PROJECT),
                capacity_ids=frozenset(ids) - {ids[1]},
                stores_tokens=True,
                remove_keys=api.keys.clear,
                keyed=("create",),
                settle=lambda: eventually(lambda: settled(api, hardware)),
                confuse=lambda _: api.faults.add(SetValue(times=0, at="**.state", value="unheard of")),
                secret=KEY,
                places=Places(path=path, id="devices.*.id", address="devices.*.ip_addresses.*.address"),
            )
            assert api.errors == []


TOKEN = UUID("6f9d9a52-4f5c-4d43-9f5e-3a6f0d0d1d11")
TAG = f"shepherd-token={TOKEN}"
RESERVATION = "6ab2c9bd-3c32-4d0e-8d4a-0f4b1a5c7e10"
DEVICE_QUERY = {
    "include": "hardware_reservation,facility,facility.metro,metro",
    "exclude": "created_by,customdata,network_ports,operating_system,actions,plan,provisioning_events,ssh_keys,volumes",
}
RESERVATION_QUERY = {"include": "device,facility,facility.metro,plan"}
OURS = {"id": "d-1", "hostname": "shepherd-1", "state": "active", "tags": [TAG]}
DEVICES, RESERVATIONS, KEYS = (f"/projects/a%2Fb/{each}" for each in ("devices", "hardware-reservations", "ssh-keys"))
STORED = said(200, ssh_keys=[{"id": "key-1", "label": "shepherd", "key": PUBLIC_KEY}])


def capacity(**fields: Any) -> FreeReservation:
    usual = {"reservation_id": RESERVATION, "plan": "c3.small.x86", "metro": "da"}
    return FreeReservation(provider_id=INVALID, availability=Availability.KNOWN_UNUSED, **(usual | fields))


def told(request: Request) -> tuple[Any, ...]:
    url = urlsplit(request.path)
    body = [json.loads(request.body)] if request.body else []
    return (f"{request.method} {url.path}", dict(parse_qsl(url.query)), *body)


def test_the_requests_are_those_of_the_description(clock: ManualClock, deadline: Deadline) -> None:
    """The API fills in what is missing, and not as we would: without keys it lets in the whole organisation."""
    together = threading.Barrier(2)
    facility = {"code": "fr2", "metro": {"code": "fr"}}

    def answer(request: Request) -> Answer:
        (what, query, *body) = told(request)
        if what == f"POST {DEVICES}":
            return said(201, id="d-1", state="queued", metro={"code": "am"} if body[0]["metro"] == "any" else None)
        if what.startswith("POST"):
            return Answer(202)
        if "page" not in query:
            return STORED if what == f"GET {KEYS}" else said(200, **OURS)
        page, name = int(query["page"]), "devices" if what == f"GET {DEVICES}" else "hardware_reservations"
        if page == 1:
            together.wait(20)
        more = {"provisionable": page == 1, "plan": {"slug": "c3"}, "facility": facility}
        meta = {"total": 2, "current_page": page, "next": {"href": "/x?page=2"} if page == 1 else None}
        return said(200, **{name: [{"id": f"{page}-{RESERVATION}", **more}], "meta": meta})

    with scripted_server(answer) as script:
        ours = provider(script.url, clock, os="debian_12")
        (offered,) = ours.list_machines(deadline)
        listed = sorted(map(told, script.requests), key=lambda each: (each[0], each[1]["page"]))
        script.requests.clear()
        created = ours.create_machine(offered, TOKEN, deadline)
        elsewhere = ours.create_machine(capacity(plan="c3", metro=None), TOKEN, deadline)
        with pytest.raises(ProviderRefused, match="has no plan"):
            ours.create_machine(capacity(plan=None), TOKEN, deadline)
        ours.reboot(ProviderId("d-1"), Permission(deadline))
        ours.reinstall(ProviderId("d-1"), Permission(deadline))
        rest = list(map(told, script.requests))
        assert {request.headers["X-Auth-Token"] for request in script.requests} == {KEY}
    pages = [{"page": str(page), "per_page": "100"} for page in (1, 2)]
    assert listed == [
        *((f"GET {DEVICES}", {**DEVICE_QUERY, "sort_by": "hostname", **page}) for page in pages),
        *((f"GET {RESERVATIONS}", {**RESERVATION_QUERY, **page}) for page in pages),
    ]
    body = {
        "hostname": f"shepherd-{f'1-{RESERVATION}'[:18]}",
        "plan": "c3",
        "metro": "fr",
        "operating_system": "debian_12",
        "hardware_reservation_id": f"1-{RESERVATION}",
        "project_ssh_keys": ["key-1"],
        "tags": [TAG],
    }
    bare = {**body, "hostname": f"shepherd-{RESERVATION[:18]}", "metro": "any", "hardware_reservation_id": RESERVATION}
    reinstalls = {"type": "reinstall", "deprovision_fast": True, "operating_system": "debian_12"}
    assert rest == [
        (f"GET {KEYS}", {}),
        (f"POST {DEVICES}", DEVICE_QUERY, body),
        (f"POST {DEVICES}", DEVICE_QUERY, bare),
        ("GET /devices/d-1", DEVICE_QUERY),
        ("POST /devices/d-1/actions", {}, {"type": "reboot"}),
        ("GET /devices/d-1", DEVICE_QUERY),
        ("POST /devices/d-1/actions", {}, reinstalls),
    ]
    # What the answer leaves out is what the listing said.
    assert (created.reservation_id, created.location) == (f"1-{RESERVATION}", "fr")
    assert (elsewhere.reservation_id, elsewhere.location) == (RESERVATION, "am")


LINK = {"href": "/metal/v1/devices/d-1"}


@pytest.mark.parametrize(
    ("on_it", "tagged", "device", "outcome"),
    [
        (None, [OURS], None, "d-1"),  # what the API says of a reservation is minutes old
        (LINK, [], OURS, "d-1"),  # the listing may be too
        (None, [{**OURS, "tags": []}], None, ProviderRefused),  # the question for the tag was ignored
        (LINK, [], {**OURS, "tags": []}, CapacityTaken),
        (LINK, [], None, ProviderUnavailable),  # the device is gone, and its capacity free again soon
    ],
)
def test_after_a_refusal_the_machine_on_the_reservation_decides(
    on_it: Any, tagged: list[Any], device: Any, outcome: Any, clock: ManualClock, deadline: Deadline
) -> None:
    """An earlier request may have been carried out after all; if not, others were faster, or the refusal holds."""
    reservation = f"GET /hardware-reservations/{RESERVATION}"
    answers = {
        f"GET {KEYS}": STORED,
        f"POST {DEVICES}": said(422, errors=["in use"]),
        reservation: said(200, id=RESERVATION, device=on_it),
        f"GET {DEVICES}": said(200, devices=tagged),
        "GET /devices/d-1": said(404) if device is None else said(200, **device),
    }
    with scripted_server(lambda request: answers[told(request)[0]]) as script:
        if isinstance(outcome, str):
            found = provider(script.url, clock).create_machine(capacity(), TOKEN, deadline)
            assert (found.provider_id, found.reservation_id) == (outcome, None if on_it is None else RESERVATION)
        else:
            with pytest.raises(outcome) as raised:
                provider(script.url, clock).create_machine(capacity(), TOKEN, deadline)
            assert type(raised.value) is outcome
    tag = {"tag": TAG, "per_page": "100"}
    asked = [told(request) for request in script.requests[2:4]]
    assert asked == [(reservation, RESERVATION_QUERY), (f"GET {DEVICES}", {**DEVICE_QUERY, **tag})]


@pytest.mark.parametrize(
    "unlisted",
    [
        capacity(reservation_id=None),
        capacity(reservation_id=""),
        Machine(provider_id=INVALID, availability=Availability.KNOWN_UNUSED, reservation_id=RESERVATION),
    ],
)
def test_capacity_that_no_listing_offered_is_refused(unlisted: Machine, clock: ManualClock, deadline: Deadline) -> None:
    """Nothing is created on demand instead: that would be paid for by the hour."""
    with pytest.raises(ProviderRefused, match="not a free reservation of the listing"):
        provider("http://127.0.0.1:9", clock).create_machine(unlisted, TOKEN, deadline)


@pytest.mark.parametrize(("hostname", "why"), [("web-server", "web-server"), ("shepherd-1", "404")])
def test_only_devices_of_ours_that_are_there_are_acted_on(
    hostname: str, why: str, clock: ManualClock, deadline: Deadline
) -> None:
    """Somebody else's id may have got into the BMDB by mistake; one of ours may go between the look and the action."""

    def answer(request: Request) -> Answer:
        return said(200, **{**OURS, "hostname": hostname}) if request.method == "GET" else said(404)

    with scripted_server(answer) as script:
        ours = provider(script.url, clock)
        for act in (ours.reboot, ours.reinstall):
            with pytest.raises(MachineNotFound, match=why):
                act(ProviderId("d-1"), Permission(deadline))
        assert ("POST" in {request.method for request in script.requests}) is (hostname == "shepherd-1")
