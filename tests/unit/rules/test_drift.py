"""Which class each difference has: a listing and a ledger go in, one class for each machine comes out."""

from dataclasses import replace
from ipaddress import IPv4Address
from random import Random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shepherd_core.domain.machine import Availability, Machine, ProviderId, ProviderStatus
from shepherd_core.domain.records import Intent, Ledger, Provided, Tombstone
from shepherd_core.operator.adopt_forget import ActionResult, Adopt, Rebind
from shepherd_core.rules.drift import Comparison, DriftKind
from shepherd_core.rules.provisioning import PlanLimits, make_plan

YOUNG, FRESH = 600, 7200
"""Seconds; not those of the code, which must not change unnoticed."""
FAILED = ProviderStatus.PROVISIONING_FAILED_PERMANENT
LIMITS = PlanLimits(max_machines=0, chunk=20, drift_limit=1000, assimilate=False, abandon_seconds=3600)


def uuid(number: int) -> UUID:
    return UUID(int=number)


def listed(name: str = "a", *, token: int | None = None, **facts: Any) -> Machine:
    machine = Machine(
        provider_id=ProviderId(name),
        availability=Availability.KNOWN_USED,
        address=IPv4Address("192.0.2.1"),
        token=None if token is None else uuid(token),
        status=ProviderStatus.RUNNING,
    )
    return replace(machine, **facts)


def known(name: str = "a", machine: int = 1, **facts: Any) -> Provided:
    return replace(Provided(uuid(machine), ProviderId(name)), **facts)


def left(machine: int, name: str = "gone", *, released: bool) -> Tombstone:
    return Tombstone(uuid(machine), ProviderId(name), released)


def both(*listing: Machine, **ledger: Any) -> Comparison:
    return Comparison.of(listing, Ledger(**ledger))


MISSING = ProviderStatus.MISSING
CASES: dict[str, tuple[Comparison, DriftKind | None]] = {
    "made by hand under our name": (both(listed()), DriftKind.ADOPTABLE),
    "a creation that was begun": (both(listed(token=7), intents=(Intent(uuid(7), None),)), DriftKind.ADOPTABLE),
    "a creation that was begun and failed": (
        both(listed(token=7, failed=True), intents=(Intent(uuid(7), None),)),
        DriftKind.ADOPTABLE,
    ),
    "forgotten and back": (both(listed(token=7), tombstones=(left(7, released=False),)), DriftKind.ADOPTABLE),
    "forgotten and back under a name without a token": (
        both(listed(), tombstones=(left(7, "a", released=False),)),
        DriftKind.ADOPTABLE,
    ),
    "a token that we never gave": (both(listed(token=7)), DriftKind.FOREIGN),
    "a token that we never gave, on a failed machine": (both(listed(token=7, failed=True)), DriftKind.STRANDED),
    "unknown and failed": (both(listed(failed=True)), DriftKind.STRANDED),
    "unknown and gone": (both(listed(status=MISSING)), None),
    "released and there by its token": (
        both(listed(token=7), tombstones=(left(7, released=True),)),
        DriftKind.DISPUTED,
    ),
    "released and there by its id": (both(listed(), tombstones=(left(7, "a", released=True),)), DriftKind.DISPUTED),
    "released and listed as gone": (both(listed(token=7, status=MISSING), tombstones=(left(7, released=True),)), None),
    "an id that was released, on which a creation was begun": (
        both(listed(token=7), intents=(Intent(uuid(7), None),), tombstones=(left(9, "a", released=True),)),
        DriftKind.ADOPTABLE,
    ),
    "the token of a machine that we have": (
        both(listed(token=2), listed("b", token=2), provided=(known("b", 2),)),
        DriftKind.DUPLICATED,
    ),
    "the token of a machine that we have, which is not listed": (
        both(listed(token=2), provided=(known("b", 2, age_seconds=0),)),
        DriftKind.DUPLICATED,
    ),
    "the token of a creation that another has too": (
        both(listed(token=7), listed("b", token=7), intents=(Intent(uuid(7), None),)),
        DriftKind.DUPLICATED,
    ),
    "on both sides": (both(listed(), provided=(known(),)), None),
    "on both sides, assimilated with a foreign token": (both(listed(token=9), provided=(known(),)), None),
    "given up by the provider": (both(listed(failed=True), provided=(known(),)), DriftKind.STRANDED),
    "given up by the provider and cleaned away": (both(provided=(known(status=FAILED),)), DriftKind.STRANDED),
    "given up by the provider and listed as gone": (
        both(listed(status=MISSING), provided=(known(status=FAILED),)),
        DriftKind.VANISHED,
    ),
    "its release was asked for": (both(listed(), provided=(known(asked_seconds=1),)), DriftKind.STRANDED),
    "its release was just accepted": (both(listed(), provided=(known(asked_seconds=2, released_seconds=1),)), None),
    "its release was accepted, and its listing may lag as long": (
        both(listed(), provided=(known(asked_seconds=1e4, released_seconds=YOUNG),)),
        None,
    ),
    "its release was accepted long ago": (
        both(listed(), provided=(known(asked_seconds=1e4, released_seconds=YOUNG + 1),)),
        DriftKind.STRANDED,
    ),
    "released and gone": (both(provided=(known(asked_seconds=1e4, released_seconds=1),)), None),
    "released and listed as gone by the provider": (
        both(listed(status=MISSING), provided=(known(asked_seconds=2, released_seconds=1),)),
        None,
    ),
    "asked for, not accepted, and gone": (both(provided=(known(asked_seconds=1),)), DriftKind.VANISHED),
    "gone": (both(provided=(known(),)), DriftKind.VANISHED),
    "young": (both(provided=(known(age_seconds=YOUNG),)), None),
    "young and listed as gone": (both(listed(status=MISSING), provided=(known(age_seconds=1),)), DriftKind.VANISHED),
    "listed as unused": (both(listed(availability=Availability.KNOWN_UNUSED), provided=(known(),)), DriftKind.VANISHED),
    "gone, and its agent reports": (both(provided=(known(heartbeat_seconds=FRESH),)), DriftKind.DISPUTED),
    "gone, and its agent stopped reporting": (both(provided=(known(heartbeat_seconds=FRESH + 1),)), DriftKind.VANISHED),
    "listed as gone, and its agent reports": (
        both(listed(status=MISSING), provided=(known(heartbeat_seconds=1),)),
        DriftKind.DISPUTED,
    ),
    "there, and its agent reports": (both(listed(), provided=(known(heartbeat_seconds=1),)), None),
}


