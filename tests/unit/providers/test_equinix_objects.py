from ipaddress import ip_address
from typing import Any
from uuid import UUID

import pytest
from shepherd_core.domain.errors.provider import ListingInvalid
from shepherd_core.domain.machine import ProviderStatus
from shepherd_core.providers.equinix.objects import Device, machine, machines

TOKEN = UUID("6f9d9a52-4f5c-4d43-9f5e-3a6f0d0d1d11")
METRO = {"id": "m", "code": "fr"}
V4, OTHER_V4, V6 = ({"address": each, "public": True} for each in ("203.0.113.7", "203.0.113.8", "2001:db8::1"))
PRIVATE = {"address": "10.0.0.1", "public": False}
LINK = {"href": "/metal/v1/hardware-reservations/r-9"}

STATES = {
    **dict.fromkeys(("queued", "provisioning", "post_provisioning", "reinstalling"), ProviderStatus.PROVISIONING),
    "active": ProviderStatus.RUNNING,
    **dict.fromkeys(("inactive", "powering_on", "powering_off"), ProviderStatus.STOPPED),
    "failed": ProviderStatus.PROVISIONING_FAILED_PERMANENT,
    "deleted": ProviderStatus.MISSING,
    **dict.fromkeys(("deprovisioning", "never heard of"), ProviderStatus.UNKNOWN),
}
MEANINGS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    *(
        (
            {"state": state},
            {"status": status, "failed": (down := state == "failed"), "failure": "failed" if down else None},
        )
        for state, status in STATES.items()
    ),
    # SSH connects to the first public address, rather of version 4.
    *(
        ({"ip_addresses": given}, {"address": expected and ip_address(expected["address"])})
        for given, expected in (
            (None, None),
            ([PRIVATE], None),
            ([{"href": "/metal/v1/ips/1"}], None),
            ([{"address": "10.0.0.1"}], None),
            ([PRIVATE, V4], V4),
            ([V6, V4], V4),
            ([V4, OTHER_V4], V4),
            ([PRIVATE, V6], V6),
        )
    ),
    # An intent whose creation was interrupted is matched to its machine by the tag alone.
    *(
        ({"tags": tags}, {"token": token})
        for tags, token in (
            (None, None),
            ([str(TOKEN)], None),
            (["rack-7", "shepherd-token=not-a-token", f"shepherd-token={TOKEN}"], TOKEN),
        )
    ),
    ({"tags": [f"shepherd-token={TOKEN}", "role=db", "rack 7"]}, {"labels": {"role": "db"}}),
    # Nested objects may come as a mere link.
    *(
        (places, {"location": location})
        for places, location in (
            ({}, None),
            ({"metro": METRO, "facility": {"code": "fr2"}}, "fr"),
            ({"facility": {"code": "fr2", "metro": METRO}}, "fr"),
            ({"facility": {"code": "fr2", "metro": {"href": "/metal/v1/locations/metros/m"}}}, "fr2"),
            ({"facility": {"href": "/metal/v1/facilities/f"}}, None),
        )
    ),
    ({"hardware_reservation": {"id": "r-8", **LINK}}, {"reservation_id": "r-8"}),
    ({"hardware_reservation": LINK}, {"reservation_id": "r-9"}),
    ({"hardware_reservation": {}}, {"reservation_id": None}),
    ({}, {"reservation_id": "of the request"}),
]


def device(**fields: Any) -> dict[str, Any]:
    return {"id": "d-1", "hostname": "shepherd-1", "state": "active", **fields}


def reservation(**fields: Any) -> dict[str, Any]:
    return {"id": "r-9", "provisionable": True, "device": None, **fields}


@pytest.mark.parametrize(("fields", "expected"), MEANINGS)
def test_a_device_means_a_machine(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    """Loops decide by this; what was added to the API later, or left out, must not stop them."""
    found = machine(Device.model_validate(device(**fields)), "of the request")
    assert {name: getattr(found, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("devices", "reservations", "expected"),
    [
        *(([{"hostname": name}], [], []) for name in ("Shepherd-2", "my-shepherd-3", "shepherd", "", None)),
        ([{"hostname": "foreign", "ip_addresses": [{"address": "somewhere"}], "tags": "none"}], [], []),
        ([{}], [{}], ["d-1", "r-9"]),
        # The device knows better than the reservation, which is minutes out of date.
        ([{"hardware_reservation": LINK}], [{}], ["d-1"]),
        ([{"hostname": "foreign", "hardware_reservation": LINK}], [{}], []),
        *(([], [{"device": used}], []) for used in ({"id": "d-8"}, {"href": "/metal/v1/devices/d-9"}, {})),
        ([], [{"provisionable": False}], []),
    ],
)
def test_a_listing_holds_our_devices_and_free_reservations(
    devices: list[dict[str, Any]], reservations: list[dict[str, Any]], expected: list[str]
) -> None:
    found = machines("shepherd-", [device(**each) for each in devices], [reservation(**each) for each in reservations])
    assert [each.reservation_id if each.provider_id == "invalid" else each.provider_id for each in found] == expected


def test_a_reservation_says_little_and_is_still_understood() -> None:
    """Nothing is built where the API does not say that it can be."""
    assert machines("shepherd-", [], [{"id": "r-9"}]) == []
    (capacity,) = machines("shepherd-", [], [reservation(facility={"code": "fr2", "metro": METRO})])
    assert (capacity.location, capacity.capacity_id) == ("fr", "r-9")


def test_a_senseless_device_of_ours_spoils_the_listing() -> None:
    with pytest.raises(ListingInvalid, match=r"device d-1 .*ip_addresses"):
        machines("shepherd-", [device(ip_addresses=[{"address": "somewhere", "public": True}])], [])
