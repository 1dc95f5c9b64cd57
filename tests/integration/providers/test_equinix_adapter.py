"""The Equinix Metal adapter against the simulated API: listing, creation, our SSH key, actions."""

import json
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import pytest
import requests
from shepherd_core.domain.clock import Deadline
from shepherd_core.domain.errors.provider import (
    CapacityTaken,
    ListingInvalid,
    MachineNotFound,
    ProviderRefused,
    ProviderUnavailable,
)
from shepherd_core.domain.machine import INVALID, Availability, Machine, ProviderId, ProviderStatus
from shepherd_core.providers.equinix.adapter import EquinixProvider
from shepherd_core.providers.equinix.objects import FreeReservation
from shepherd_core.settings.providers.equinix import EquinixSettings

from simulator.environment.faults import (
    CreateLate,
    Cut,
    Drop,
    EmptyPage,
    FakeAnswer,
    RepeatPage,
    Rule,
    SetValue,
    Shrink,
)
from simulator.providers.equinix.api import EquinixApi
from simulator.providers.equinix.records import KeyRecord
from simulator.providers.kit.hardware import NoHardware
from simulator.providers.kit.machines import Options
from tests.conftest import ManualClock
from tests.support.providers.description import Description
from tests.support.providers.scripted_http import Answer, Request, said, scripted_server
from tests.support.waiting import eventually

PROJECT = "6ab2c9bd-3c32-4d0e-8d4a-0f4b1a5c7e10"
KEY = "an-api-key"
BLOB = "AAAAC3NzaC1lZDI1NTE5AAAAIHb1Jc7TZl0g8cFz7h5oVb5Gg2c0J5s0n1p6c9w3Qk7d"
PUBLIC_KEY = f"ssh-ed25519 {BLOB} shepherd"
OTHER_PUBLIC_KEY = f"ssh-ed25519 {BLOB[:-4]}AAAA somebody"
TOKEN = UUID("6f9d9a52-4f5c-4d43-9f5e-3a6f0d0d1d11")
OTHER_TOKEN = UUID("6f9d9a52-4f5c-4d43-9f5e-3a6f0d0d1d22")

DEVICES = "/projects/{id}/devices"
RESERVATIONS = "/projects/{id}/hardware-reservations"
KEYS = "/projects/{id}/ssh-keys"
CREATE = ("POST", DEVICES)


class EquinixSetup:
    """A project at the simulated API, and providers for it."""

    def __init__(self, api: EquinixApi, hardware: NoHardware, clock: ManualClock) -> None:
        self.api = api
        self.hardware = hardware
        self.clock = clock
        self.provider = self.another()

    def another(self, **settings: Any) -> EquinixProvider:
        """Return one more provider, which shares nothing with the first."""
        return provider(self.api.url, self.clock, **settings)

    @property
    def reservation_id(self) -> str:
        """Return the first reservation of all."""
        return self.api.reservations()[0].id

    @property
    def keys(self) -> list[KeyRecord]:
        """Return the SSH keys of the project."""
        return self.api.keys()

    @property
    def capacity(self) -> Machine:
        """Return the first reservation as capacity."""
        return capacity(self.reservation_id)

    def add_key(self, label: str, key: str) -> str:
        """Put a key into the project, as a person would, and return its id."""
        answer = requests.post(
            f"{self.api.url}/projects/{PROJECT}/ssh-keys",
            json={"label": label, "key": key},
            headers={"X-Auth-Token": KEY},
            timeout=10,
        )
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])


def provider(
    url: str,
    clock: ManualClock,
    public_key: Callable[[], str] = lambda: PUBLIC_KEY,
    api_key: Callable[[], str] = lambda: KEY,
    **settings: Any,
) -> EquinixProvider:
    """Return a provider for the project."""
    fields = {
        "equinix_project_id": PROJECT,
        "credential_parameter": "/unused",
        "equinix_device_prefix": "shepherd-",
        "equinix_key_label": "shepherd-key",
        "equinix_api_url": url,
        **settings,
    }
    return EquinixProvider(EquinixSettings(**fields), api_key, public_key, clock)


def capacity(reservation_id: str | None) -> Machine:
    """Return a reservation as the listing would."""
    return FreeReservation(
        provider_id=INVALID,
        availability=Availability.KNOWN_UNUSED,
        reservation_id=reservation_id,
        plan="c3.small.x86",
        metro="da",
    )


