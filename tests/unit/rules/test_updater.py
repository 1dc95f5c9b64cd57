from dataclasses import fields, replace
from ipaddress import ip_address
from typing import Any
from uuid import UUID

import pytest
from shepherd_core.bmdb.listings.provider_facts import KnownMachine, ProviderFacts
from shepherd_core.domain.machine import INVALID, Availability, Machine, ProviderId, ProviderStatus
from shepherd_core.loops.updater import changes
from shepherd_core.rules.drift import YOUNG_SECONDS

OLD = YOUNG_SECONDS + 1
FAILED, MISSING = ProviderStatus.PROVISIONING_FAILED_PERMANENT, ProviderStatus.MISSING
UP = ProviderFacts("r1", "192.0.2.1", "ams", ProviderStatus.RUNNING, None, "https://bmc1", {"role": "db"})
MACHINE = Machine(
    provider_id=ProviderId("a"),
    availability=Availability.KNOWN_USED,
    address=ip_address("192.0.2.1"),
    reservation_id="r1",
    location="ams",
    status=ProviderStatus.RUNNING,
    hardware="https://bmc1",
    labels={"role": "db"},
)


def known(facts: ProviderFacts = UP, name: str = "a", age_seconds: float = OLD) -> KnownMachine:
    was = {each.name: getattr(facts, each.name) for each in fields(ProviderFacts)}
    return KnownMachine(**was, machine_id=UUID(int=ord(name)), provider_id=ProviderId(name), age_seconds=age_seconds)


def now(listing: list[Machine], *on_record: KnownMachine) -> dict[str, ProviderFacts]:
    return {change.known.provider_id: change.now for change in changes(listing, on_record)}


@pytest.mark.parametrize(
    ("listed", "on_record"),
    [
        *(({"reservation_id": each}, {"reservation_id": each}) for each in ("r2", None)),
        ({"address": ip_address("2001:db8::1")}, {"address": "2001:db8::1"}),
        ({"address": None}, {"address": None}),
        *(({"location": each}, {"location": each}) for each in ("fra", None)),
        *(({"status": each}, {"status": each}) for each in (ProviderStatus.STOPPED, ProviderStatus.UNKNOWN, MISSING)),
        *(({"labels": each}, {"labels": each}) for each in ({"role": "web", "gpu": ""}, {})),
    ],
)
def test_listed_facts_are_recorded(listed: dict[str, Any], on_record: dict[str, Any]) -> None:
    """Also that there is nothing to say any more: an address that is gone leads to somebody else's machine one day."""
    assert now([replace(MACHINE, **listed)], known()) == {"a": replace(UP, **on_record)}


NOTHING = ProviderFacts(None, None, None, None, None, None, {})
MOVED = replace(MACHINE, location="fra")
OTHER = replace(MACHINE, provider_id=ProviderId("b"), location="fra")
UNUSED = replace(MACHINE, availability=Availability.KNOWN_UNUSED)
CASES: dict[str, tuple[list[Machine], KnownMachine, dict[str, ProviderFacts]]] = {
    "as on record": ([MACHINE], known(), {}),
    "nothing on record": ([MACHINE], known(NOTHING), {"a": UP}),
    "in use": ([MOVED], known(), {"a": replace(UP, location="fra")}),
    # A list that somebody wrote does not say what is in use: the BMDB does.
    "possibly in use": (
        [replace(MOVED, availability=Availability.POSSIBLY_USED)],
        known(),
        {"a": replace(UP, location="fra")},
    ),
    # Where it was, and on which address, is what somebody who looks for it wants to know.
    **{
        f"missing: {what}": (listing, known(), {"a": replace(UP, status=MISSING)})
        for what, listing in {
            "nothing": list[Machine](),
            "another machine": [OTHER],
            "the machine as capacity": [UNUSED],
            "its capacity": [replace(UNUSED, provider_id=INVALID)],
        }.items()
    },
    "missing and listed again": ([MACHINE], known(replace(UP, status=MISSING)), {"a": UP}),
    "young": ([], known(age_seconds=YOUNG_SECONDS), {}),
    # The Provisioner does not miss such machines; as merely missing, they would count as differences.
    "failed for good": ([], known(replace(UP, status=FAILED)), {}),
    "another that is not looked at": ([MOVED, OTHER], known(name="b"), {"b": replace(UP, location="fra")}),
}


@pytest.mark.parametrize(("listing", "on_record", "found"), CASES.values(), ids=CASES)
def test_a_listing_changes_what_differs(
    listing: list[Machine], on_record: KnownMachine, found: dict[str, ProviderFacts]
) -> None:
    assert now(listing, on_record) == found


def test_text_too_odd_for_the_database_changes_once() -> None:
    """One machine with an odd name must not stop the updates of others, nor be written in every invocation."""
    odd = replace(MACHINE, location="\0" + "x" * 200, reservation_id="\ud800")
    found = now([odd], known())
    assert found == {"a": replace(UP, location="?" + "x" * 127, reservation_id="?")}
    assert changes([odd], [known(found["a"])]) == []
