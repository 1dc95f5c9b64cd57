from dataclasses import replace
from ipaddress import IPv4Address
from typing import Any
from uuid import UUID

import pytest
from shepherd_core.domain.errors import DriftLimitExceeded
from shepherd_core.domain.errors.provider import ListingInvalid
from shepherd_core.domain.machine import INVALID, Availability, Machine, ProviderId, ProviderStatus
from shepherd_core.domain.records import Intent, Ledger, Provided
from shepherd_core.rules.provisioning import Creation, PlanLimits, ProvisioningPlan, make_plan

LIMITS = PlanLimits(max_machines=0, chunk=20, drift_limit=3, assimilate=False, abandon_seconds=3600)
FAILED = ProviderStatus.PROVISIONING_FAILED_PERMANENT


def uuid(number: int) -> UUID:
    return UUID(int=number)


def in_use(name: str = "a", *, on: str | None = None, token: int | None = None, **facts: Any) -> Machine:
    """Return a deployed machine as a provider lists it that keeps a record of use."""
    machine = Machine(
        provider_id=ProviderId(name),
        availability=Availability.KNOWN_USED,
        address=IPv4Address("192.0.2.1"),
        reservation_id=on,
        token=None if token is None else uuid(token),
    )
    return replace(machine, **facts)


def capacity(name: str | None, *, failed: bool = False) -> Machine:
    """Return unused capacity as a provider lists it that sells reservations."""
    return Machine(provider_id=INVALID, availability=Availability.KNOWN_UNUSED, reservation_id=name, failed=failed)


def entry(name: str, *, failed: bool = False, availability: Availability = Availability.POSSIBLY_USED) -> Machine:
    """Return a machine as a provider lists it that keeps no record of use."""
    return Machine(provider_id=ProviderId(name), availability=availability, failed=failed)


def known(name: str = "a", machine: int = 1, **facts: Any) -> Provided:
    return replace(Provided(uuid(machine), ProviderId(name)), **facts)


def plan(*listing: Machine, ledger: Ledger | None = None, **limits: Any) -> ProvisioningPlan:
    return make_plan(listing, ledger or Ledger(), replace(LIMITS, **limits))


def created(found: ProvisioningPlan) -> list[str | None]:
    return [creation.capacity.capacity_id for creation in found.create]


GONE = replace(in_use("gone", failed=True), status=ProviderStatus.MISSING)
NOT_OURS, NOT_THERE = "is in use at the provider and not in the BMDB", "is in the BMDB and not in use at the provider"
TOKEN = uuid(7)
BEGUN, OLD = Intent(TOKEN, "r1"), Intent(TOKEN, "r1", age_seconds=10_000)
MADE = in_use("a", on="r1", token=7)
LOST, ASIDE = known("gone", 1), known("gone", 1, set_aside=True)
BACK = known("a", 1, set_aside=True)
NAMELESS, UNUSED = entry(str(INVALID)), entry("a", availability=Availability.KNOWN_UNUSED)


def lost(provided: Provided) -> str:
    return f"{provided.provider_id} (machine {provided.machine_id}) {NOT_THERE}"


def have(*provided: Provided, **facts: Any) -> Ledger:
    return Ledger(provided=provided, **facts)


def on(*names: str | None) -> tuple[Creation, ...]:
    return tuple(Creation(capacity(name), None) for name in names)


