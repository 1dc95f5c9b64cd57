"""What the Updater finds to be otherwise: a pure function of a listing and of what is on record."""

from dataclasses import fields, replace
from ipaddress import ip_address
from typing import Any
from uuid import UUID

import pytest
from shepherd_core.bmdb.listings.provider_facts import KnownMachine, ProviderFacts
from shepherd_core.domain.errors.provider import ListingInvalid
from shepherd_core.domain.machine import INVALID, Availability, Machine, ProviderId, ProviderStatus
from shepherd_core.loops.updater import changes
from shepherd_core.rules.drift import YOUNG_SECONDS

OLD = YOUNG_SECONDS + 1
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


def test_recorded_facts_are_no_change() -> None:
    assert changes([MACHINE], [known()]) == []


@pytest.mark.parametrize(
    ("listed", "on_record"),
    [
        ({"reservation_id": "r2"}, {"reservation_id": "r2"}),
        ({"reservation_id": None}, {"reservation_id": None}),
        ({"address": ip_address("2001:db8::1")}, {"address": "2001:db8::1"}),
        ({"address": None}, {"address": None}),
        ({"location": "fra"}, {"location": "fra"}),
        ({"location": None}, {"location": None}),
        ({"status": ProviderStatus.STOPPED}, {"status": ProviderStatus.STOPPED}),
        ({"status": ProviderStatus.UNKNOWN}, {"status": ProviderStatus.UNKNOWN}),
        ({"status": ProviderStatus.MISSING}, {"status": ProviderStatus.MISSING}),
        ({"labels": {"role": "web", "gpu": ""}}, {"labels": {"role": "web", "gpu": ""}}),
        ({"labels": {}}, {"labels": {}}),
    ],
)
def test_listed_facts_are_recorded(listed: dict[str, Any], on_record: dict[str, Any]) -> None:
    """Also that there is nothing to say any more: an address that is gone leads to somebody else's machine one day."""
    assert now([replace(MACHINE, **listed)], known()) == {"a": replace(UP, **on_record)}


def test_a_machine_without_record_gets_all_of_it() -> None:
    assert now([MACHINE], known(ProviderFacts(None, None, None, None, None, None, {}))) == {"a": UP}


@pytest.mark.parametrize("availability", [Availability.KNOWN_USED, Availability.POSSIBLY_USED])
def test_a_usable_entry_is_the_machine_of_that_id(availability: Availability) -> None:
    """A list that somebody wrote does not say what is in use: the BMDB does."""
    assert now([replace(MACHINE, availability=availability, location="fra")], known()) == {
        "a": replace(UP, location="fra")
    }


@pytest.mark.parametrize(
    "listing",
    [
        [],
        [replace(MACHINE, provider_id=ProviderId("b"))],
        [replace(MACHINE, availability=Availability.KNOWN_UNUSED)],
        [replace(MACHINE, provider_id=INVALID, availability=Availability.KNOWN_UNUSED)],
    ],
    ids=["nothing", "another machine", "the machine as capacity", "its capacity"],
)
def test_a_machine_unused_at_the_provider_is_missing(listing: list[Machine]) -> None:
    """Where it was, and on which address, is what somebody who looks for it wants to know."""
    assert now(listing, known()) == {"a": replace(UP, status=ProviderStatus.MISSING)}


def test_a_missing_machine_that_is_listed_again_is_as_listed() -> None:
    assert now([MACHINE], known(replace(UP, status=ProviderStatus.MISSING))) == {"a": UP}


def test_a_young_machine_is_not_missed() -> None:
    assert now([], known(age_seconds=YOUNG_SECONDS)) == {}


def test_a_permanently_failed_machine_is_not_recorded_as_missing() -> None:
    """The Provisioner does not miss such machines; as merely missing, they would count as differences."""
    assert now([], known(replace(UP, status=ProviderStatus.PROVISIONING_FAILED_PERMANENT))) == {}


def test_machines_that_are_not_looked_at_are_left_alone() -> None:
    listing = [MACHINE, replace(MACHINE, provider_id=ProviderId("b"), location="fra")]
    assert now(listing, known(name="b")) == {"b": replace(UP, location="fra")}


@pytest.mark.parametrize(
    "listing",
    [
        [MACHINE, MACHINE],
        [MACHINE, replace(MACHINE, availability=Availability.KNOWN_UNUSED)],
        [MACHINE, replace(MACHINE, provider_id=INVALID)],
    ],
    ids=["a machine twice", "used and unused", "used without an id"],
)
def test_a_listing_that_contradicts_itself_is_refused(listing: list[Machine]) -> None:
    with pytest.raises(ListingInvalid):
        changes(listing, [known()])


def test_text_too_odd_for_the_database_changes_once() -> None:
    """One machine with an odd name must not stop the updates of others, nor be written in every invocation."""
    odd = replace(MACHINE, location="\0" + "x" * 200, reservation_id="\ud800")
    found = now([odd], known())
    assert found == {"a": replace(UP, location="?" + "x" * 127, reservation_id="?")}
    assert changes([odd], [known(found["a"])]) == []


def test_a_change_has_the_old_and_the_new_value() -> None:
    (change,) = changes([replace(MACHINE, address=None)], [known()])
    assert change.summary == {
        "machine_id": UUID(int=97),
        "provider_id": "a",
        "changed": {"address": ("192.0.2.1", None)},
    }
