"""What the list of machines with BMCs must look like, and what is said about one that does not."""

import json
from contextlib import nullcontext as does_not_raise
from typing import Any

import pytest
from pydantic import ValidationError
from shepherd_core.domain.errors.provider import ListingInvalid
from shepherd_core.providers.redfish.machine_list import redfish_list
from shepherd_core.settings.providers.redfish import RedfishSettings

GOOD = {
    "ID": "rack1-1",
    "Addr": "192.0.2.11",
    "Location": "Amsterdam",
    "Bmc": "https://192.0.2.111",
    "System": "/redfish/v1/Systems/1",
    "Credential": "/shepherd/bmc/rack1",
    "Fingerprint": "ab" * 32,
}
LEAST = {"ID": "rack1-2", "Addr": "192.0.2.12", "Bmc": "https://bmc2.example:8443/", "Credential": "bmc2"}

PRINTED = {"Fingerprint": ":".join(["aB"] * 32)}


def parse(*entries: object) -> list[Any]:
    return redfish_list(lambda: b"").parse(json.dumps(entries).encode())


def test_optional_fields_may_be_left_out() -> None:
    """A fingerprint is taken as tools print it."""
    full, least, other = parse(GOOD, LEAST, {**LEAST, "ID": "c", "Addr": "192.0.2.13", "Bmc": "https://c", **PRINTED})
    assert full["System"] == "/redfish/v1/Systems/1"
    assert least["Bmc"] == "https://bmc2.example:8443"
    assert {"System", "Fingerprint"}.isdisjoint(least)
    assert full["Fingerprint"] == other["Fingerprint"] == "ab" * 32


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("Bmc", "http://192.0.2.111"),
        ("Bmc", "192.0.2.111"),
        ("Bmc", "https://"),
        ("Bmc", "https://192.0.2.111/redfish/v1"),
        ("Bmc", "https://192.0.2.111?a=1"),
        ("Bmc", "https://user:password@192.0.2.111"),
        ("Bmc", "https://192.0.2.111:99999"),
        ("Bmc", "https://[::1"),
        ("Bmc", "https://a b"),
        ("Bmc", "https://b\N{LATIN SMALL LETTER U WITH DIAERESIS}.example"),
        ("Bmc", 5),
        ("System", "redfish/v1/Systems/1"),
        ("System", "/redfish/v1/Systems/a b"),
        ("System", "/"),
        ("System", ["/redfish/v1/Systems/1"]),
        ("Credential", ""),
        ("Credential", "root:calvin"),
        ("Fingerprint", "ab" * 20),
        ("Fingerprint", "xy" * 32),
        ("Fingerprint", True),
        ("Password", "calvin"),
    ],
)
def test_a_faulty_field_is_refused_with_entry_field_and_value(field: str, value: object) -> None:
    with pytest.raises(ListingInvalid) as raised:
        parse(LEAST, {**GOOD, field: value})
    assert "entry 1: " in str(raised.value)
    assert f"{field} is {value!r}" in str(raised.value) or f"{field!r} is {value!r}" in str(raised.value)
    assert str(raised.value).count("entry") == 1


def test_all_faults_are_reported_at_once() -> None:
    with pytest.raises(ListingInvalid) as raised:
        parse({**GOOD, "Addr": "x", "Fingerprint": "y"}, {"ID": "a"}, 7, {**GOOD, "ID": "b", "Addr": "192.0.2.13"})
    told = [line.strip(" -") for line in str(raised.value).splitlines()[1:]]
    assert [line.split(";")[0] for line in told] == [
        "entry 0: Addr is 'x'",
        "entry 0: Fingerprint is 'y'",
        "entry 1: Addr is missing",
        "entry 1: Bmc is missing",
        "entry 1: Credential is missing",
        "entry 2 is 7",
        "entry 3: Bmc 'https://192.0.2.111' is that of entry 0 too",
    ]
    assert "it must be an object with ID, Addr, Bmc and Credential" in told[5]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (GOOD["System"], GOOD["System"]),
        (None, None),
        (GOOD["System"], None),
        (None, GOOD["System"]),
        (GOOD["System"], f"{GOOD['System']}/"),
    ],
)
@pytest.mark.parametrize("bmc", ["https://192.0.2.111", "https://192.0.2.111/", "HTTPS://192.0.2.111:443"])
def test_no_two_entries_may_mean_one_system(one: str | None, other: str | None, bmc: str) -> None:
    first = {**GOOD, "System": one}
    second = {**LEAST, "Bmc": bmc, "System": other}
    with pytest.raises(
        ListingInvalid, match=r"entry 1: Bmc .* is that of entry 0 too; each of them must have a System of its own"
    ):
        parse(*({name: value for name, value in entry.items() if value is not None} for entry in (first, second)))


def test_systems_of_one_bmc_are_distinguished() -> None:
    """A chassis with blades has one BMC for all of them; with two spellings, one machine could be taken for two."""
    assert len(parse(GOOD, {**LEAST, "Bmc": GOOD["Bmc"], "System": "/redfish/v1/Systems/2"})) == 2
    spellings = ("https://[2001:db8::1]", "https://[2001:DB8:0:0::1]:443/")
    with pytest.raises(ListingInvalid, match=r"is that of entry 0 too"):
        parse(*({**LEAST, "ID": bmc, "Addr": f"192.0.2.{len(bmc)}", "Bmc": bmc} for bmc in spellings))


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