def by_reservation(machines: list[Machine]) -> dict[str | None, Machine]:
    """Return machines and capacity by their reservation."""
    found = {machine.reservation_id: machine for machine in machines}
    assert len(found) == len(machines)
    return found


@pytest.fixture
def setup(clock: ManualClock) -> Iterator[EquinixSetup]:
    """Return a project with seven free reservations, shown three at a time."""
    hardware = NoHardware()
    with EquinixApi(hardware, project_id=PROJECT, api_key=KEY, reservations=7, options=Options(per_page_cap=3)) as api:
        Description("equinix").hold(api)
        yield EquinixSetup(api, hardware, clock)
        assert api.errors == []


# The listing


def test_the_listing_holds_our_devices_and_what_is_free(setup: EquinixSetup, deadline: Deadline) -> None:
    """And nothing else: devices of other people, their reservations, and hardware that cannot be used."""
    ids = [reservation.id for reservation in setup.api.reservations()]
    ours = [setup.api.add_active_device(f"shepherd-{n}", reservation_id=ids[n]) for n in range(4)]
    setup.api.add_active_device("my-shepherd-5", reservation_id=ids[4])
    setup.api.add_active_device("web-server")
    on_demand = setup.api.add_active_device("shepherd-on-demand")
    listed = setup.provider.list_machines(deadline)
    used = {m.provider_id for m in listed if m.availability is Availability.KNOWN_USED}
    assert used == {device.id for device in [*ours, on_demand]}
    unused = [m for m in listed if m.availability is Availability.KNOWN_UNUSED]
    assert {m.reservation_id for m in unused} == set(ids[5:])
    assert all(m.provider_id == INVALID and m.location == "da" for m in unused)
    assert len(listed) == 7


def test_an_empty_project_has_an_empty_listing(clock: ManualClock, deadline: Deadline) -> None:
    """Nothing is a complete listing too."""
    with EquinixApi(NoHardware(), project_id=PROJECT, api_key=KEY, reservations=0) as api:
        assert provider(api.url, clock).list_machines(deadline) == []


SPOILED: list[Rule] = [
    EmptyPage(path=RESERVATIONS, nth=2),
    RepeatPage(path=RESERVATIONS, nth=2),
    Shrink(path=RESERVATIONS, nth=2),
    Shrink(path=RESERVATIONS, nth=1),
    SetValue(path=RESERVATIONS, nth=3, at="meta.next", value={"href": "?page=3"}),
    SetValue(path=RESERVATIONS, times=0, at="meta.next", value={"href": "?page=1"}),
    FakeAnswer(path=RESERVATIONS, nth=2, status=200, body={"hardware_reservations": []}),
    FakeAnswer(path=RESERVATIONS, nth=2, status=200, body={"meta": {"total": 7, "current_page": 2}}),
    FakeAnswer(path=RESERVATIONS, nth=2, status=200, body=[]),
    FakeAnswer(path=RESERVATIONS, nth=2, status=200, body="<html>"),
    FakeAnswer(path=RESERVATIONS, nth=2, status=500),
    Cut(path=RESERVATIONS, nth=2),
    Drop(path=RESERVATIONS, nth=2),
]


@pytest.mark.parametrize("fault", SPOILED, ids=repr)
def test_a_listing_that_can_be_made_good_is_made_good(fault: Rule, setup: EquinixSetup, deadline: Deadline) -> None:
    """Machines come and go while pages are turned; one that is missing would count as taken away."""
    setup.api.faults.add(fault)
    listed = setup.provider.list_machines(deadline)
    assert {machine.reservation_id for machine in listed} == {r.id for r in setup.api.reservations()}
    assert len(listed) == 7


@pytest.mark.parametrize("collection", [DEVICES, RESERVATIONS])
@pytest.mark.parametrize("kind", [EmptyPage, RepeatPage], ids=lambda kind: kind.__name__)
def test_a_listing_that_stays_spoiled_is_refused(
    kind: Callable[..., Rule], collection: str, setup: EquinixSetup, deadline: Deadline
) -> None:
    """Never a partial listing: missing machines would be created again or counted as drift."""
    for number in range(4):
        setup.api.add_active_device(f"shepherd-{number}")
    setup.api.faults.add(kind(path=collection, times=0))
    with pytest.raises(ListingInvalid, match=f"{PROJECT}/{collection.rpartition('/')[2]}"):
        setup.provider.list_machines(deadline)


