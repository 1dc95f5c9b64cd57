"""What the static list must look like, and what is said about one that does not."""

import json
from base64 import b64encode
from dataclasses import replace
from ipaddress import ip_address
from typing import Any
from uuid import UUID

import pytest
from shepherd_core.domain.clock import Deadline, SystemClock
from shepherd_core.domain.errors.provider import ListingInvalid, MachineNotFound, ProviderRefused
from shepherd_core.domain.machine import Availability, Machine, ProviderId, ProviderStatus
from shepherd_core.providers.static import StaticProvider

TOKEN = UUID("0a4bc1a8-7c5f-4c0f-9a53-6b4b5b1f0001")


HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIFJigbPYRIScW/hGpCc4ncuZfk+MHQ4nM2d4Pk4vF2zA"
KINDS = ("ssh-rsa", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521")
OTHER_KEYS = [f"{kind} {b64encode(len(kind).to_bytes(4) + kind.encode() + b'key').decode()}" for kind in KINDS]


def parse(document: bytes) -> list[Machine]:
    return StaticProvider(lambda: document).list_machines(Deadline(SystemClock(), 60))


@pytest.mark.parametrize(
    ("entry", "facts"),
    [
        ({"Location": "Rack 1"}, {"location": "Rack 1"}),
        ({"Addr": "2001:db8::1"}, {"address": ip_address("2001:db8::1")}),
        *(({"HostKey": HOST_KEY + comment}, {"host_key": HOST_KEY}) for comment in ("", " root@rack1", "\n")),
        *(({"HostKey": key}, {"host_key": key}) for key in OTHER_KEYS),
        *(
            ({"Labels": each}, {"labels": {"role": "db", "gpu": ""}})
            for each in ({"role": "db", "gpu": ""}, "role=db gpu")
        ),
    ],
)
def test_an_entry_is_a_machine_that_may_be_used(entry: dict[str, object], facts: dict[str, Any]) -> None:
    """Only the BMDB knows which entries are in use; labels are an object or, as a spreadsheet has them, words."""
    plain = Machine(
        provider_id=ProviderId("a"),
        availability=Availability.POSSIBLY_USED,
        address=ip_address("192.0.2.1"),
        status=ProviderStatus.RUNNING,
    )
    other = {"ID": "b", "Addr": "192.0.2.2"}
    machine, _ = parse(json.dumps([{"ID": "a", "Addr": "192.0.2.1", **entry}, other]).encode())
    assert machine == replace(plain, **facts)


@pytest.mark.parametrize(
    ("entry", "field", "value"),
    [
        ({"Addr": "192.0.2.1"}, "ID", "missing"),
        ({"ID": "", "Addr": "192.0.2.1"}, "ID", "''"),
        ({"ID": 7, "Addr": "192.0.2.1"}, "ID", "7"),
        ({"ID": ["a"], "Addr": "192.0.2.1"}, "ID", "['a']"),
        ({"ID": {}, "Addr": "192.0.2.1"}, "ID", "{}"),
        ({"ID": "\ud800", "Addr": "192.0.2.1"}, "ID", "'\\ud800'"),
        ({"ID": "a", "Addr": {}}, "Addr", "{}"),
        ({"ID": "a", "Addr": "192.0.2.1", "Location": 1.5}, "Location", "1.5"),
        ({"ID": "invalid", "Addr": "192.0.2.1"}, "ID", "'invalid'"),
        ({"ID": "a\0", "Addr": "192.0.2.1"}, "ID", "'a\\x00'"),
        ({"ID": "a"}, "Addr", "missing"),
        ({"ID": "a", "Addr": "machine.example"}, "Addr", "'machine.example'"),
        ({"ID": "a", "Addr": "192.0.2.0/24"}, "Addr", "'192.0.2.0/24'"),
        ({"ID": "a", "Addr": 3221225985}, "Addr", "3221225985"),
        ({"ID": "a", "Addr": "224.0.0.1"}, "Addr", "'224.0.0.1'"),
        ({"ID": "a", "Addr": "192.0.2.1", "Location": None}, "Location", "None"),
        ({"ID": "a", "Addr": "192.0.2.1", "Location": "x\0"}, "Location", "'x\\x00'"),
        ({"ID": "a", "Addr": "192.0.2.1", "HostKey": None}, "HostKey", "None"),
        ({"ID": "a", "Addr": "192.0.2.1", "HostKey": "ssh-ed25519 AAAA"}, "HostKey", "'ssh-ed25519 AAAA'"),
        ({"ID": "a", "Addr": "192.0.2.1", "HostKey": f"ssh-rsa {HOST_KEY.split()[1]}"}, "HostKey", "'ssh-rsa AAAA"),
        ({"ID": "a", "Addr": "192.0.2.1", "HostKey": HOST_KEY + "A" * 5000}, "HostKey", "'ssh-ed25519 AAAA"),
        ({"ID": "a", "Addr": "192.0.2.1", "Port": 22}, "'Port'", "22"),
        ({"ID": "a", "Addr": "192.0.2.1", "Labels": ["role"]}, "Labels", "['role']"),
        ({"ID": "a", "Addr": "192.0.2.1", "Labels": {"role": 1}}, "Labels", "{'role': 1}"),
        ({"ID": "a", "Addr": "192.0.2.1", "Labels": "role=db role=web"}, "Labels", "'role=db role=web'"),
        ({"ID": "a", "Addr": "192.0.2.1", "Labels": " ".join(map(str, range(33)))}, "Labels", "'0 1 2"),
        ({"ID": "a", "Addr": "192.0.2.1", "addr": "192.0.2.2"}, "'addr'", "'192.0.2.2'"),
    ],
)
def test_a_faulty_entry_is_refused_with_index_field_and_value(entry: dict[str, object], field: str, value: str) -> None:
    good = {"ID": "good", "Addr": "192.0.2.99"}
    with pytest.raises(ListingInvalid) as raised:
        parse(json.dumps([good, entry]).encode())
    assert f"entry 1: {field} is {value}" in str(raised.value)
    assert "must be" in str(raised.value) or "known" in str(raised.value)
    assert str(raised.value).count("entry") == 1


def test_ids_and_addresses_are_given_once() -> None:
    """Two entries for one machine would put two agents on it; the other entry's index helps to find it."""
    entries = [
        {"ID": "a", "Addr": "2001:db8::1"},
        {"ID": "b", "Addr": "2001:db8:0::1"},
        {"ID": "a", "Addr": "192.0.2.1"},
    ]
    with pytest.raises(ListingInvalid) as raised:
        parse(json.dumps(entries).encode())
    assert "entry 1: Addr '2001:db8:0::1' is that of entry 0 too" in str(raised.value)
    assert "entry 2: ID 'a' is that of entry 0 too" in str(raised.value)


def test_a_field_that_is_written_twice_is_refused() -> None:
    """It is what remains when the end of one entry and the beginning of the next are lost: a machine would vanish."""
    with pytest.raises(ListingInvalid, match="entry 0: ID is written more than once"):
        parse(b'[{"ID": "a", "Addr": "192.0.2.1", "ID": "b"}]')


@pytest.mark.parametrize(
    ("document", "words"),
    [
        *[(document, "not JSON") for document in (b"", b"{", b"\xff\xfe\xfd", b"[" * 100_000, b"[] []")],
        *[(document, "it must be a JSON list") for document in (b"{}", b"null", b'{"ID": "a", "Addr": "192.0.2.1"}')],
        *[(document, "must be an object") for document in (b"[null]", b"[1]", b"[[]]", b'["a"]')],
    ],
)
def test_a_document_that_is_no_list_is_refused(document: bytes, words: str) -> None:
    with pytest.raises(ListingInvalid, match=words):
        parse(document)


def test_an_entry_that_was_removed_cannot_become_a_machine(deadline: Deadline) -> None:
    """The operator may take a machine out of the list between the listing and the creation."""
    capacity = parse(b'[{"ID": "a", "Addr": "192.0.2.1"}]')[0]
    provider = StaticProvider(lambda: b"[]")
    with pytest.raises(ProviderRefused, match="no entry with the ID 'a'"):
        provider.create_machine(capacity, TOKEN, deadline)
    with pytest.raises(MachineNotFound, match="'a'"):
        provider.get_machine(capacity.provider_id, deadline)
