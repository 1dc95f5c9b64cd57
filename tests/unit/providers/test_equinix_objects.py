"""What the answers of the Equinix Metal API mean as machines."""

from ipaddress import ip_address
from typing import Any
from uuid import UUID

import pytest
from shepherd_core.domain.errors.provider import ListingInvalid, ProviderUnavailable
from shepherd_core.domain.machine import Availability, Machine, ProviderStatus
from shepherd_core.providers.equinix.objects import Device, Link, machine, machines
from shepherd_core.providers.kit.api_object import parse

TOKEN = UUID("6f9d9a52-4f5c-4d43-9f5e-3a6f0d0d1d11")


def device(**fields: Any) -> dict[str, Any]:
    """Return a device as the API sends it."""
    return {"id": "d-1", "hostname": "shepherd-1", "state": "active", **fields}


def reservation(**fields: Any) -> dict[str, Any]:
    """Return a free reservation as the API sends it."""
    return {"id": "r-1", "provisionable": True, "device": None, **fields}


def meant(**fields: Any) -> Machine:
    """Return what a device with *fields* means."""
    return machine(Device.model_validate(device(**fields)))


@pytest.mark.parametrize(
    ("state", "status"),
    [
        ("queued", ProviderStatus.PROVISIONING),
        ("provisioning", ProviderStatus.PROVISIONING),
        ("post_provisioning", ProviderStatus.PROVISIONING),
        ("reinstalling", ProviderStatus.PROVISIONING),
        ("active", ProviderStatus.RUNNING),
        ("inactive", ProviderStatus.STOPPED),
        ("powering_on", ProviderStatus.STOPPED),
        ("powering_off", ProviderStatus.STOPPED),
        ("failed", ProviderStatus.PROVISIONING_FAILED_PERMANENT),
        ("deleted", ProviderStatus.MISSING),
        ("deprovisioning", ProviderStatus.UNKNOWN),
        ("never heard of", ProviderStatus.UNKNOWN),
    ],
)
def test_every_state_has_a_status(state: str, status: ProviderStatus) -> None:
    """Loops decide by the status; a state that was added later must not stop them. Only *failed* is failed."""
    found = meant(state=state)
    assert found.status is status
    assert found.failed is (state == "failed")


@pytest.mark.parametrize(
    ("addresses", "expected"),
    [
        (None, None),
        ([], None),
        ([{"address": "10.0.0.1", "public": False}], None),
        ([{"address": "10.0.0.1", "public": False}, {"address": "203.0.113.7", "public": True}], "203.0.113.7"),
        ([{"address": "2001:db8::1", "public": True}, {"address": "203.0.113.7", "public": True}], "203.0.113.7"),
        ([{"address": "203.0.113.7", "public": True}, {"address": "203.0.113.8", "public": True}], "203.0.113.7"),
        ([{"address": "10.0.0.1", "public": False}, {"address": "2001:db8::1", "public": True}], "2001:db8::1"),
        ([{"href": "/metal/v1/ips/1"}], None),
    ],
)
def test_the_address_is_the_first_public_one_and_rather_of_version_4(
    addresses: list[dict[str, Any]] | None, expected: str | None
) -> None:
    """SSH connects there; a private address would reach another machine or none."""
    assert meant(ip_addresses=addresses).address == (None if expected is None else ip_address(expected))


@pytest.mark.parametrize(
    ("tags", "token"),
    [
        (None, None),
        (["rack-7"], None),
        (["rack-7", f"shepherd-token={TOKEN}"], TOKEN),
        (["shepherd-token=not-a-token", f"shepherd-token={TOKEN}"], TOKEN),
        ([str(TOKEN)], None),
    ],
)
def test_the_token_is_read_from_its_tag(tags: list[str] | None, token: UUID | None) -> None:
    """An intent whose creation was interrupted is matched to its machine by this alone."""
    assert meant(tags=tags).token == token


METRO = {"id": "m", "code": "fr"}


@pytest.mark.parametrize(
    ("places", "location"),
    [
        ({}, None),
        ({"metro": METRO, "facility": {"code": "fr2", "metro": METRO}}, "fr"),
        ({"facility": {"code": "fr2", "metro": METRO}}, "fr"),
        ({"facility": {"code": "fr2", "metro": {"href": "/metal/v1/locations/metros/m"}}}, "fr2"),
        ({"metro": None, "facility": {"code": "fr2"}}, "fr2"),
        ({"facility": {"href": "/metal/v1/facilities/f"}}, None),
    ],
)
def test_the_location_is_the_metro_or_else_the_facility(places: dict[str, Any], location: str | None) -> None:
    """Nested objects may come as a mere link; a machine without a known place is still a machine."""
    assert meant(**places).location == location