TWINS = tuple(f"{one} carries the token {TOKEN}, and so does {other}" for one, other in ("ab", "ba"))
COUNTED = ProvisioningPlan(managed=1)  # nothing is done, but it counts as long as it exists
PLANS: dict[str, tuple[ProvisioningPlan, ProvisioningPlan]] = {
    "KnownUsed and in the BMDB": (plan(in_use("a"), ledger=have(known("a", 1))), COUNTED),
    "KnownUnused": (plan(UNUSED), ProvisioningPlan(create=(Creation(UNUSED, None),))),
    "PossiblyUsed without an id": (plan(NAMELESS), ProvisioningPlan(create=(Creation(NAMELESS, None),))),
    "PossiblyUsed and not in the BMDB": (plan(entry("a")), ProvisioningPlan(create=(Creation(entry("a"), None),))),
    "PossiblyUsed and in the BMDB": (plan(entry("a"), ledger=have(known("a", 1))), COUNTED),
    "capacity without a name": (plan(capacity(None), capacity(None)), ProvisioningPlan(create=on(None, None))),
    "capacity that a listed machine occupies": (
        plan(capacity("r1"), capacity("r2"), in_use("a", on="r1"), ledger=have(known("a", 1))),
        ProvisioningPlan(create=on("r2"), managed=1),
    ),
    "failed capacity": (
        plan(
            capacity("r1", failed=True),
            capacity("r2", failed=True),
            entry("e", failed=True),
            ledger=Ledger(intents=(Intent(uuid(1), "r2"),)),
        ),
        COUNTED,
    ),
    "penalized capacity": (
        plan(*map(capacity, ("r1", "r2", "r3")), ledger=Ledger(intents=(OLD,), penalized=frozenset({"r1", "r2"}))),
        ProvisioningPlan(create=on("r3"), managed=1),
    ),
    "the chunk, in the order of names": (
        plan(capacity("c"), entry("b"), capacity("a"), chunk=2),
        ProvisioningPlan(create=(*on("a"), Creation(entry("b"), None)), spare=on("c")),
    ),
    "unknown": (plan(in_use("a")), ProvisioningPlan(managed=1, drift=(f"a {NOT_OURS}",))),
    "unknown, and to be assimilated": (
        plan(in_use("a"), assimilate=True, drift_limit=0),
        ProvisioningPlan(assimilate=(in_use("a"),), managed=1),
    ),
    "unknown and gone": (plan(GONE), ProvisioningPlan()),
    "missing beside another": (
        plan(in_use("here"), capacity("r"), ledger=have(LOST, known("here", 2))),
        ProvisioningPlan(set_aside=(LOST,), create=on("r"), managed=2, drift=(lost(LOST),)),
    ),
    "still missing": (plan(ledger=have(ASIDE)), ProvisioningPlan(managed=1, drift=(lost(ASIDE),))),
    "missing and quarantined": (
        plan(ledger=have(*(replace(known(name, 1), quarantined=True) for name in "xy")), drift_limit=1),
        ProvisioningPlan(managed=2, drift=tuple(lost(known(name, 1)) for name in "xy")),
    ),
    "young and listed as gone": (
        plan(GONE, ledger=have(replace(LOST, age_seconds=1))),
        ProvisioningPlan(set_aside=(replace(LOST, age_seconds=1),), managed=1, drift=(lost(LOST),)),
    ),
    "set aside and listed as gone": (plan(GONE, ledger=have(ASIDE)), ProvisioningPlan(managed=1, drift=(lost(ASIDE),))),
    "listed as unused": (
        plan(entry("gone", availability=Availability.KNOWN_UNUSED), ledger=have(LOST)),
        ProvisioningPlan(set_aside=(LOST,), managed=1, drift=(lost(LOST),)),
    ),
    "young and not listed": (plan(ledger=have(replace(LOST, age_seconds=600)), drift_limit=0), COUNTED),
    **{
        f"back: {machine.availability}, failed: {machine.failed}": (
            plan(machine, ledger=have(BACK)),
            ProvisioningPlan(take_back=(BACK,), managed=1),
        )
        for machine in (in_use("a"), in_use("a", failed=True), entry("a"))
    },
    "back and quarantined": (plan(in_use("a"), ledger=have(replace(BACK, quarantined=True))), COUNTED),
    **{
        f"failed {where}, assimilate: {assimilate}": (
            plan(*listing, ledger=ledger, drift_limit=0, assimilate=assimilate),
            COUNTED,
        )
        for assimilate in (False, True)
        for where, listing, ledger in (
            ("at the provider alone", (in_use("a", failed=True),), Ledger()),
            ("in the BMDB alone", (), have(known("a", 1, status=FAILED))),
            ("on both sides", (in_use("a", failed=True),), have(known("a", 1))),
        )
    },
    "created by a killed invocation": (
        plan(MADE, ledger=Ledger(intents=(BEGUN,)), drift_limit=0),
        ProvisioningPlan(complete=((BEGUN, MADE),), managed=1),
    ),
    "created by a killed invocation, and failed": (
        plan(replace(MADE, failed=True), ledger=Ledger(intents=(BEGUN,)), drift_limit=0),
        ProvisioningPlan(complete=((BEGUN, replace(MADE, failed=True)),), managed=1),
    ),
    "an unknown token": (
        plan(in_use("a", token=9), ledger=Ledger(intents=(Intent(TOKEN, None),))),
        ProvisioningPlan(managed=2, drift=(f"a {NOT_OURS}, which never issued its token {uuid(9)}",)),
    ),
    "two machines with the token of a creation": (
        plan(MADE, in_use("b", on="r2", token=7), ledger=Ledger(intents=(OLD,))),
        ProvisioningPlan(managed=2, drift=TWINS),  # one of them is what was begun
    ),
    "a second machine with the token of ours": (
        plan(in_use("a", token=7), in_use("b", token=7), ledger=have(known("a", 7)), assimilate=True),
        ProvisioningPlan(managed=2, drift=TWINS[1:]),
    ),
    "a creation to repeat, with its old token": (
        plan(capacity("r0"), capacity("r1"), ledger=Ledger(intents=(OLD,))),
        ProvisioningPlan(create=(Creation(capacity("r1"), OLD), *on("r0")), managed=1),
    ),
    "a young creation whose capacity is not offered": (
        plan(ledger=Ledger(intents=(replace(OLD, age_seconds=3600),))),
        COUNTED,
    ),
    "an old creation whose capacity is not offered": (
        plan(ledger=Ledger(intents=(replace(OLD, age_seconds=3601), Intent(uuid(8), "r2")))),
        ProvisioningPlan(abandon=(replace(OLD, age_seconds=3601),), managed=1),
    ),
    "a young creation whose capacity another took": (
        plan(in_use("other", on="r1", failed=True), ledger=Ledger(intents=(BEGUN,))),
        ProvisioningPlan(abandon=(BEGUN,), managed=1),
    ),
    "creations without a capacity id": (
        plan(
            capacity(None),
            in_use("a", failed=True),
            ledger=Ledger(intents=(Intent(uuid(1), None, 1), Intent(uuid(2), None, 3601))),
        ),
        ProvisioningPlan(abandon=(Intent(uuid(2), None, 3601),), create=on(None), managed=2),
    ),
}