@pytest.mark.parametrize(("seen", "kind"), CASES.values(), ids=CASES)
def test_each_difference_has_its_class(seen: Comparison, kind: DriftKind | None) -> None:
    difference = seen.drift.get(ProviderId("a"))
    assert (difference and difference.kind) == kind
    if difference:
        assert difference.text.startswith("a ")


@pytest.mark.parametrize(
    ("seen", "end"),
    [
        (both(provided=(known(heartbeat_seconds=12.3),)), "but its agent reported 12 s ago"),
        (both(listed(failed=True), provided=(known(),)), "has failed permanently at the provider"),
        (both(listed(), provided=(known(asked_seconds=1),)), "it is not on record whether the provider accepted"),
    ],
)
def test_the_text_of_drift_says_what_the_class_does_not(seen: Comparison, end: str) -> None:
    """An operator who wants to forget a machine must see that its agent reports; what is stranded has two ways out."""
    assert seen.drift[ProviderId("a")].text.endswith(end)


KEY, ELSEWHERE = "ssh-ed25519 A", IPv4Address("192.0.2.2")
LOST = known("a", 1, address="192.0.2.1", host_key=KEY)
OF_BMC = known("a", 1, address="192.0.2.1", host_key=KEY, hardware="https://bmc1")
REBINDING: dict[str, tuple[Comparison, str]] = {
    "the same host key": (
        both(listed("b", address=ELSEWHERE, host_key=KEY), provided=(known(host_key=KEY),)),
        "has its hardware, host key or address",
    ),
    "the same address": (both(listed("b"), provided=(LOST,)), "has its hardware, host key or address"),
    "the same address, a BMC that was not known": (
        both(listed("b", hardware="https://bmc2"), provided=(LOST,)),
        "has its hardware, host key or address",
    ),
    "the same address, another host key": (
        both(listed("b", host_key="ssh-ed25519 B"), provided=(LOST,)),
        "shows nothing of it",
    ),
    "the same BMC alone": (
        both(listed("b", address=ELSEWHERE, host_key="ssh-ed25519 B", hardware="https://bmc1"), provided=(OF_BMC,)),
        "has its hardware, host key or address",
    ),
    "another BMC": (
        both(listed("b", host_key=KEY, hardware="https://bmc2"), provided=(OF_BMC,)),
        "shows nothing of it",
    ),
    "another address": (both(listed("b", address=ELSEWHERE), provided=(LOST,)), "shows nothing of it"),
    "its own token": (both(listed("b", token=1), provided=(known(),)), "shows nothing of it"),
    "the token of another": (
        both(listed("b", token=2), provided=(known(), known("c", 2))),
        f"!it was created as machine {uuid(2)}",
    ),
    "the token of a creation": (
        both(listed("b", token=2), provided=(known(),), intents=(Intent(uuid(2), None),)),
        f"!it was created as machine {uuid(2)}",
    ),
    "another machine": (both(listed("b"), provided=(known(), known("b", 2))), f"!this is machine {uuid(2)}"),
    "still there": (both(listed("a"), listed("b"), provided=(known(),)), "!the provider still has a in use"),
    "to be released": (both(listed("b"), provided=(known(asked_seconds=1),)), "!the release of a was requested"),
    "not listed": (
        both(listed("c"), provided=(known(), known("c", 2))),
        "!the provider does not list such a machine",
    ),
    "free capacity": (
        both(listed("b", availability=Availability.KNOWN_UNUSED), provided=(known(),)),
        "!the provider does not list such a machine",
    ),
    "no machine of ours": (both(listed("b")), "!it is not a machine of this provider"),
}


