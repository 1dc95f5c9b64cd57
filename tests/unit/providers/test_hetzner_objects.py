from ipaddress import ip_address
from typing import Any

import pytest
from shepherd_core.domain.errors.provider import ListingInvalid, ProviderUnavailable
from shepherd_core.domain.machine import Availability, ProviderStatus
from shepherd_core.providers.hetzner.objects import HetznerServer, machine, machines, stored_keys

NETWORK = "2001:db8:1::"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {"provider_id": "321", "capacity_id": "321", "availability": Availability.POSSIBLY_USED, "failed": False}),
        ({"dc": "FSN1-DC1"}, {"location": "FSN1-DC1"}),
        ({"cancelled": True}, {"failed": True}),
        *(
            ({"status": given}, {"status": status})
            for given, status in (
                ("ready", ProviderStatus.RUNNING),
                ("in process", ProviderStatus.PROVISIONING),
                ("on fire", ProviderStatus.UNKNOWN),
                (None, ProviderStatus.UNKNOWN),
            )
        ),
        # A server without IPv4 has a network, in which Hetzner's own images take the second address.
        *(
            (given, {"address": address and ip_address(address)})
            for given, address in (
                ({"server_ip": "192.0.2.1", "ip": ["192.0.2.2"], "server_ipv6_net": NETWORK}, "192.0.2.1"),
                ({"server_ip": None, "ip": ["192.0.2.2"], "server_ipv6_net": NETWORK}, "192.0.2.2"),
                ({"server_ip": "", "ip": None, "server_ipv6_net": NETWORK}, "2001:db8:1::2"),
                ({"server_ip": "2001:db8:1::5", "ip": []}, "2001:db8:1::5"),
                ({"server_ip": "soon", "server_ipv6_net": "192.0.2.0"}, None),
                ({}, None),
            )
        ),
    ],
)
def test_a_server_means_a_machine(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    """The BMDB knows which are in use; a new word of the provider's must not stop an invocation."""
    found = machine(HetznerServer(server_number=321, server_name="fleet-1", **fields))
    assert {name: getattr(found, name) for name in expected} == expected


def test_the_prefix_selects_servers_and_excludes_nameless_ones() -> None:
    """Robot calls a new server nothing until somebody gives it a name."""
    listed = [{"server": {"server_number": n, "server_name": name}} for n, name in enumerate(["fleet-1", None, "x"])]
    assert [found.provider_id for found in machines("fleet-", listed)] == ["0"]


@pytest.mark.parametrize(
    ("listed", "fault"),
    [
        ({"server": []}, "is of type dict, not a list"),
        (["fleet-a"], "entry 0"),
        ([{"server": {"server_number": 21, "server_name": "database"}}] * 2, "server 21 is listed twice"),
        ([{"server": {"server_number": -1, "server_name": "fleet-1"}}], "entry 0 .*server_number"),
        *(
            ([{"server": {"server_number": 1, "server_name": "fleet-1", field: {"secret": 1}}}], f"entry 0 .*{field}")
            for field in ("server_number", "server_name", "cancelled", "ip")
        ),
    ],
)
def test_a_listing_that_is_not_understood_is_none(listed: object, fault: str) -> None:
    with pytest.raises(ListingInvalid, match=fault) as caught:
        machines("fleet-", listed)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("listed", [None, 5, {"key": []}, [{"key": {"name": "no fingerprint"}}], ["key"]])
def test_keys_that_are_not_understood_are_a_passing_failure(listed: object) -> None:
    with pytest.raises(ProviderUnavailable, match="the list of SSH keys was not understood"):
        stored_keys(listed)
