import json
from base64 import b64encode
from contextlib import nullcontext as does_not_raise
from dataclasses import replace
from ipaddress import ip_address
from typing import Any
from uuid import UUID

import pytest
from pydantic import ValidationError
from shepherd_core.adapters.http.bounded_answer import MOST_VALUES
from shepherd_core.domain.clock import Deadline, SystemClock
from shepherd_core.domain.errors.provider import ListingInvalid, MachineNotFound, ProviderRefused
from shepherd_core.domain.machine import Availability, Machine, ProviderId, ProviderStatus
from shepherd_core.providers.redfish.machine_list import redfish_list
from shepherd_core.providers.static import StaticProvider
from shepherd_core.settings.providers.redfish import RedfishSettings

HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIFJigbPYRIScW/hGpCc4ncuZfk+MHQ4nM2d4Pk4vF2zA"
KINDS = ("ssh-rsa", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521")
OTHER_KEYS = [f"{kind} {b64encode(len(kind).to_bytes(4) + kind.encode() + b'key').decode()}" for kind in KINDS]
GOOD = {"ID": "rack1-1", "Addr": "192.0.2.11", "Location": "Amsterdam", "Bmc": "https://192.0.2.111"}
GOOD |= {"System": "/redfish/v1/Systems/1", "Credential": "/shepherd/bmc/rack1", "Fingerprint": "ab" * 32}
LEAST = {"ID": "rack1-2", "Addr": "192.0.2.12", "Bmc": "https://bmc2.example:8443/", "Credential": "bmc2"}
PRINTED = {"Fingerprint": ":".join(["aB"] * 32)}


def static(document: bytes) -> list[Machine]:
    return StaticProvider(lambda: document).list_machines(Deadline(SystemClock(), 60))


def redfish(*entries: object) -> list[Any]:
    return redfish_list(lambda: b"").parse(json.dumps(entries).encode())


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
    machine, _ = static(json.dumps([{"ID": "a", "Addr": "192.0.2.1", **entry}, other]).encode())
    assert machine == replace(plain, **facts)


def test_optional_fields_may_be_left_out() -> None:
    """A fingerprint is taken as tools print it."""
    full, least, other = redfish(GOOD, LEAST, {**LEAST, "ID": "c", "Addr": "192.0.2.13", "Bmc": "https://c", **PRINTED})
    assert (full["System"], least["Bmc"]) == ("/redfish/v1/Systems/1", "https://bmc2.example:8443")
    assert {"System", "Fingerprint"}.isdisjoint(least)
    assert full["Fingerprint"] == other["Fingerprint"] == "ab" * 32


FAULTY: dict[str, tuple[object, ...]] = {
    "ID": ("", 7, ["a"], {}, "\ud800", "invalid", "a\0"),
    "Addr": ({}, "machine.example", "192.0.2.0/24", 3221225985, "224.0.0.1"),
    "Location": (1.5, None, "x\0"),
    "HostKey": (None, "ssh-ed25519 AAAA", f"ssh-rsa {HOST_KEY.split()[1]}", HOST_KEY + "A" * 5000),
    "Labels": (["role"], {"role": 1}, "role=db role=web", " ".join(map(str, range(33)))),
    "Bmc": (
        *("http://192.0.2.111", "192.0.2.111", "https://", "https://192.0.2.111/redfish/v1", "https://192.0.2.111?a=1"),
        *("https://user:password@192.0.2.111", "https://192.0.2.111:99999", "https://[::1", "https://a b"),
        *("https://b\N{LATIN SMALL LETTER U WITH DIAERESIS}.example", 5),
    ),
    "System": ("redfish/v1/Systems/1", "/redfish/v1/Systems/a b", "/", ["/redfish/v1/Systems/1"]),
    "Credential": ("", "root:calvin"),
    "Fingerprint": ("ab" * 20, "xy" * 32, True),
    # There are no such fields.
    "Password": ("calvin",),
    "Port": (22,),
    "addr": ("192.0.2.2",),
}


@pytest.mark.parametrize(("field", "value"), [(name, value) for name, values in FAULTY.items() for value in values])
def test_a_faulty_field_is_refused_with_entry_field_and_value(field: str, value: object) -> None:
    with pytest.raises(ListingInvalid) as raised:
        redfish(LEAST, {**GOOD, field: value})
    said = str(raised.value)
    assert f"entry 1: {field} is {value!r:.80}; it must be" in said or f"entry 1: {field!r} is {value!r}; no f" in said
    assert said.count("entry") == 1


def test_all_faults_are_reported_at_once() -> None:
    with pytest.raises(ListingInvalid) as raised:
        redfish({**GOOD, "Addr": "x", "Fingerprint": "y"}, {}, 7, {**GOOD, "ID": "b", "Addr": "192.0.2.13"})
    told = [line.strip(" -") for line in str(raised.value).splitlines()[1:]]
    assert [line.split(";")[0] for line in told] == [
        "entry 0: Addr is 'x'",
        "entry 0: Fingerprint is 'y'",
        *(f"entry 1: {name} is missing" for name in ("ID", "Addr", "Bmc", "Credential")),
        "entry 2 is 7",
        "entry 3: Bmc 'https://192.0.2.111' is that of entry 0 too",
    ]
    assert "it must be an object with ID, Addr, Bmc and Credential" in told[6]


SYSTEM = GOOD["System"]
SYSTEMS = ((SYSTEM, SYSTEM), (None, None), (SYSTEM, None), (None, SYSTEM), (SYSTEM, f"{SYSTEM}/"))
BMCS = ("https://192.0.2.111", "https://192.0.2.111/", "HTTPS://192.0.2.111:443")
V6 = ("https://[2001:db8::1]", "https://[2001:DB8:0:0::1]:443/")
OF_ITS_OWN = "Bmc .* is that of entry 0 too; each of them must have a System of its own"


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        ({"ID": "a"}, {"ID": "a"}, "ID 'a' is that of entry 0 too"),
        ({"Addr": "2001:db8::1"}, {"Addr": "2001:db8:0::1"}, "Addr '2001:db8:0::1' is that of entry 0 too"),
        *(({"System": one}, {"Bmc": bmc, "System": other}, OF_ITS_OWN) for bmc in BMCS for one, other in SYSTEMS),
        ({"Bmc": V6[0], "System": None}, {"Bmc": V6[1]}, OF_ITS_OWN),
    ],
)
def test_no_two_entries_may_mean_one_machine(one: dict[str, Any], other: dict[str, Any], words: str) -> None:
    """Two entries for one machine would put two agents on it; the other entry's index helps to find it."""
    entries = {**GOOD, **one}, {**LEAST, **other}
    with pytest.raises(ListingInvalid, match=f"entry 1: {words}"):
        redfish(*({name: value for name, value in entry.items() if value is not None} for entry in entries))