@pytest.mark.parametrize(("seen", "told"), REBINDING.values(), ids=REBINDING)
def test_a_machine_is_renamed_only_if_nothing_contradicts(seen: Comparison, told: str) -> None:
    """The operator who confirms it is told what speaks for it."""
    (outcome,) = Rebind(uuid(1), ProviderId("b"), "me").evaluate(seen)
    assert (outcome.result is ActionResult.REFUSED) == told.startswith("!")
    assert outcome.text.endswith(told.removeprefix("!"))


def test_a_machine_under_another_id_is_not_adopted() -> None:
    seen = both(listed("b"), provided=(LOST,))
    (outcome,) = Adopt((ProviderId("b"),), DriftKind.ADOPTABLE, 0, "me").evaluate(seen)
    assert outcome.result is ActionResult.REFUSED
    assert seen.drift[ProviderId("a")].text.endswith("; b has its hardware, host key or address")
    assert (seen.machine(uuid(1)), seen.machine(uuid(3))) == (LOST, None)


# --- whatever comes ---

_ids = st.sampled_from("abcdef").map(ProviderId)
_seconds = st.one_of(st.none(), st.sampled_from((1.0, 1e5)))
_listings = st.lists(
    st.builds(
        Machine,
        provider_id=_ids,
        availability=st.sampled_from((Availability.KNOWN_USED, Availability.POSSIBLY_USED, Availability.KNOWN_UNUSED)),
        status=st.sampled_from((ProviderStatus.RUNNING, MISSING)),
        failed=st.booleans(),
        token=st.one_of(st.none(), st.integers(0, 12).map(uuid)),
    ),
    unique_by=lambda machine: machine.provider_id,
)
_provided = st.builds(
    Provided,
    machine_id=st.integers(0, 4).map(uuid),
    provider_id=_ids,
    reservation_id=st.none(),
    status=st.sampled_from((None, FAILED, ProviderStatus.RUNNING)),
    set_aside=st.booleans(),
    age_seconds=st.sampled_from((1.0, 1e5)),
    heartbeat_seconds=_seconds,
    asked_seconds=_seconds,
).flatmap(
    lambda provided: (
        st.just(provided)
        if provided.asked_seconds is None
        else _seconds.map(lambda seconds: replace(provided, released_seconds=seconds))
    )
)
_ledgers = st.builds(
    Ledger,
    st.lists(_provided, unique_by=(lambda each: each.machine_id, lambda each: each.provider_id)).map(tuple),
    st.lists(st.builds(Intent, st.integers(5, 8).map(uuid), st.none()), unique_by=lambda each: each.machine_id).map(
        tuple
    ),
    tombstones=st.lists(
        st.builds(Tombstone, st.integers(9, 11).map(uuid), _ids, st.booleans()), unique_by=lambda each: each.machine_id
    ).map(tuple),
)


@given(listing=_listings, ledger=_ledgers, assimilate=st.booleans(), order=st.randoms(use_true_random=False))
def test_no_order_changes_what_is_done_about_drift(
    listing: list[Machine], ledger: Ledger, order: Random, *, assimilate: bool
) -> None:
    limits = replace(LIMITS, assimilate=assimilate)
    other = replace(ledger, provided=tuple(order.sample(ledger.provided, len(ledger.provided))))
    shuffled = order.sample(listing, len(listing))
    assert make_plan(shuffled, other, limits) == make_plan(listing, ledger, limits)
    assert [*Comparison.of(shuffled, other).drift.items()] == [*Comparison.of(listing, ledger).drift.items()]


@given(listing=_listings, ledger=_ledgers, assimilate=st.booleans())
def test_the_provisioner_sees_the_same_differences(listing: list[Machine], ledger: Ledger, *, assimilate: bool) -> None:
    """It deals with some by itself; a second opinion of what is wrong would send operators after ghosts."""
    plan = make_plan(listing, ledger, replace(LIMITS, assimilate=assimilate))
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
