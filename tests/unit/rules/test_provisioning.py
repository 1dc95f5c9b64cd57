"""What the Provisioner decides, as tables of rules: a listing and a ledger go in, a plan comes out."""

from dataclasses import replace
from ipaddress import IPv4Address
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shepherd_core.domain.errors import DriftLimitExceeded
from shepherd_core.domain.errors.provider import ListingInvalid
from shepherd_core.domain.machine import INVALID, Availability, Machine, ProviderId, ProviderStatus
from shepherd_core.domain.records import Intent, Ledger, Provided
from shepherd_core.rules.provisioning import Creation, PlanLimits, ProvisioningPlan, make_plan

LIMITS = PlanLimits(max_machines=0, chunk=20, drift_limit=3, assimilate=False, abandon_seconds=3600)
FAILED = ProviderStatus.PROVISIONING_FAILED_PERMANENT


def uuid(number: int) -> UUID:
    """Return the machine id, or token, with this number."""
    return UUID(int=number)


def in_use(name: str, *, on: str | None = None, token: int | None = None, failed: bool = False) -> Machine:
    """Return a deployed machine as a provider lists it that keeps a record of use."""
    return Machine(
        provider_id=ProviderId(name),
        availability=Availability.KNOWN_USED,
        address=IPv4Address("192.0.2.1"),
        reservation_id=on,
        token=None if token is None else uuid(token),
        failed=failed,
    )


def capacity(name: str | None, *, failed: bool = False) -> Machine:
    """Return unused capacity as a provider lists it that sells reservations."""
    return Machine(provider_id=INVALID, availability=Availability.KNOWN_UNUSED, reservation_id=name, failed=failed)


def entry(name: str, *, failed: bool = False) -> Machine:
    """Return a machine as a provider lists it that keeps no record of use."""
    return Machine(provider_id=ProviderId(name), availability=Availability.POSSIBLY_USED, failed=failed)


def known(name: str, machine: int, *, status: ProviderStatus | None = None, set_aside: bool = False) -> Provided:
    """Return a machine of the BMDB."""
    return Provided(uuid(machine), ProviderId(name), status=status, set_aside=set_aside)


def plan(*listing: Machine, ledger: Ledger | None = None, **limits: Any) -> ProvisioningPlan:
    """Return what is to be done, with the settings that a test does not name as they are by default."""
    return make_plan(listing, ledger or Ledger(), replace(LIMITS, **limits))


def created(found: ProvisioningPlan) -> list[str | None]:
    """Return the names of the capacity that machines are to be created on."""
    return [creation.capacity.capacity_id for creation in found.create]


# --- which machines are in use ---


@pytest.mark.parametrize(
    ("machine", "provided", "used"),
    [
        pytest.param(in_use("a"), True, True, id="KnownUsed stays"),
        pytest.param(replace(entry("a"), availability=Availability.KNOWN_UNUSED), False, False, id="KnownUnused stays"),
        pytest.param(entry(str(INVALID)), False, False, id="PossiblyUsed without an id is unused"),
        pytest.param(entry("a"), False, False, id="PossiblyUsed and not in the BMDB is unused"),
        pytest.param(entry("a"), True, True, id="PossiblyUsed and in the BMDB is used"),
    ],
)
def test_the_bmdb_decides_about_possibly_used_machines(machine: Machine, provided: bool, used: bool) -> None:
    """Taken for unused, a machine would be created twice; taken for used, capacity would stay idle."""
    ledger = Ledger(provided=(known("a", 1),)) if provided else Ledger()
    found = plan(machine, ledger=ledger)
    assert found.create == (() if used else (Creation(machine, None),))
    assert found.drift == ()


@pytest.mark.parametrize(
    ("provider_id", "availability"),
    [("a", "Rented"), ("a", ""), ("a", None), (INVALID, Availability.KNOWN_USED)],
    ids=["unheard of", "empty", "none at all", "in use without an id"],
)
def test_an_availability_that_cannot_be_fails_the_invocation(provider_id: ProviderId, availability: Any) -> None:
    """An invalid entry makes the listing unreliable; the error must name the entry."""
    machine = replace(in_use(provider_id), availability=availability)
    with pytest.raises(ListingInvalid) as caught:
        plan(capacity("r"), machine)
    for wanted in (machine.provider_id, "192.0.2.1", repr(machine.availability)):
        assert wanted in str(caught.value)


