"""What the answers of Hetzner's Robot web service mean as machines."""

from ipaddress import ip_address
from typing import Any

import pytest
from shepherd_core.domain.errors.provider import ListingInvalid, ProviderUnavailable
from shepherd_core.domain.machine import Availability, ProviderStatus
from shepherd_core.providers.hetzner.objects import (
    BootEntry,
    HetznerServer,
    fingerprint,
    machine,
    machines,
    stored_keys,
)
from shepherd_core.providers.kit.api_object import parse

PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHb1Jc7TZl0g8cFz7h5oVb5Gg2c0J5s0n1p6c9w3Qk7d"


def server(**fields: Any) -> HetznerServer:
    """Return a server with nothing but a number, a name and *fields*."""
    return HetznerServer(server_number=321, server_name="fleet-1", **fields)


@pytest.mark.parametrize(
    ("status", "meaning"),
    [
        ("ready", ProviderStatus.RUNNING),
        ("in process", ProviderStatus.PROVISIONING),
        ("on fire", ProviderStatus.UNKNOWN),
        (None, ProviderStatus.UNKNOWN),
    ],
)
def test_a_status_that_is_not_known_is_unknown(status: str | None, meaning: ProviderStatus) -> None:
    """A new word of the provider's must not stop an invocation, nor look like something else."""
    assert machine(server(status=status)).status is meaning


@pytest.mark.parametrize(
    ("fields", "address"),
    [
        ({"server_ip": "192.0.2.1", "ip": ["192.0.2.2"], "server_ipv6_net": "2001:db8:1::"}, "192.0.2.1"),
        ({"server_ip": None, "ip": ["192.0.2.2"], "server_ipv6_net": "2001:db8:1::"}, "192.0.2.2"),
        ({"server_ip": "", "ip": None, "server_ipv6_net": "2001:db8:1::"}, "2001:db8:1::2"),
        ({"server_ip": "2001:db8:1::5", "ip": []}, "2001:db8:1::5"),
        ({"server_ip": "soon", "server_ipv6_net": ""}, None),
        ({}, None),
    ],
)
def test_the_address_is_where_hetzner_puts_the_server(fields: dict[str, Any], address: str | None) -> None:
    """A server without IPv4 has a network, in which Hetzner's own images take the second address."""
    assert machine(server(**fields)).address == (ip_address(address) if address else None)


def test_a_server_is_possibly_used_and_a_cancelled_one_is_no_capacity() -> None:
    """The BMDB knows which are in use; what ends with the month is no place for a machine."""
    found = machine(server(dc="FSN1-DC1"))
    assert (found.provider_id, found.capacity_id, found.location) == ("321", "321", "FSN1-DC1")
    assert found.availability is Availability.POSSIBLY_USED
    assert not found.failed
    assert machine(server(cancelled=True)).failed


def test_the_prefix_selects_servers_and_excludes_nameless_ones() -> None:
    """Robot calls a new server nothing until somebody gives it a name."""
    listed = [{"server": {"server_number": n, "server_name": name}} for n, name in enumerate(["fleet-1", None, "x"])]
    assert [found.provider_id for found in machines("fleet-", listed)] == ["0"]


@pytest.mark.parametrize("field", ["server_number", "server_name", "cancelled", "ip"])
def test_a_field_of_another_type_spoils_the_listing_without_being_quoted(field: str) -> None:
    """To leave out what is not understood would make a machine disappear."""
    entry = {"server": {"server_number": 1, "server_name": "fleet-1", field: {"secret": 1}}}
    with pytest.raises(ListingInvalid, match=f"entry 0 .*server.{field}") as caught:
        machines("fleet-", [entry])
    assert "secret" not in str(caught.value)


def test_only_what_is_active_is_armed() -> None:
    """Most of the answer is what could be chosen; parts that a server does not have are null."""
    answer = {
        "boot": {
            "rescue": {"active": False, "os": ["linux"], "authorized_key": []},
            "linux": {"active": True, "dist": "Debian", "authorized_key": [{"key": {"fingerprint": "aa:bb"}}]},
            "vnc": {"active": False, "dist": ["centOS-5.0"]},
            "windows": None,
        }
    }
    assert list(parse(BootEntry, answer, "it").active()) == [("linux", {"aa:bb"})]


def test_the_fingerprint_is_the_md5_of_the_key() -> None:
    """This is how Robot names keys; ``ssh-keygen -l -E md5`` says the same."""
    assert fingerprint(PUBLIC_KEY) == "e8:58:d4:06:f9:8a:ad:ef:c5:84:d7:88:93:f4:cd:77"
    assert fingerprint(f"{PUBLIC_KEY} with a comment") == fingerprint(PUBLIC_KEY)


@pytest.mark.parametrize("listed", [None, 5, {"key": []}, [{"key": {"name": "no fingerprint"}}], ["key"]])
def test_keys_that_are_not_understood_are_a_passing_failure(listed: object) -> None:
    """Whatever stood in for the service will go away."""
    with pytest.raises(ProviderUnavailable, match="the list of SSH keys was not understood"):
        stored_keys(listed)