@pytest.mark.parametrize(
    ("ids", "page", "fault"),
    [
        ([None], 1, "id None"),
        ([["x"]], 1, "id \\['x'\\]"),
        (["a"], 7, "the answer is page 7 instead of page 1"),
        (["a", "a", "b"], 1, "id 'a'"),
        (["a", "b"], 1, "2 entries were listed"),
    ],
)
def test_a_listing_that_contradicts_itself_is_refused(
    ids: list[Any], page: int, fault: str, setup: EquinixSetup, deadline: Deadline
) -> None:
    """It may look complete by one measure and not by another."""
    total = len({str(one) for one in ids}) + ("2 entries" in fault)
    body = {"devices": [{"id": one} for one in ids], "meta": {"total": total, "current_page": page}}
    setup.api.faults.add(FakeAnswer(path=DEVICES, times=0, status=200, body=body))
    with pytest.raises(ListingInvalid, match=fault):
        setup.provider.list_machines(deadline)


def test_both_listings_are_asked_for_at_the_same_time(clock: ManualClock, deadline: Deadline) -> None:
    """The one of reservations is slow, and the session must not wait for their sum."""
    together = threading.Barrier(2)

    def answer(request: Request) -> Answer:
        together.wait(20)
        name = "devices" if "/devices?" in request.path else "hardware_reservations"
        return said(200, **{name: [], "meta": {"total": 0, "current_page": 1}})

    with scripted_server(answer) as script:
        assert provider(script.url, clock, equinix_max_calls=2).list_machines(deadline) == []


def test_one_call_at_a_time_is_enough(setup: EquinixSetup, deadline: Deadline) -> None:
    """A limit of one must still allow every operation."""
    assert len(setup.another(equinix_max_calls=1).list_machines(deadline)) == 7


def test_pages_are_asked_for_with_everything_that_the_first_was(clock: ManualClock, deadline: Deadline) -> None:
    """The links between pages carry the page alone; without the rest, another listing would be continued."""

    def answer(request: Request) -> Answer:
        name = "devices" if "/devices?" in request.path else "hardware_reservations"
        page = int(re.findall(r"[?&]page=(\d+)", request.path)[0])
        meta = {"total": 2, "current_page": page, "next": {"href": "/x?page=2"} if page == 1 else None}
        return said(200, **{name: [{"id": f"{name}-{page}"}], "meta": meta})

    with scripted_server(answer) as script:
        provider(script.url, clock).list_machines(deadline)
        paths = [request.path for request in script.requests]
    for collection in ("devices", "hardware-reservations"):
        first, second = (path for path in paths if f"/{collection}?" in path)
        assert re.sub(r"([?&]page=)\d+", r"\g<1>2", first) == second
        assert "include=" in second
        assert ("sort_by=hostname" in second) is (collection == "devices")
        assert "per_page=100" in second


# One machine


def test_a_machine_is_got_without_listing_all(setup: EquinixSetup, deadline: Deadline) -> None:
    """A batch of ten machines would otherwise read the fleet ten times."""
    device = setup.api.add_active_device("shepherd-1", [f"shepherd-token={TOKEN}"], reservation_id=setup.reservation_id)
    before = setup.api.calls
    got = setup.provider.get_machine(ProviderId(device.id), deadline)
    assert setup.api.calls - before == {("GET", "/devices/{id}"): 1}
    assert got in setup.provider.list_machines(deadline)
    assert (got.token, got.reservation_id, got.status) == (TOKEN, setup.reservation_id, ProviderStatus.RUNNING)


def test_devices_of_others_are_never_acted_on(setup: EquinixSetup, deadline: Deadline) -> None:
    """Even if their id got into the BMDB by mistake."""
    foreign = ProviderId(setup.api.add_active_device("web-server").id)
    calls = (setup.provider.get_machine, setup.provider.reboot, setup.provider.reinstall)
    for call in calls:
        with pytest.raises(MachineNotFound, match="web-server"):
            call(foreign, deadline)
    assert setup.api.calls.keys() == {("GET", "/devices/{id}")}