def test_a_machine_in_use_without_an_id_fails_any_listing() -> None:
    """A listing that holds nothing else is read in a shorter way."""
    with pytest.raises(ListingInvalid, match="lists invalid at"):
        plan(in_use("a"), in_use(str(INVALID)), in_use("b"))


@pytest.mark.parametrize(
    "listing",
    [
        (in_use("a"), in_use("a")),
        (in_use("a"), entry("a")),
        (entry("a"), entry("a")),
        (capacity("a"), capacity("a")),
        (capacity("a"), replace(capacity("a"), provider_id=ProviderId("b"))),
    ],
    ids=["in use twice", "in use and perhaps not", "an entry twice", "capacity twice", "capacity under two ids"],
)
def test_a_listing_that_names_something_twice_is_refused(listing: tuple[Machine, ...]) -> None:
    """One of the two would be created on twice, or compared with the wrong row."""
    with pytest.raises(ListingInvalid, match="a more than once"):
        plan(capacity("r"), *listing)


def test_capacity_without_a_name_may_be_listed_any_number_of_times() -> None:
    """A provider that sells machines by number does not tell one from the other."""
    assert created(plan(capacity(None), capacity(None))) == [None, None]


def test_nothing_is_created_on_capacity_that_a_listed_machine_occupies() -> None:
    """What a provider says of its capacity is often older than what it says of the machine on it."""
    found = plan(capacity("r1"), capacity("r2"), in_use("a", on="r1"), ledger=Ledger(provided=(known("a", 1),)))
    assert created(found) == ["r2"]


# --- differences ---


def test_an_unknown_machine_in_use_is_a_difference_and_nothing_is_done_about_it() -> None:
    """It may be somebody's production machine."""
    assert plan(in_use("a")) == ProvisioningPlan(managed=1, drift=("a is in use at the provider and not in the BMDB",))


def test_a_missing_machine_is_a_difference_and_is_set_aside() -> None:
    """The loops would try in vain to reach it; the rest of the fleet goes on."""
    missing, present = known("gone", 1), known("here", 2)
    found = plan(in_use("here"), capacity("r"), ledger=Ledger(provided=(missing, present)))
    assert found.set_aside == (missing,)
    assert found.drift == (f"gone (machine {uuid(1)}) is in the BMDB and not in use at the provider",)
    assert created(found) == ["r"]


GONE = replace(in_use("gone", failed=True), status=ProviderStatus.MISSING)


def test_machines_listed_as_missing_are_set_aside_and_stop_no_pass() -> None:
    """Somebody terminated them. There is no doubt which side is right, so any number of them explains itself."""
    ledger = Ledger(provided=tuple(known(f"gone {number}", number) for number in range(5)))
    listing = [replace(GONE, provider_id=provided.provider_id) for provided in ledger.provided]
    found = plan(*listing, capacity("r"), ledger=ledger, drift_limit=1)
    assert found.set_aside == ledger.provided
    assert len(found.drift) == 5
    assert created(found) == ["r"]
    with pytest.raises(DriftLimitExceeded):
        plan(*listing, ledger=ledger, drift_limit=0)  # every difference


def test_a_machine_that_the_provider_says_is_gone_stays_set_aside() -> None:
    """To be listed as missing is not to be back."""
    found = plan(GONE, ledger=Ledger(provided=(known("gone", 1, set_aside=True),)))
    assert (found.take_back, found.set_aside) == ((), ())


def test_a_young_machine_that_the_provider_says_is_gone_is_set_aside_at_once() -> None:
    """A listing may lag behind a creation, but it does not invent an end."""
    young = replace(known("gone", 1), age_seconds=1)
    assert plan(GONE, ledger=Ledger(provided=(young,))).set_aside == (young,)


def test_an_unknown_machine_that_is_gone_is_no_difference() -> None:
    """It is not ours any more."""
    assert plan(GONE) == ProvisioningPlan()