def test_capacity_has_the_location_that_its_machine_will_have() -> None:
    """Otherwise a machine would seem to move when it is created."""
    facility = {"code": "fr2", "metro": METRO}
    (capacity,) = machines("shepherd-", [], [reservation(facility=facility)])
    assert capacity.location == meant(facility=facility, metro=METRO).location == "fr"


@pytest.mark.parametrize(
    "link",
    [{"id": "r-9", "href": "/metal/v1/hardware-reservations/r-9"}, {"href": "/metal/v1/hardware-reservations/r-9"}],
)
def test_a_mere_link_still_names_the_reservation(link: dict[str, str]) -> None:
    """The API sends nested objects in full only when asked, and may forget."""
    assert meant(hardware_reservation=link).reservation_id == "r-9"


def test_a_new_device_gets_its_reservation_from_the_request() -> None:
    """The BMDB records the reservation from the answer to the creation."""
    created = machine(Device.model_validate(device(state="queued")), "r-1")
    assert created.reservation_id == "r-1"
    meant_elsewhere = machine(Device.model_validate(device(hardware_reservation={"id": "r-9"})), "r-1")
    assert meant_elsewhere.reservation_id == "r-9"


def test_only_host_names_that_begin_with_the_prefix_are_ours() -> None:
    """Everything else in the project belongs to somebody who did not ask for us."""
    names = ["shepherd-1", "Shepherd-2", "my-shepherd-3", "shepherd", "", None]
    devices = [device(id=f"d-{number}", hostname=name) for number, name in enumerate(names)]
    assert [found.provider_id for found in machines("shepherd-", devices, [])] == ["d-0"]


@pytest.mark.parametrize(
    "fields",
    [
        {"provisionable": False},
        {"device": {"id": "d-8", "hostname": "shepherd-8"}},
        {"device": {"id": "d-9", "hostname": "foreign"}},
        {"device": {"href": "/metal/v1/devices/d-9"}},
        {"device": {}},
    ],
)
def test_a_reservation_that_is_used_or_not_provisionable_is_no_capacity(fields: dict[str, Any]) -> None:
    """Creating a machine there would fail, or hit somebody else's."""
    assert machines("shepherd-", [], [reservation(**fields)]) == []


def test_a_reservation_without_provisionable_is_no_capacity() -> None:
    """Every field may be missing; nothing is built on a guess."""
    assert machines("shepherd-", [], [{"id": "r-1"}]) == []


@pytest.mark.parametrize("hostname", ["shepherd-1", "foreign"])
def test_a_reservation_that_a_device_names_is_no_capacity(hostname: str) -> None:
    """What the API says about a reservation is cached for minutes; the device knows better."""
    on_it = device(hostname=hostname, hardware_reservation={"href": "/metal/v1/hardware-reservations/r-1"})
    assert all(
        found.availability is Availability.KNOWN_USED for found in machines("shepherd-", [on_it], [reservation()])
    )


def test_a_device_of_ours_that_makes_no_sense_spoils_the_listing() -> None:
    """Leaving it out would look as if it did not exist."""
    with pytest.raises(ListingInvalid, match=r"device d-1 .*ip_addresses"):
        machines("shepherd-", [device(ip_addresses=[{"address": "somewhere", "public": True}])], [])


def test_a_foreign_device_that_makes_no_sense_spoils_nothing() -> None:
    """It is not our business."""
    foreign = device(hostname="foreign", ip_addresses=[{"address": "somewhere"}], tags="none")
    assert machines("shepherd-", [foreign], []) == []


def test_no_error_quotes_what_the_api_sent() -> None:
    """Devices come with their root password."""
    secret = {"id": "d-1", "tags": {"root_password": "hunter2"}}
    with pytest.raises(ProviderUnavailable) as caught:
        parse(Device, secret, "device d-1")
    assert "hunter2" not in f"{caught.value!s} {caught.value!r} {caught.value.__cause__!s} {caught.value.__cause__!r}"
    assert "tags" in str(caught.value)


def test_an_object_without_name_or_address_has_an_empty_key() -> None:
    """It is then asked for in vain, which is an error, instead of being taken for free."""
    assert Link().key == ""