@pytest.mark.parametrize("form", ["{id}?x=1", "{id}#", "{id}/", "x/../{id}", "./{id}"])
def test_an_id_is_not_part_of_a_path(form: str, setup: EquinixSetup, deadline: Deadline) -> None:
    """It is opaque text; read as more than that, it could name a machine that it does not."""
    device = setup.api.add_active_device("shepherd-1")
    odd = ProviderId(form.format(id=device.id))
    for call in (setup.provider.get_machine, setup.provider.reboot, setup.provider.reinstall):
        with pytest.raises(MachineNotFound):
            call(odd, deadline)
    assert setup.api.devices()[0].actions_taken == []


# Creation


def test_a_device_is_created_as_it_should_be(setup: EquinixSetup, deadline: Deadline) -> None:
    """On the given reservation, by our naming rule, with our key alone, and with the token to be found again."""
    setup.add_key("somebody", OTHER_PUBLIC_KEY)
    created = setup.provider.create_machine(setup.capacity, TOKEN, deadline)
    (device,) = setup.api.devices()
    assert device.hostname == f"shepherd-{setup.reservation_id[:18]}"
    assert device.tags == [f"shepherd-token={TOKEN}"]
    assert device.reservation_id == setup.reservation_id
    assert device.operating_system == "ubuntu_24_04"
    assert [key.key for key in device.ssh_keys] == [PUBLIC_KEY]
    assert created.provider_id == device.id
    assert (created.token, created.reservation_id, created.location) == (TOKEN, setup.reservation_id, "da")
    assert created.status is ProviderStatus.PROVISIONING


def test_the_request_names_metro_plan_and_one_key(clock: ManualClock, deadline: Deadline) -> None:
    """The API fills in what is missing, and not as we would: without keys it lets in the whole organisation."""
    keys = {"ssh_keys": [{"id": "key-1", "label": "shepherd-key", "key": PUBLIC_KEY}]}
    reservation = {
        "id": "reservation-1",
        "device": None,
        "provisionable": True,
        "plan": {"slug": "c3.large.x86"},
        "facility": {"code": "fr2", "metro": {"code": "fr"}},
    }
    meta = {"total": 1, "current_page": 1}

    def answer(request: Request) -> Answer:
        if request.method == "POST":
            return said(201, id="device-1", hostname="shepherd-reservation-1", state="queued")
        if "/hardware-reservations?" in request.path:
            return said(200, hardware_reservations=[reservation], meta=meta)
        if "/ssh-keys" in request.path:
            return said(200, **keys)
        return said(200, devices=[], meta={"total": 0, "current_page": 1})

    with scripted_server(answer) as script:
        setup = provider(script.url, clock)
        (offered,) = setup.list_machines(deadline)
        created = setup.create_machine(offered, TOKEN, deadline)
        asked = [json.loads(request.body) for request in script.requests if request.body]
    assert asked == [
        {
            "hostname": "shepherd-reservation-1",
            "plan": "c3.large.x86",
            "metro": "fr",
            "operating_system": "ubuntu_24_04",
            "hardware_reservation_id": "reservation-1",
            "project_ssh_keys": ["key-1"],
            "tags": [f"shepherd-token={TOKEN}"],
        }
    ]
    # What the answer leaves out is what the listing said.
    assert (created.reservation_id, created.location) == ("reservation-1", "fr")


def test_a_creation_is_a_single_call(setup: EquinixSetup, deadline: Deadline) -> None:
    """The API refuses a reservation that is not free: to look first would cost a call more for each machine."""
    offered = by_reservation(setup.provider.list_machines(deadline))
    setup.provider.create_machine(offered[setup.reservation_id], TOKEN, deadline)  # the key is looked for once
    before = setup.api.calls
    second = setup.api.reservations()[1].id
    setup.provider.create_machine(offered[second], OTHER_TOKEN, deadline)
    assert setup.api.calls - before == {CREATE: 1}