def test_a_machine_that_is_listed_as_unused_is_missing_too() -> None:
    """Somebody released it. As long as the BMDB has its id, no other machine can be recorded under that id."""
    machine = replace(entry("a"), availability=Availability.KNOWN_UNUSED)
    found = plan(machine, ledger=Ledger(provided=(known("a", 1),)))
    assert [provided.provider_id for provided in found.set_aside] == ["a"]
    assert found.create == ()


@pytest.mark.parametrize(("age", "missed"), [(600, 0), (601, 1)])
def test_a_recently_created_machine_is_not_reported_missing(age: float, missed: int) -> None:
    """Listings lag; a chunk of new machines would look like a fleet that vanished."""
    young = replace(known("a", 1), age_seconds=age)
    assert len(plan(ledger=Ledger(provided=(young,))).set_aside) == missed


@pytest.mark.parametrize(
    ("listing", "changes", "again"),
    [
        pytest.param((), {"age_seconds": 600}, [], id="not listed yet"),
        pytest.param((), {"age_seconds": 601}, ["fleet/1"], id="vanished"),
        pytest.param((), {"age_seconds": 60, "released_seconds": 1}, ["fleet/1"], id="released"),
        pytest.param((GONE,), {"age_seconds": 60}, ["fleet/1"], id="ended"),
    ],
)
def test_a_slot_whose_machine_is_not_listed_yet_gets_no_second_one(
    listing: tuple[Machine, ...], changes: Any, again: list[str]
) -> None:
    """Only the machines say which slots are taken: while the listing lags, another one would be paid for."""
    provided = replace(known("gone", 1), reservation_id="fleet/1", **changes)
    assert created(plan(capacity("fleet/1"), *listing, ledger=Ledger(provided=(provided,)))) == again


def test_machines_set_aside_before_stop_no_pass() -> None:
    """A fleet loses machines one by one over the years; what is known of must not add up to a discrepancy."""
    gone = [known(f"gone{number}", number, set_aside=True) for number in range(9)]
    new = [known(f"new{number}", 10 + number) for number in range(4)]
    listing, capacity_left = [in_use("a")], capacity("r1")
    ledger = Ledger(provided=(known("a", 99), *gone, *new[:3]))
    assert created(plan(*listing, capacity_left, ledger=ledger)) == ["r1"]
    with pytest.raises(DriftLimitExceeded):
        plan(*listing, capacity_left, ledger=replace(ledger, provided=(*ledger.provided, new[3])))
    with pytest.raises(DriftLimitExceeded):
        plan(*listing, ledger=Ledger(provided=(known("a", 99), gone[0])), drift_limit=0)


def test_missing_quarantined_machines_stop_no_pass() -> None:
    """What is broken goes missing more often than the rest, and no loop touches it anyway."""
    gone = tuple(replace(known(f"m{number}", number), quarantined=True) for number in range(5))
    found = plan(ledger=Ledger(gone), drift_limit=1)
    assert (len(found.drift), found.set_aside) == (5, ())


def test_a_quarantined_machine_that_is_back_stays_set_aside() -> None:
    """What was wrong with it is still to be looked at by somebody."""
    machine = replace(known("a", 1, set_aside=True), quarantined=True)
    assert plan(in_use("a"), ledger=Ledger((machine,))).take_back == ()


def test_an_abandoned_intent_does_not_count() -> None:
    """There is no machine of it, and there will be none."""
    intents = (Intent(uuid(1), "r1", 7200), Intent(uuid(2), "r2", 0))
    found = plan(ledger=Ledger(intents=intents))
    assert (found.abandon, found.managed) == (intents[:1], 1)


def test_a_machine_that_is_still_missing_is_not_set_aside_again() -> None:
    """It stays a difference, for people to see, until it is back."""
    found = plan(ledger=Ledger(provided=(known("gone", 1, set_aside=True),)))
    assert found.set_aside == found.take_back == ()
    assert len(found.drift) == 1