def test_systems_of_one_bmc_are_distinguished() -> None:
    """A chassis with blades has one BMC for all of them."""
    assert len(redfish(GOOD, {**LEAST, "Bmc": GOOD["Bmc"], "System": "/redfish/v1/Systems/2"})) == 2


# What remains when the end of one entry and the beginning of the next are lost: a machine would vanish.
RUN_TOGETHER = b'[{"ID": "a", "Addr": "192.0.2.1", "ID": "b"}]'


@pytest.mark.parametrize(
    ("document", "words"),
    [
        *[(document, "not JSON") for document in (b"", b"{", b"\xff", b"[" * 100_000, b"[] []", b"9" * 5_000)],
        (b"[" + b"{}," * MOST_VALUES + b"{}]", "not JSON"),  # millions of objects would not fit into a function
        *[(document, "it must be a JSON list") for document in (b"{}", b"null", b'{"ID": "a", "Addr": "192.0.2.1"}')],
        *[(document, "must be an object") for document in (b"[null]", b"[1]", b"[[]]", b'["a"]')],
        (RUN_TOGETHER, "entry 0: ID is written more than once"),
    ],
)
def test_a_document_that_is_no_list_is_refused(document: bytes, words: str) -> None:
    with pytest.raises(ListingInvalid, match=words):
        static(document)


def test_an_entry_that_was_removed_cannot_become_a_machine(deadline: Deadline) -> None:
    """The operator may take a machine out of the list between the listing and the creation."""
    capacity = static(b'[{"ID": "a", "Addr": "192.0.2.1"}]')[0]
    provider = StaticProvider(lambda: b"[]")
    with pytest.raises(ProviderRefused, match="no entry with the ID 'a'"):
        provider.create_machine(capacity, UUID(int=1), deadline)
    with pytest.raises(MachineNotFound, match="'a'"):
        provider.get_machine(capacity.provider_id, deadline)


@pytest.mark.parametrize(
    ("source", "accepted"),
    [
        *[(source, True) for source in ("pxe", "http://192.0.2.1/image.iso", "nfs://192.0.2.1/images/image.iso")],
        *[(source, False) for source in ("PXE", "hdd", "/image.iso", "https://u:password@192.0.2.1/a", "http://a b")],
    ],
)
def test_a_machine_reinstalls_from_the_network_or_an_image(source: str, accepted: bool) -> None:
    """It is the BMC that fetches the image, so any URL that it understands will do; no setting holds a password."""
    with does_not_raise() if accepted else pytest.raises(ValidationError):
        RedfishSettings(machines="x", reinstall=source)