def test_a_creation_whose_answer_is_no_device_is_found_again(setup: EquinixSetup, deadline: Deadline) -> None:
    """The machine exists and is paid for, although the answer was lost."""
    body = {"hostname": "no id"}
    setup.api.faults.add(FakeAnswer(method="POST", path=DEVICES, status=201, body=body, when="after"))
    with pytest.raises(ProviderUnavailable):
        setup.provider.create_machine(setup.capacity, TOKEN, deadline)
    (device,) = setup.api.devices()
    assert setup.another().create_machine(setup.capacity, TOKEN, deadline).provider_id == device.id
    assert len(setup.api.devices()) == 1


def test_a_creation_that_happens_late_makes_no_second_machine(setup: EquinixSetup, deadline: Deadline) -> None:
    """A gateway gave up on the request, the API behind it did not."""
    setup.api.faults.add(CreateLate(method="POST", path=DEVICES, seconds=0.05))
    with pytest.raises(ProviderUnavailable, match="504"):
        setup.provider.create_machine(setup.capacity, TOKEN, deadline)
    eventually(lambda: len(setup.api.devices()) == 1)
    created = setup.provider.create_machine(setup.capacity, TOKEN, deadline)
    assert [device.id for device in setup.api.devices()] == [created.provider_id]


def test_a_refusal_because_we_were_faster_ourselves_is_none(setup: EquinixSetup, deadline: Deadline) -> None:
    """An earlier request was carried out in the end, and the reservation is used by our own machine."""
    setup.api.faults.add(FakeAnswer(method="POST", path=DEVICES, status=422, body={"error": "in use"}, when="after"))
    created = setup.provider.create_machine(setup.capacity, TOKEN, deadline)
    assert [device.id for device in setup.api.devices()] == [created.provider_id]


def test_a_free_reservation_is_checked_by_tag(setup: EquinixSetup, deadline: Deadline) -> None:
    """What the API says about a reservation is cached for minutes."""
    created = setup.provider.create_machine(setup.capacity, TOKEN, deadline)
    stale = {"id": setup.reservation_id, "device": None, "provisionable": True, "plan": {"slug": "c3.small.x86"}}
    setup.api.faults.add(FakeAnswer(method="GET", path="/hardware-reservations/*", times=0, status=200, body=stale))
    assert setup.another().create_machine(setup.capacity, TOKEN, deadline).provider_id == created.provider_id
    with pytest.raises(ProviderRefused, match="already in use"):
        setup.another().create_machine(setup.capacity, OTHER_TOKEN, deadline)
    assert len(setup.api.devices()) == 1


def test_a_device_that_the_listing_does_not_show_yet_is_found_on_its_reservation(
    setup: EquinixSetup, deadline: Deadline
) -> None:
    """Any one of the two places is enough."""
    created = setup.provider.create_machine(setup.capacity, TOKEN, deadline)
    body = {"devices": [], "meta": {"total": 0, "current_page": 1}}
    setup.api.faults.add(FakeAnswer(method="GET", path=DEVICES, times=0, status=200, body=body))
    assert setup.another().create_machine(setup.capacity, TOKEN, deadline).provider_id == created.provider_id


def test_a_device_without_the_token_is_not_taken_for_ours(setup: EquinixSetup, deadline: Deadline) -> None:
    """An API that ignores the question for a tag answers with all devices."""
    setup.api.occupy(setup.reservation_id)
    body = {"devices": [{"id": "d-1", "hostname": "shepherd-1"}], "meta": {"total": 1, "current_page": 1}}
    setup.api.faults.add(FakeAnswer(method="GET", path=DEVICES, times=0, status=200, body=body))
    with pytest.raises(CapacityTaken, match=setup.reservation_id):
        setup.provider.create_machine(setup.capacity, TOKEN, deadline)


def test_of_many_that_create_at_the_same_time_one_gets_the_capacity(setup: EquinixSetup, deadline: Deadline) -> None:
    """No look before a creation could promise that; the API's refusal does."""
    together = threading.Barrier(4)

    def create(number: int) -> Machine | None:
        ours = setup.another()
        together.wait(20)
        try:
            return ours.create_machine(setup.capacity, UUID(int=number), deadline)
        except CapacityTaken:
            return None

    with ThreadPoolExecutor(4) as pool:
        (created,) = filter(None, pool.map(create, range(4)))
    assert [device.id for device in setup.api.devices()] == [created.provider_id]