@pytest.mark.parametrize("machine", [in_use("a"), in_use("a", failed=True), entry("a")])
def test_a_machine_that_is_back_is_taken_back(machine: Machine) -> None:
    """No other command or loop ends the Provisioner's pause."""
    aside = known("a", 1, set_aside=True)
    assert plan(machine, ledger=Ledger(provided=(aside, known("b", 2))), drift_limit=1).take_back == (aside,)


@pytest.mark.parametrize(
    ("listing", "ledger"),
    [
        pytest.param((in_use("a", failed=True),), Ledger(), id="at the provider alone"),
        pytest.param((), Ledger(provided=(known("a", 1, status=FAILED),)), id="in the BMDB alone"),
        pytest.param((in_use("a", failed=True),), Ledger(provided=(known("a", 1),)), id="on both sides"),
    ],
)
@pytest.mark.parametrize("assimilate", [False, True])
def test_a_failed_machine_is_no_difference(listing: tuple[Machine, ...], ledger: Ledger, assimilate: bool) -> None:
    """Providers give machines up and clean them away as they like; that says nothing about the others."""
    found = plan(*listing, ledger=ledger, drift_limit=0, assimilate=assimilate)
    assert found == ProvisioningPlan(managed=1)  # it counts as long as it exists


def test_failed_capacity_is_not_used() -> None:
    """Neither for a new machine nor for one that was begun there."""
    ledger = Ledger(intents=(Intent(uuid(1), "r2"),))
    assert (
        plan(capacity("r1", failed=True), capacity("r2", failed=True), entry("e", failed=True), ledger=ledger).create
        == ()
    )


@pytest.mark.parametrize(
    ("fleet", "drift_limit", "tolerated"),
    [
        (10, 0, 0),  # any difference stops the invocation
        (1000, 0, 0),  # also in a large fleet
        (10, 1, 1),
        (10, 3, 3),
        (399, 3, 3),
        (400, 3, 4),  # a hundredth of a large fleet
        (1000, 3, 10),
    ],
)
def test_more_differences_than_are_tolerated_stop_the_invocation(fleet: int, drift_limit: int, tolerated: int) -> None:
    """A wrong project, prefix or database shows as many differences at once; then nothing may be touched."""
    provided = tuple(known(f"m{number}", number) for number in range(fleet))
    listing = [in_use(each.provider_id) for each in provided]
    strangers = [in_use(f"stranger-{number}") for number in range(tolerated + 1)]
    ledger = Ledger(provided=provided)
    assert len(plan(*listing, *strangers[1:], ledger=ledger, drift_limit=drift_limit).drift) == tolerated
    with pytest.raises(DriftLimitExceeded) as caught:
        plan(*listing, *strangers, ledger=ledger, drift_limit=drift_limit)
    assert len(caught.value.drift) == tolerated + 1


def test_a_discrepancy_names_every_machine_of_both_sides() -> None:
    """The operator must see the cause."""
    with pytest.raises(DriftLimitExceeded) as caught:
        plan(in_use("x"), in_use("y"), ledger=Ledger(provided=(known("p", 1), known("q", 2))))
    assert [text.split()[0] for text in caught.value.drift] == ["p", "q", "x", "y"]
    assert all(text in str(caught.value) for text in caught.value.drift)


def test_an_empty_listing_of_a_fleet_stops_the_invocation() -> None:
    """A provider whose credential lost its project lists nothing."""
    with pytest.raises(DriftLimitExceeded):
        plan(ledger=Ledger(provided=tuple(known(f"m{number}", number) for number in range(4))))


# --- creations that were begun ---


def test_a_machine_that_carries_a_known_token_is_adopted() -> None:
    """The invocation that created it was killed before it could say so."""
    intent, machine = Intent(uuid(7), "r1"), in_use("a", on="r1", token=7)
    assert plan(machine, ledger=Ledger(intents=(intent,)), drift_limit=0) == ProvisioningPlan(
        complete=((intent, machine),), managed=1
    )


def test_a_machine_that_failed_is_adopted_too() -> None:
    """Otherwise it would stay unknown and occupy capacity."""
    intent, machine = Intent(uuid(7), "r1"), in_use("a", on="r1", token=7, failed=True)
    assert plan(machine, ledger=Ledger(intents=(intent,)), drift_limit=0).complete == ((intent, machine),)