@pytest.mark.parametrize(("found", "wanted"), PLANS.values(), ids=PLANS)
def test_a_plan_does_this_and_nothing_else(found: ProvisioningPlan, wanted: ProvisioningPlan) -> None:
    assert found == wanted


@pytest.mark.parametrize(
    ("provider_id", "availability", "others"),
    [
        ("a", "Rented", [capacity("r")]),
        ("a", "", [capacity("r")]),
        ("a", None, [capacity("r")]),
        (INVALID, Availability.KNOWN_USED, [capacity("r")]),
        (INVALID, Availability.KNOWN_USED, [in_use("b")]),  # a listing of nothing else is read in a shorter way
    ],
)
def test_impossible_availability_is_refused(provider_id: ProviderId, availability: Any, others: list[Machine]) -> None:
    machine = replace(in_use(provider_id), availability=availability)
    with pytest.raises(ListingInvalid) as caught:
        plan(*others, machine)
    for wanted in (machine.provider_id, "192.0.2.1", repr(machine.availability)):
        assert wanted in str(caught.value)


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
    with pytest.raises(ListingInvalid, match="a more than once"):
        plan(capacity("r"), *listing)


@pytest.mark.parametrize(
    ("listing", "changes", "again"),
    [
        pytest.param((), {"age_seconds": 600}, [], id="not listed yet"),
        pytest.param((), {"age_seconds": 601}, ["fleet/1"], id="vanished"),
        pytest.param((), {"age_seconds": 60, "released_seconds": 1}, ["fleet/1"], id="released"),
        pytest.param((GONE,), {"age_seconds": 60}, ["fleet/1"], id="ended"),
    ],
)
def test_a_lag_gives_no_slot_a_second_machine(listing: tuple[Machine, ...], changes: Any, again: list[str]) -> None:
    """Only the machines say which slots are taken: while the listing lags, another one would be paid for."""
    provided = replace(known("gone", 1), reservation_id="fleet/1", **changes)
    assert created(plan(capacity("fleet/1"), *listing, ledger=have(provided))) == again


