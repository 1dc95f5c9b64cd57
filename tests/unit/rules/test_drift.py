from ipaddress import IPv4Address
from typing import Any

import pytest
from shepherd_core.domain.machine import Availability, Machine, ProviderId, ProviderStatus
from shepherd_core.domain.records import Intent, Ledger, Provided, Tombstone
from shepherd_core.operator.adopt_forget import ActionResult, Adopt, Rebind
from shepherd_core.rules.drift import Comparison, DriftKind

from tests.unit.rules.test_provisioning import in_use, known, uuid

YOUNG, FRESH = 600, 7200  # seconds; not those of the code, which must not change unnoticed
FAILED = ProviderStatus.PROVISIONING_FAILED_PERMANENT


def left(machine: int, name: str = "gone", *, released: bool) -> Tombstone:
    return Tombstone(uuid(machine), ProviderId(name), released)


def accepted(released_seconds: float) -> Provided:
    return known(asked_seconds=1e4, released_seconds=released_seconds)


def both(*listing: Machine, **ledger: Any) -> Comparison:
    return Comparison.of(listing, Ledger(**ledger))


MISSING = ProviderStatus.MISSING
ADOPTABLE, FOREIGN, STRANDED = DriftKind.ADOPTABLE, DriftKind.FOREIGN, DriftKind.STRANDED
DISPUTED, DUPLICATED, VANISHED = DriftKind.DISPUTED, DriftKind.DUPLICATED, DriftKind.VANISHED
BEGUN = (Intent(uuid(7), None),)
CASES: dict[str, tuple[Comparison, DriftKind | None]] = {
    "made by hand under our name": (both(in_use()), ADOPTABLE),
    "a creation that was begun": (both(in_use(token=7), intents=BEGUN), ADOPTABLE),
    "a creation that was begun and failed": (both(in_use(token=7, failed=True), intents=BEGUN), ADOPTABLE),
    "forgotten and back": (both(in_use(token=7), tombstones=(left(7, released=False),)), ADOPTABLE),
    "forgotten and back under a name without a token": (
        both(in_use(), tombstones=(left(7, "a", released=False),)),
        ADOPTABLE,
    ),
    "a token that we never gave": (both(in_use(token=7)), FOREIGN),
    "a token that we never gave, on a failed machine": (both(in_use(token=7, failed=True)), STRANDED),
    "unknown and failed": (both(in_use(failed=True)), STRANDED),
    "unknown and gone": (both(in_use(status=MISSING)), None),
    "released and there by its token": (both(in_use(token=7), tombstones=(left(7, released=True),)), DISPUTED),
    "released and there by its id": (both(in_use(), tombstones=(left(7, "a", released=True),)), DISPUTED),
    "released and listed as gone": (both(in_use(token=7, status=MISSING), tombstones=(left(7, released=True),)), None),
    "an id that was released, on which a creation was begun": (
        both(in_use(token=7), intents=BEGUN, tombstones=(left(9, "a", released=True),)),
        ADOPTABLE,
    ),
    "the token of a machine that we have": (
        both(in_use(token=2), in_use("b", token=2), provided=(known("b", 2),)),
        DUPLICATED,
    ),
    "the token of a machine that we have, which is not listed": (
        both(in_use(token=2), provided=(known("b", 2, age_seconds=0),)),
        DUPLICATED,
    ),
    "the token of a creation that another has too": (
        both(in_use(token=7), in_use("b", token=7), intents=BEGUN),
        DUPLICATED,
    ),
    "on both sides": (both(in_use(), provided=(known(),)), None),
    "on both sides, assimilated with a foreign token": (both(in_use(token=9), provided=(known(),)), None),
    "given up by the provider": (both(in_use(failed=True), provided=(known(),)), STRANDED),
    "given up by the provider and cleaned away": (both(provided=(known(status=FAILED),)), STRANDED),
    "given up by the provider and listed as gone": (
        both(in_use(status=MISSING), provided=(known(status=FAILED),)),
        VANISHED,
    ),
    "its release was asked for": (both(in_use(), provided=(known(asked_seconds=1),)), STRANDED),
    "its release was just accepted": (both(in_use(), provided=(accepted(1),)), None),
    "its release was accepted, and its listing may lag as long": (both(in_use(), provided=(accepted(YOUNG),)), None),
    "its release was accepted long ago": (both(in_use(), provided=(accepted(YOUNG + 1),)), STRANDED),
    "released and gone": (both(provided=(accepted(1),)), None),
    "released and listed as gone by the provider": (both(in_use(status=MISSING), provided=(accepted(1),)), None),
    "asked for, not accepted, and gone": (both(provided=(known(asked_seconds=1),)), VANISHED),
    "gone": (both(provided=(known(),)), VANISHED),
    "young": (both(provided=(known(age_seconds=YOUNG),)), None),
    "young and listed as gone": (both(in_use(status=MISSING), provided=(known(age_seconds=1),)), VANISHED),
    "listed as unused": (both(in_use(availability=Availability.KNOWN_UNUSED), provided=(known(),)), VANISHED),
    "gone, and its agent reports": (both(provided=(known(heartbeat_seconds=FRESH),)), DISPUTED),
    "gone, and its agent stopped reporting": (both(provided=(known(heartbeat_seconds=FRESH + 1),)), VANISHED),
    "listed as gone, and its agent reports": (
        both(in_use(status=MISSING), provided=(known(heartbeat_seconds=1),)),
        DISPUTED,
    ),
    "there, and its agent reports": (both(in_use(), provided=(known(heartbeat_seconds=1),)), None),
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
        (both(in_use(failed=True), provided=(known(),)), "has failed permanently at the provider"),
        (both(in_use(), provided=(known(asked_seconds=1),)), "it is not on record whether the provider accepted"),
    ],
)
def test_the_text_of_drift_says_what_the_class_does_not(seen: Comparison, end: str) -> None:
    """An operator who wants to forget a machine must see that its agent reports; what is stranded has two ways out."""
    assert seen.drift[ProviderId("a")].text.endswith(end)