def test_an_unknown_token_is_not_adopted() -> None:
    """Its intent was given up, or it is another deployment's."""
    found = plan(in_use("a", token=9), ledger=Ledger(intents=(Intent(uuid(7), None),)))
    assert found.complete == ()
    assert found.drift == (f"a is in use at the provider and not in the BMDB, which never issued its token {uuid(9)}",)


def test_two_machines_with_one_token_are_both_disputed() -> None:
    """One of them was not created by us, and nothing says which; the intent waits until somebody has decided."""
    intent = Intent(uuid(7), "r1", age_seconds=10_000)
    listing = in_use("a", on="r1", token=7), in_use("b", on="r2", token=7)
    found = plan(*listing, ledger=Ledger(intents=(intent,)))
    assert found == ProvisioningPlan(
        managed=2,  # one of them is what was begun
        drift=(
            f"a carries the token {uuid(7)}, and so does b",
            f"b carries the token {uuid(7)}, and so does a",
        ),
    )
    decided = plan(listing[0], ledger=Ledger(intents=(intent,)))
    assert decided.complete == ((intent, listing[0]),)


def test_a_second_machine_with_the_token_of_a_provided_one_is_disputed() -> None:
    """It is an unwanted copy."""
    found = plan(in_use("a", token=1), in_use("b", token=1), ledger=Ledger(provided=(known("a", 1),)), assimilate=True)
    assert found == ProvisioningPlan(managed=2, drift=(f"b carries the token {uuid(1)}, and so does a",))


def test_a_creation_that_was_interrupted_is_repeated_with_its_old_token() -> None:
    """A new token would make a second machine, if the first call had its effect after all."""
    intent = Intent(uuid(7), "r2", age_seconds=10_000)
    found = plan(capacity("r1"), capacity("r2"), ledger=Ledger(intents=(intent,)))
    assert found.create == (Creation(capacity("r2"), intent), Creation(capacity("r1"), None))
    assert found.abandon == ()


def test_penalized_capacity_waits() -> None:
    """It has just failed, as the next try would; others wait behind it."""
    intent = Intent(uuid(7), "r2", age_seconds=10_000)
    ledger = Ledger(intents=(intent,), penalized=frozenset({"r1", "r2"}))
    found = plan(capacity("r1"), capacity("r2"), capacity("r3"), ledger=ledger)
    assert created(found) == ["r3"]
    assert found.abandon == ()


@pytest.mark.parametrize(
    ("listing", "age", "forgotten"),
    [
        pytest.param((), 3600, False, id="not offered, young"),
        pytest.param((), 3601, True, id="not offered, old"),
        pytest.param((in_use("other", on="r1", failed=True),), 0, True, id="taken by another, young"),
        pytest.param((capacity("r1"),), 1_000_000, False, id="offered: it is repeated instead"),
    ],
)
def test_an_intent_that_cannot_succeed_is_abandoned(listing: tuple[Machine, ...], age: float, forgotten: bool) -> None:
    """It would count towards the limit without end; but a provider may show a new machine late."""
    intent = Intent(uuid(7), "r1", age_seconds=age)
    assert plan(*listing, ledger=Ledger(intents=(intent,))).abandon == ((intent,) if forgotten else ())


def test_an_intent_without_a_capacity_id_is_abandoned_by_age_alone() -> None:
    """Nothing tells whether it is offered; its token, if it was created, is in the listing."""
    young, old = Intent(uuid(1), None, age_seconds=1), Intent(uuid(2), None, age_seconds=3601)
    found = plan(capacity(None), in_use("a"), ledger=Ledger(intents=(young, old)))
    assert found.abandon == (old,)
    assert found.create == (Creation(capacity(None), None),)


# --- limits ---

CAPACITY = tuple(capacity(f"r{number}") for number in range(9))