def test_a_reservation_whose_device_is_gone_is_tried_later(setup: EquinixSetup, deadline: Deadline) -> None:
    """The API shows the change late; the capacity is still free."""
    setup.api.occupy(setup.reservation_id)
    setup.api.faults.add(FakeAnswer(method="GET", path="/devices/*", status=404))
    with pytest.raises(ProviderUnavailable, match="still names a device"):
        setup.provider.create_machine(setup.capacity, TOKEN, deadline)


def test_a_refusal_of_the_api_is_raised_with_its_text(setup: EquinixSetup, deadline: Deadline) -> None:
    """The operator must learn which setting is wrong."""
    with pytest.raises(ProviderRefused, match=r"422: operating_system: 'no_such' is not a valid"):
        setup.another(equinix_os="no_such").create_machine(setup.capacity, TOKEN, deadline)
    assert setup.api.devices() == []


@pytest.mark.parametrize("reservation_id", [None, "no-such-reservation", "", "..", "a/b"])
def test_capacity_that_does_not_exist_is_refused(
    reservation_id: str | None, setup: EquinixSetup, deadline: Deadline
) -> None:
    """Nothing is created on demand instead: that would be paid for by the hour."""
    setup.api.check = setup.api.check_answer = None  # two dots are asked for, where no reservation is
    with pytest.raises(ProviderRefused):
        setup.provider.create_machine(capacity(reservation_id), TOKEN, deadline)
    assert setup.api.devices() == []


def test_capacity_that_no_listing_offered_is_refused(setup: EquinixSetup, deadline: Deadline) -> None:
    """It lacks what a creation needs, and only a mistake would ask for it."""
    unlisted = Machine(provider_id=INVALID, availability=Availability.KNOWN_UNUSED, reservation_id=setup.reservation_id)
    with pytest.raises(ProviderRefused, match="not a free reservation of the listing"):
        setup.provider.create_machine(unlisted, TOKEN, deadline)
    assert setup.api.calls[CREATE] == 0


# Our SSH key


def test_our_key_is_added_once(setup: EquinixSetup, deadline: Deadline) -> None:
    """And looked for once by each warm function."""
    for number in range(3):
        setup.provider.create_machine(capacity(setup.api.reservations()[number].id), UUID(int=number), deadline)
    setup.another().create_machine(capacity(setup.api.reservations()[3].id), TOKEN, deadline)
    assert [(key.label, key.key) for key in setup.keys] == [("shepherd-key", PUBLIC_KEY)]
    assert setup.api.calls["POST", KEYS] == 1
    assert setup.api.calls["GET", KEYS] == 3  # before and after adding it, and by the other provider
    assert all(len(device.ssh_keys) == 1 for device in setup.api.devices())


def test_a_key_that_is_refused_is_refused_in_the_words_of_the_api(setup: EquinixSetup, deadline: Deadline) -> None:
    """Nothing is created without it."""
    with pytest.raises(ProviderRefused, match="not an SSH public key"):
        setup.another(public_key=lambda: "nonsense").create_machine(setup.capacity, TOKEN, deadline)
    assert setup.api.devices() == []


# Actions


def test_a_reinstall_gives_the_operating_system_of_the_settings(setup: EquinixSetup, deadline: Deadline) -> None:
    """A machine that was made with another one is brought in line."""
    device = setup.api.add_active_device("shepherd-1")
    setup.another(equinix_os="debian_12").reinstall(ProviderId(device.id), deadline)
    assert setup.api.devices()[0].operating_system == "debian_12"
    eventually(lambda: ("reinstall", device.id) in setup.hardware.calls)


def test_a_machine_that_goes_before_the_action_is_not_found(setup: EquinixSetup, deadline: Deadline) -> None:
    """The look before the action is no promise."""
    device = setup.api.add_active_device("shepherd-1")
    setup.api.faults.add(FakeAnswer(method="POST", status=404))
    with pytest.raises(MachineNotFound):
        setup.provider.reboot(ProviderId(device.id), deadline)


# The API key


def test_a_replaced_api_key_is_taken_up(setup: EquinixSetup, deadline: Deadline) -> None:
    """A warm function outlives the key that it began with."""
    keys = iter(["the-key-of-yesterday"])
    assert len(setup.another(api_key=lambda: next(keys, KEY)).list_machines(deadline)) == 7
