"""What is special to the Equinix Metal adapter: its requests, word for word, and what it makes of a refusal."""

import json
import threading
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

from tests.conftest import ManualClock
from tests.integration.providers.contract.provider_contract import PUBLIC_KEY
from tests.support.providers.scripted_http import Answer, Request, said, scripted_server

TOKEN = UUID("6f9d9a52-4f5c-4d43-9f5e-3a6f0d0d1d11")
TAG = f"shepherd-token={TOKEN}"
RESERVATION = "6ab2c9bd-3c32-4d0e-8d4a-0f4b1a5c7e10"
DEVICE_QUERY = {
    "include": "hardware_reservation,facility,facility.metro,metro",
    "exclude": "created_by,customdata,network_ports,operating_system,actions,plan,provisioning_events,ssh_keys,volumes",
}
RESERVATION_QUERY = {"include": "device,facility,facility.metro,plan"}
OURS = {"id": "d-1", "hostname": "shepherd-1", "state": "active", "tags": [TAG]}


def provider(url: str, clock: ManualClock) -> EquinixProvider:
    settings = EquinixSettings(
        project="a/b", credential_parameter="/unused", fleet="shepherd-", key_name="ours", os="debian_12", api_url=url
    )
    return EquinixProvider(settings, lambda: "an-api-key", lambda: PUBLIC_KEY, clock)


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
        (what, query, *_) = told(request)
        if what == "GET /projects/a%2Fb/ssh-keys":
            return said(200, ssh_keys=[{"id": "key-1", "label": "ours", "key": PUBLIC_KEY}])
        if what == "POST /projects/a%2Fb/devices":
            return said(
                201, id="d-1", state="queued", metro={"code": "am"} if told(request)[2]["metro"] == "any" else None
            )
        if what == "GET /devices/d-1":
            return said(200, **OURS)
        if what.startswith("POST"):
            return Answer(202)
        page, name = int(query["page"]), "devices" if what.endswith("devices") else "hardware_reservations"
        if page == 1:
            together.wait(20)
        more = {"provisionable": page == 1, "plan": {"slug": "c3"}, "facility": facility}
        meta = {"total": 2, "current_page": page, "next": {"href": "/x?page=2"} if page == 1 else None}
        return said(200, **{name: [{"id": f"{page}-{RESERVATION}", **more}], "meta": meta})

    with scripted_server(answer) as script:
        ours = provider(script.url, clock)
        (offered,) = ours.list_machines(deadline)
        listed = sorted(map(told, script.requests), key=str)
        script.requests.clear()
        created = ours.create_machine(offered, TOKEN, deadline)
        elsewhere = ours.create_machine(capacity(plan="c3", metro=None), TOKEN, deadline)
        with pytest.raises(ProviderRefused, match="has no plan"):
            ours.create_machine(capacity(plan=None), TOKEN, deadline)
        ours.reboot(ProviderId("d-1"), Permission(deadline))
        ours.reinstall(ProviderId("d-1"), Permission(deadline))
        rest = list(map(told, script.requests))
        assert {request.headers["X-Auth-Token"] for request in script.requests} == {"an-api-key"}
    pages = [{"page": str(page), "per_page": "100"} for page in (1, 2)]
    assert listed == sorted(
        [
            *(("GET /projects/a%2Fb/devices", {**DEVICE_QUERY, "sort_by": "hostname", **page}) for page in pages),
            *(("GET /projects/a%2Fb/hardware-reservations", {**RESERVATION_QUERY, **page}) for page in pages),
        ],
        key=lambda each: str((each[0], dict(sorted(each[1].items())))),
    )
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
    assert rest == [
        ("GET /projects/a%2Fb/ssh-keys", {}),
        ("POST /projects/a%2Fb/devices", DEVICE_QUERY, body),
        ("POST /projects/a%2Fb/devices", DEVICE_QUERY, bare),
        ("GET /devices/d-1", DEVICE_QUERY),
        ("POST /devices/d-1/actions", {}, {"type": "reboot"}),
        ("GET /devices/d-1", DEVICE_QUERY),
        (
            "POST /devices/d-1/actions",
            {},
            {"type": "reinstall", "deprovision_fast": True, "operating_system": "debian_12"},
        ),
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
    asked: list[tuple[Any, ...]] = []

    def answer(request: Request) -> Answer:
        (what, *_) = told(request)
        asked.append(told(request))
        if what == "GET /projects/a%2Fb/ssh-keys":
            return said(200, ssh_keys=[{"id": "key-1", "label": "ours", "key": PUBLIC_KEY}])
        if what.startswith("POST"):
            return said(422, errors=["in use"])
        if what == f"GET /hardware-reservations/{RESERVATION}":
            return said(200, id=RESERVATION, device=on_it)
        if what == "GET /devices/d-1":
            return said(404) if device is None else said(200, **device)
        return said(200, devices=tagged)

    with scripted_server(answer) as script:
        if isinstance(outcome, str):
            found = provider(script.url, clock).create_machine(capacity(), TOKEN, deadline)
            assert (found.provider_id, found.reservation_id) == (outcome, None if on_it is None else RESERVATION)
        else:
            with pytest.raises(outcome) as raised:
                provider(script.url, clock).create_machine(capacity(), TOKEN, deadline)
            assert type(raised.value) is outcome
    assert asked[2:4] == [
        (f"GET /hardware-reservations/{RESERVATION}", RESERVATION_QUERY),
        ("GET /projects/a%2Fb/devices", {**DEVICE_QUERY, "tag": TAG, "per_page": "100"}),
    ]


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


@pytest.mark.parametrize("hostname", ["web-server", "shepherd-1"])
def test_only_devices_of_ours_that_are_there_are_acted_on(
    hostname: str, clock: ManualClock, deadline: Deadline
) -> None:
    """Somebody else's id may have got into the BMDB by mistake; one of ours may go between the look and the action."""

    def answer(request: Request) -> Answer:
        return said(200, **{**OURS, "hostname": hostname}) if request.method == "GET" else said(404)

    with scripted_server(answer) as script:
        ours = provider(script.url, clock)
        for act in (ours.reboot, ours.reinstall):
            with pytest.raises(MachineNotFound, match="web-server" if hostname == "web-server" else "404"):
                act(ProviderId("d-1"), Permission(deadline))
        assert ("POST" in {request.method for request in script.requests}) is (hostname == "shepherd-1")