@pytest.mark.parametrize(
    ("max_machines", "chunk", "provided", "intents", "number"),
    [
        (0, 20, 0, 0, 9),  # no limit
        (4, 20, 0, 0, 4),
        (4, 20, 3, 0, 1),
        (4, 20, 4, 0, 0),
        (4, 20, 6, 0, 0),  # the limit was lowered
        (0, 3, 0, 0, 3),
        (4, 20, 1, 2, 1),  # what was begun counts
        (0, 20, 0, 2, 9),
    ],
)
def test_no_more_is_created_than_the_limits_allow(
    max_machines: int, chunk: int, provided: int, intents: int, number: int
) -> None:
    """The limit is what keeps a wrong setting from costing a fleet."""
    ledger = Ledger(
        provided=tuple(known(f"m{each}", each) for each in range(provided)),
        intents=tuple(Intent(uuid(100 + each), f"elsewhere-{each}") for each in range(intents)),
    )
    listing = *CAPACITY, *(in_use(each.provider_id) for each in ledger.provided)
    found = plan(*listing, ledger=ledger, max_machines=max_machines, chunk=chunk)
    assert len(found.create) == number
    assert found.managed == provided + intents


def test_creations_that_were_begun_come_first_and_count_towards_the_chunk() -> None:
    """Otherwise new ones would keep them waiting."""
    ledger = Ledger(intents=(Intent(uuid(1), "r8"), Intent(uuid(2), "r7")))
    assert created(plan(*CAPACITY, ledger=ledger, chunk=3)) == ["r8", "r7", "r0"]
    assert created(plan(*CAPACITY, ledger=ledger, chunk=1)) == ["r8"]


def test_a_started_creation_is_not_repeated_beyond_the_limit() -> None:
    """The limit may have been lowered since; it is kept for when there is room."""
    ledger = Ledger(provided=(known("a", 1), known("b", 2)), intents=(Intent(uuid(3), "r0"), Intent(uuid(4), "r1")))
    found = plan(*CAPACITY, in_use("a"), in_use("b"), ledger=ledger, max_machines=3)
    assert created(found) == ["r0"]
    assert found.abandon == ()


@pytest.mark.parametrize(
    ("max_machines", "chunk", "waiting"),
    [
        (0, 20, 0),  # no limit
        (0, 3, 0),  # what the next invocation does waits for no limit
        (13, 20, 0),
        (12, 20, 1),
        (12, 3, 1),
        (5, 20, 8),
        (3, 20, 9),  # the limit was lowered: what was begun waits too
    ],
)
def test_capacity_beyond_the_limit_is_counted(max_machines: int, chunk: int, waiting: int) -> None:
    """A fleet at its limit looks like one without capacity; the difference must be reported."""
    ledger = Ledger(
        provided=tuple(known(f"m{each}", each) for each in range(3)),
        intents=(Intent(uuid(100), "r0"), Intent(uuid(101), "elsewhere")),
    )
    listing = (*CAPACITY, capacity("broken", failed=True), *(in_use(each.provider_id) for each in ledger.provided))
    assert plan(*listing, ledger=ledger, max_machines=max_machines, chunk=chunk).waiting == waiting


def test_machines_that_would_be_assimilated_wait_for_the_limit_as_well() -> None:
    """Where that is switched off they are differences, and only the capacity waits."""
    listing = in_use("a"), in_use("b"), in_use("c"), capacity("r")
    assert plan(*listing, assimilate=True, max_machines=2).waiting == 2
    assert plan(*listing, assimilate=False, max_machines=1).waiting == 1


@pytest.mark.parametrize(("max_machines", "resumed", "fresh"), [(0, 1, 2), (6, 1, 2), (5, 1, 1), (4, 1, 0), (3, 0, 0)])
def test_machines_that_the_bmdb_does_not_know_count_towards_the_limit(
    max_machines: int, resumed: int, fresh: int
) -> None:
    """They exist and cost like any other, whoever lost their records; only what is gone does not."""
    ledger = Ledger(provided=(known("k", 1),), intents=(Intent(uuid(2), "r0"),))
    listing = in_use("k"), in_use("foreign", token=9), in_use("failed", failed=True), GONE, *CAPACITY[:3]
    found = plan(*listing, ledger=ledger, max_machines=max_machines)
    assert created(found) == ["r0", "r1", "r2"][: resumed + fresh]
    assert found.managed == 4


