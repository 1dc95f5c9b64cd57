from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from shepherd_core.domain.machine import Availability, Machine, ProviderId, ProviderStatus
from shepherd_core.domain.records import Intent, Ledger, Tombstone
from shepherd_core.rules.drift import Comparison, DriftKind
from shepherd_core.rules.provisioning import PlanLimits, make_plan

from tests.unit.rules.test_provisioning import FAILED, LIMITS, capacity, created, entry, in_use, known, uuid

_ids = st.sampled_from("abcdefgh").map(ProviderId)
_states = st.sampled_from((ProviderStatus.RUNNING, ProviderStatus.MISSING))
_tokens = st.one_of(st.none(), st.integers(0, 12))
_unused = st.sampled_from((Availability.POSSIBLY_USED, Availability.KNOWN_UNUSED))
_listings = st.builds(
    lambda used, unused, entries: [*used, *unused, *entries],
    st.lists(
        st.builds(in_use, _ids, on=st.one_of(st.none(), _ids), token=_tokens, failed=st.booleans(), status=_states),
        max_size=6,
        unique_by=lambda machine: machine.provider_id,
    ),
    st.lists(
        st.builds(capacity, st.one_of(st.none(), _ids), failed=st.booleans()),
        max_size=6,
        unique_by=lambda machine: machine.reservation_id,
    ),
    st.lists(
        st.builds(entry, st.sampled_from("mnop"), failed=st.booleans(), availability=_unused),
        max_size=4,
        unique_by=lambda machine: machine.provider_id,
    ),
)
_seconds = st.one_of(st.none(), st.sampled_from((1.0, 1e5)))
_provided = st.builds(
    known,
    st.sampled_from("abcdmn").map(ProviderId),
    st.integers(0, 4),
    status=st.sampled_from((None, FAILED, ProviderStatus.RUNNING)),
    set_aside=st.booleans(),
    age_seconds=st.sampled_from((1.0, 1e5)),
    heartbeat_seconds=_seconds,
    asked_seconds=_seconds,
    released_seconds=_seconds,
).map(lambda provided: provided if provided.asked_seconds else replace(provided, released_seconds=None))
_intents = st.builds(
    Intent, st.integers(5, 8).map(uuid), st.one_of(st.none(), _ids), st.sampled_from((0.0, 3600.0, 3601.0))
)
_ledgers = st.builds(
    Ledger,
    st.lists(_provided, unique_by=(lambda each: each.machine_id, lambda each: each.provider_id)).map(tuple),
    st.lists(_intents, unique_by=lambda each: each.machine_id).map(tuple),
    st.frozensets(_ids, max_size=3),
    tombstones=st.lists(
        st.builds(Tombstone, st.integers(9, 11).map(uuid), _ids, st.booleans()), unique_by=lambda each: each.machine_id
    ).map(tuple),
)
_limits = st.builds(
    PlanLimits,
    max_machines=st.integers(0, 8),
    chunk=st.integers(1, 5),
    drift_limit=st.just(1000),
    assimilate=st.booleans(),
    abandon_seconds=st.just(3600.0),
)


@given(listing=_listings, ledger=_ledgers, limits=_limits)
def test_a_plan_never_exceeds_the_limits(listing: list[Machine], ledger: Ledger, limits: PlanLimits) -> None:
    found = make_plan(listing, ledger, limits)
    fresh = sum(creation.intent is None for creation in found.create)
    assert len(found.create) <= limits.chunk
    if limits.max_machines:
        taken = {each.provider_id for each in ledger.provided if each not in found.decommissioned}
        taken |= {machine.provider_id for _, machine in found.complete}
        taken |= {machine.provider_id for machine in found.assimilate}
        assert not found.assimilate or len(taken) <= limits.max_machines
        used = (each for each in listing if each.availability is Availability.KNOWN_USED)
        taken |= {each.provider_id for each in used if each.status is not ProviderStatus.MISSING}
        assert not found.create or len(taken) + len(found.create) <= limits.max_machines
        assert not fresh or found.managed + fresh <= limits.max_machines


@given(listing=_listings, ledger=_ledgers, limits=_limits)
def test_waiting_is_what_a_plan_without_limit_adds(listing: list[Machine], ledger: Ledger, limits: PlanLimits) -> None:
    limited, free = (
        make_plan(listing, ledger, replace(limits, max_machines=limit, chunk=1000))
        for limit in (limits.max_machines, 0)
    )
    added, wanted = (len(found.assimilate) + len(found.create) for found in (limited, free))
    assert limited.waiting == wanted - added
    assert make_plan(listing, ledger, limits).waiting == limited.waiting


@given(listing=_listings, ledger=_ledgers, limits=_limits)
def test_plans_use_machine_capacity_and_intent_once(listing: list[Machine], ledger: Ledger, limits: PlanLimits) -> None:
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

    taken = [machine.provider_id for machine in (*(made for _, made in found.complete), *found.assimilate)]
    assert len(taken) == len(set(taken))
    assert not set(taken) & known_ids
    assert all(machine.token == intent.machine_id for intent, machine in found.complete)
    tokens = [machine.token for machine in used.values() if machine.provider_id not in known_ids]
    assert all(tokens.count(machine.token) == 1 for _, machine in found.complete)
    assert not {intent.machine_id for intent in (*resumed, *found.abandon)} & set(tokens)


@given(listing=_listings, ledger=_ledgers, assimilate=st.booleans(), order=st.randoms(use_true_random=False))
def test_no_order_changes_what_is_done_about_drift(
    listing: list[Machine], ledger: Ledger, order: Random, *, assimilate: bool
) -> None:
    limits = replace(LIMITS, drift_limit=1000, assimilate=assimilate)
    other = replace(ledger, provided=tuple(order.sample(ledger.provided, len(ledger.provided))))
    shuffled = order.sample(listing, len(listing))
    assert make_plan(shuffled, other, limits) == make_plan(listing, ledger, limits)
    assert [*Comparison.of(shuffled, other).drift.items()] == [*Comparison.of(listing, ledger).drift.items()]


@given(listing=_listings, ledger=_ledgers, assimilate=st.booleans())
def test_the_provisioner_sees_the_same_differences(listing: list[Machine], ledger: Ledger, *, assimilate: bool) -> None:
    """It deals with some by itself; a second opinion of what is wrong would send operators after ghosts."""
    plan = make_plan(listing, ledger, replace(LIMITS, drift_limit=1000, assimilate=assimilate))
    seen = Comparison.of(listing, ledger)
    told = set(plan.drift)
    taken = {machine.provider_id for _, machine in plan.complete} | {machine.provider_id for machine in plan.assimilate}
    for provider_id, difference in seen.drift.items():
        assert (difference.text in told) + (provider_id in taken) + (difference.kind is DriftKind.STRANDED) == 1
    assert len(told) + len(taken) == sum(each.kind is not DriftKind.STRANDED for each in seen.drift.values())
    assert not set(plan.decommissioned) & set(plan.set_aside)
    assert all(provided.released_seconds is not None for provided in plan.decommissioned)
    released = {name for each in ledger.tombstones if each.released for name in (each.machine_id, each.provider_id)}
    assert not {name for machine in plan.assimilate for name in (machine.token, machine.provider_id)} & released