KEY, ELSEWHERE = "ssh-ed25519 A", IPv4Address("192.0.2.2")
LOST = known("a", 1, address="192.0.2.1", host_key=KEY)
OF_BMC = known("a", 1, address="192.0.2.1", host_key=KEY, hardware="https://bmc1")
SPEAKS_FOR_IT, NOTHING = "has its hardware, host key or address", "shows nothing of it"
NOT_LISTED = "!the provider does not list such a machine"
REBINDING: dict[str, tuple[Comparison, str]] = {
    "the same host key": (
        both(in_use("b", address=ELSEWHERE, host_key=KEY), provided=(known(host_key=KEY),)),
        SPEAKS_FOR_IT,
    ),
    "the same address": (both(in_use("b"), provided=(LOST,)), SPEAKS_FOR_IT),
    "the same address, a BMC that was not known": (
        both(in_use("b", hardware="https://bmc2"), provided=(LOST,)),
        SPEAKS_FOR_IT,
    ),
    "the same address, another host key": (both(in_use("b", host_key="ssh-ed25519 B"), provided=(LOST,)), NOTHING),
    "the same BMC alone": (
        both(in_use("b", address=ELSEWHERE, host_key="ssh-ed25519 B", hardware="https://bmc1"), provided=(OF_BMC,)),
        SPEAKS_FOR_IT,
    ),
    "another BMC": (both(in_use("b", host_key=KEY, hardware="https://bmc2"), provided=(OF_BMC,)), NOTHING),
    "another address": (both(in_use("b", address=ELSEWHERE), provided=(LOST,)), NOTHING),
    "its own token": (both(in_use("b", token=1), provided=(known(),)), NOTHING),
    "the token of another": (
        both(in_use("b", token=2), provided=(known(), known("c", 2))),
        f"!it was created as machine {uuid(2)}",
    ),
    "the token of a creation": (
        both(in_use("b", token=2), provided=(known(),), intents=(Intent(uuid(2), None),)),
        f"!it was created as machine {uuid(2)}",
    ),
    "another machine": (both(in_use("b"), provided=(known(), known("b", 2))), f"!this is machine {uuid(2)}"),
    "still there": (both(in_use("a"), in_use("b"), provided=(known(),)), "!the provider still has a in use"),
    "to be released": (both(in_use("b"), provided=(known(asked_seconds=1),)), "!the release of a was requested"),
    "not listed": (both(in_use("c"), provided=(known(), known("c", 2))), NOT_LISTED),
    "free capacity": (both(in_use("b", availability=Availability.KNOWN_UNUSED), provided=(known(),)), NOT_LISTED),
    "no machine of ours": (both(in_use("b")), "!it is not a machine of this provider"),
}


@pytest.mark.parametrize(("seen", "told"), REBINDING.values(), ids=REBINDING)
def test_a_machine_is_renamed_only_if_nothing_contradicts(seen: Comparison, told: str) -> None:
    """The operator who confirms it is told what speaks for it."""
    (outcome,) = Rebind(uuid(1), ProviderId("b"), "me").evaluate(seen)
    assert (outcome.result is ActionResult.REFUSED) == told.startswith("!")
    assert outcome.text.endswith(told.removeprefix("!"))


def test_a_machine_under_another_id_is_not_adopted() -> None:
    seen = both(in_use("b"), provided=(LOST,))
    (outcome,) = Adopt((ProviderId("b"),), DriftKind.ADOPTABLE, 0, "me").evaluate(seen)
    assert outcome.result is ActionResult.REFUSED
    assert seen.drift[ProviderId("a")].text.endswith("; b has its hardware, host key or address")
    assert (seen.machine(uuid(1)), seen.machine(uuid(3))) == (LOST, None)