def test_capacity_is_used_in_the_order_of_its_names() -> None:
    """So that the next invocation, and a dry run, choose the same."""
    listing = capacity("c"), entry("b"), capacity("a")
    assert created(plan(*listing, chunk=2)) == created(plan(*reversed(listing), chunk=2)) == ["a", "b"]


# --- assimilation ---


def test_unknown_machines_are_assimilated_only_when_that_is_switched_on() -> None:
    """It makes every machine of the project ours."""
    stranger = in_use("a")
    assert plan(stranger).assimilate == ()
    assert plan(stranger, assimilate=True, drift_limit=0) == ProvisioningPlan(assimilate=(stranger,), managed=1)


def test_assimilation_keeps_to_the_limit_and_counts_towards_it() -> None:
    """A limit of machines to manage means all of them, wherever they come from."""
    ledger = Ledger(provided=(known("k", 1),))
    listing = in_use("k"), in_use("c"), in_use("b"), in_use("a"), capacity("r")
    found = plan(*listing, ledger=ledger, assimilate=True, max_machines=3)
    assert [machine.provider_id for machine in found.assimilate] == ["a", "b"]
    assert found.create == ()
    assert created(plan(*listing, ledger=ledger, assimilate=True, max_machines=5)) == ["r"]


# --- whatever comes ---

_ids = st.sampled_from("abcdefgh")
_tokens = st.one_of(st.none(), st.integers(0, 9))
_used = st.builds(in_use, _ids, on=st.one_of(st.none(), _ids), token=_tokens, failed=st.booleans())
_capacity = st.builds(capacity, st.one_of(st.none(), _ids), failed=st.booleans())
_listings = st.builds(
    lambda used, unused, entries: [*used, *unused, *entries],
    st.lists(_used, max_size=6, unique_by=lambda machine: machine.provider_id),
    st.lists(_capacity, max_size=6, unique_by=lambda machine: machine.reservation_id),
    st.lists(
        st.builds(entry, st.sampled_from("mnop"), failed=st.booleans()),
        max_size=4,
        unique_by=lambda machine: machine.provider_id,
    ),
)
_provided = st.builds(
    known,
    st.sampled_from("abcdmn"),
    st.integers(0, 4),
    status=st.sampled_from((None, FAILED, ProviderStatus.RUNNING)),
    set_aside=st.booleans(),
)
_intents = st.builds(
    Intent, st.integers(5, 9).map(uuid), st.one_of(st.none(), _ids), st.sampled_from((0.0, 3600.0, 3601.0))
)
_ledgers = st.builds(
    Ledger,
    st.lists(_provided, unique_by=(lambda each: each.machine_id, lambda each: each.provider_id)).map(tuple),
    st.lists(_intents, unique_by=lambda each: each.machine_id).map(tuple),
    st.frozensets(_ids, max_size=3),
)
_limits = st.builds(
    PlanLimits,
    max_machines=st.integers(0, 8),
    chunk=st.integers(1, 5),
    drift_limit=st.just(1000),
    assimilate=st.booleans(),
    abandon_seconds=st.just(3600.0),
)


@given(listing=_listings, ledger=_ledgers, limits=_limits, data=st.data())
def test_the_plan_does_not_depend_on_the_order_of_the_listing(
    listing: list[Machine], ledger: Ledger, limits: PlanLimits, data: st.DataObject
) -> None:
    """The order means nothing, and two invocations over the same facts must not pull in different directions."""
    shuffled = data.draw(st.permutations(listing))
    assert make_plan(shuffled, ledger, limits) == make_plan(listing, ledger, limits)


@given(listing=_listings, ledger=_ledgers, limits=_limits)
def test_a_plan_never_exceeds_the_limits(listing: list[Machine], ledger: Ledger, limits: PlanLimits) -> None:
    """Neither with what it creates nor with what it takes in; what was begun and waits keeps its place."""
    found = make_plan(listing, ledger, limits)
    fresh = sum(creation.intent is None for creation in found.create)
    assert len(found.create) <= limits.chunk
    if limits.max_machines:
        taken = {each.provider_id for each in ledger.provided}
        taken |= {machine.provider_id for _, machine in found.complete}
        taken |= {machine.provider_id for machine in found.assimilate}
        assert not found.assimilate or len(taken) <= limits.max_machines
        taken |= {each.provider_id for each in listing if each.availability is Availability.KNOWN_USED}
        assert not found.create or len(taken) + len(found.create) <= limits.max_machines
        assert not fresh or found.managed + fresh <= limits.max_machines