@pytest.mark.parametrize(
    ("fleet", "drift_limit", "tolerated"),
    [
        (10, 0, 0),  # any difference stops the invocation
        (1000, 0, 0),  # also in a large fleet
        (10, 3, 3),
        (399, 3, 3),
        (400, 3, 4),  # a hundredth of a large fleet
    ],
)
def test_more_drift_than_is_tolerated_stops_the_invocation(fleet: int, drift_limit: int, tolerated: int) -> None:
    """A wrong project, prefix or database shows as many differences at once; then nothing may be touched."""
    provided = tuple(known(f"m{number}", number) for number in range(fleet))
    listing = [in_use(each.provider_id) for each in provided]
    strangers = [in_use(f"stranger-{number}") for number in range(tolerated + 1)]
    assert len(plan(*listing, *strangers[1:], ledger=have(*provided), drift_limit=drift_limit).drift) == tolerated
    with pytest.raises(DriftLimitExceeded) as caught:
        plan(*listing, *strangers, ledger=have(*provided), drift_limit=drift_limit)
    assert len(caught.value.drift) == tolerated + 1
    with pytest.raises(DriftLimitExceeded) as caught:
        plan(*listing, *strangers, ledger=have(*provided, known("p", fleet)), drift_limit=drift_limit)
    assert [text.split()[0] for text in caught.value.drift] == ["p", *(each.provider_id for each in strangers)]
    assert all(text in str(caught.value) for text in caught.value.drift)


@pytest.mark.parametrize("set_aside", [False, True], ids=["listed as gone", "set aside before"])
def test_explained_drift_stops_only_where_none_is_tolerated(set_aside: bool) -> None:
    """A fleet loses machines one by one over the years; what is known of must not add up to a discrepancy."""
    explained = [known(f"gone{number}", number, set_aside=set_aside) for number in range(5)]
    gone = [] if set_aside else [replace(GONE, provider_id=provided.provider_id) for provided in explained]
    new = known("new", 10)
    found = plan(*gone, capacity("r"), ledger=have(*explained, new), drift_limit=1)
    assert found.set_aside == ((new,) if set_aside else (*explained, new))
    assert (len(found.drift), created(found)) == (6, ["r"])
    for drift_limit, ledger in ((0, have(*explained)), (1, have(*explained, new, known("newer", 11)))):
        with pytest.raises(DriftLimitExceeded):
            plan(*gone, ledger=ledger, drift_limit=drift_limit)


CAPACITY = tuple(capacity(f"r{number}") for number in range(9))


def test_begun_creations_come_first_and_count_towards_the_chunk() -> None:
    ledger = Ledger(intents=(Intent(uuid(1), "r8"), Intent(uuid(2), "r7")))
    assert created(plan(*CAPACITY, ledger=ledger, chunk=3)) == ["r8", "r7", "r0"]
    assert created(plan(*CAPACITY, ledger=ledger, chunk=1)) == ["r8"]


def test_a_started_creation_is_not_repeated_beyond_the_limit() -> None:
    """The limit may have been lowered since; it is kept for when there is room."""
    ledger = Ledger(provided=(known("a", 1), known("b", 2)), intents=(Intent(uuid(3), "r0"), Intent(uuid(4), "r1")))
    found = plan(*CAPACITY, in_use("a"), in_use("b"), ledger=ledger, max_machines=3)
    assert (created(found), found.abandon) == (["r0"], ())


@pytest.mark.parametrize(("max_machines", "resumed", "fresh"), [(0, 1, 2), (6, 1, 2), (5, 1, 1), (4, 1, 0), (3, 0, 0)])
def test_machines_unknown_to_the_bmdb_count_towards_the_limit(max_machines: int, resumed: int, fresh: int) -> None:
    """They exist and cost like any other, whoever lost their records; only what is gone does not."""
    ledger = Ledger(provided=(known("k", 1),), intents=(Intent(uuid(2), "r0"),))
    listing = in_use("k"), in_use("foreign", token=9), in_use("failed", failed=True), GONE, *CAPACITY[:3]
    found = plan(*listing, ledger=ledger, max_machines=max_machines)
    assert (created(found), found.managed) == (["r0", "r1", "r2"][: resumed + fresh], 4)


def test_assimilation_keeps_to_the_limit_and_counts_towards_it() -> None:
    ledger = have(known("k", 1), intents=(BEGUN,))
    listing = in_use("k"), in_use("d", token=7), in_use("c"), in_use("b"), in_use("a"), capacity("r")
    found = plan(*listing, ledger=ledger, assimilate=True, max_machines=4)
    assert ([machine.provider_id for machine in found.assimilate], found.create) == (["a", "b"], ())
    assert created(plan(*listing, ledger=ledger, assimilate=True, max_machines=6)) == ["r"]