@given(listing=_listings, ledger=_ledgers, limits=_limits)
def test_waiting_is_the_difference_to_a_plan_without_the_limit(
    listing: list[Machine], ledger: Ledger, limits: PlanLimits
) -> None:
    """No more and no less; what the chunk leaves for the next invocation does not wait for the limit."""
    limited, free = (
        make_plan(listing, ledger, replace(limits, max_machines=limit, chunk=1000))
        for limit in (limits.max_machines, 0)
    )
    added, wanted = (len(found.assimilate) + len(found.create) for found in (limited, free))
    assert limited.waiting == wanted - added
    assert make_plan(listing, ledger, limits).waiting == limited.waiting


@given(listing=_listings, ledger=_ledgers, limits=_limits)
def test_a_plan_does_one_thing_at_most_with_each_machine_capacity_and_intent(
    listing: list[Machine], ledger: Ledger, limits: PlanLimits
) -> None:
    """Two machines on one capacity cannot be; an intent that is both repeated and forgotten makes an orphan."""
    found = make_plan(listing, ledger, limits)
    used = {each.provider_id: each for each in listing if each.availability is Availability.KNOWN_USED}
    known_ids = {each.provider_id for each in ledger.provided}

    names = [name for name in created(found) if name is not None]
    assert len(names) == len(set(names))
    assert not set(names) & (ledger.penalized | {machine.capacity_id for machine in used.values()})
    assert not {creation.capacity.provider_id for creation in found.create} & known_ids
    assert all(creation.capacity in listing and not creation.capacity.failed for creation in found.create)

    resumed = [creation.intent for creation in found.create if creation.intent is not None]
    touched = [*resumed, *found.abandon, *(intent for intent, _ in found.complete)]
    assert len(touched) == len(set(touched))
    assert set(touched) <= set(ledger.intents)
    begun = {intent.capacity_id for intent in ledger.intents}
    assert all(
        creation.intent or creation.capacity.capacity_id is None or creation.capacity.capacity_id not in begun
        for creation in found.create
    )

    taken = [machine.provider_id for _, machine in found.complete] + [
        machine.provider_id for machine in found.assimilate
    ]
    assert len(taken) == len(set(taken))
    assert not set(taken) & known_ids
    assert all(machine.token == intent.machine_id for intent, machine in found.complete)
    tokens = [machine.token for machine in used.values() if machine.provider_id not in known_ids]
    assert all(tokens.count(machine.token) == 1 for _, machine in found.complete)
    assert not {intent.machine_id for intent in (*resumed, *found.abandon)} & set(tokens)


@given(listing=_listings, ledger=_ledgers, limits=_limits)
def test_every_machine_is_accounted_for(listing: list[Machine], ledger: Ledger, limits: PlanLimits) -> None:
    """A machine that is neither known, taken in nor named would never be noticed."""
    found = make_plan(listing, ledger, replace(limits, max_machines=0))
    told = {text.split()[0] for text in found.drift}
    known_ids = {each.provider_id for each in ledger.provided}
    taken = {machine.provider_id for _, machine in found.complete} | {
        machine.provider_id for machine in found.assimilate
    }
    for machine in listing:
        if machine.availability is Availability.KNOWN_USED and not machine.failed:
            assert (machine.provider_id in known_ids) + (machine.provider_id in taken) + (
                machine.provider_id in told
            ) == 1
    present = {each.provider_id for each in listing if each.availability is not Availability.KNOWN_UNUSED}
    for provided in ledger.provided:
        missing = provided.provider_id not in present and provided.status is not FAILED
        assert (provided.provider_id in told) == missing
        assert (provided in found.set_aside) == (missing and not provided.set_aside)
        assert (provided in found.take_back) == (provided.set_aside and provided.provider_id in present)
