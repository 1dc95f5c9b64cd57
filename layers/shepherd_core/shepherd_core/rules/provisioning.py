"""The Provisioner's plan: a pure function of the provider's listing and the BMDB's records."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

from shepherd_core.domain.errors import DriftLimitExceeded
from shepherd_core.domain.machine import INVALID, ProviderStatus
from shepherd_core.rules.drift import YOUNG_SECONDS, Comparison, DriftKind, refuse_duplicates

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shepherd_core.domain.machine import Machine, ProviderId
    from shepherd_core.domain.records import Intent, Ledger, Provided


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanLimits:
    """The limits of one plan."""

    max_machines: int
    """Machines to manage at most; 0: no limit."""
    chunk: int
    """Machines to create in one invocation at most."""
    drift_limit: int
    """
    Newly drifted machines that are set aside one by one. If there are more than this, and more than a hundredth of
    the fleet, the invocation stops.

    0: every drifted machine stops the invocation, also one that was set aside before.
    """
    assimilate: bool
    """Take unknown machines at the provider into the BMDB."""
    abandon_seconds: float
    """The age at which an intent is dropped if its machine never appeared and its capacity is not offered."""


@dataclass(frozen=True, slots=True)
class Creation:
    """A machine to create on a piece of capacity. With an intent it repeats a creation that was interrupted."""

    capacity: Machine
    intent: Intent | None

    @property
    def takes_over(self) -> bool:
        """Return whether the machine exists already, so that nothing is created at the provider."""
        return self.capacity.provider_id != INVALID


@dataclass(frozen=True, slots=True)
class ProvisioningPlan:
    """The actions of one invocation, in this order; each is independent of the others."""

    decommissioned: tuple[Provided, ...] = ()
    """Machines that were released and that the provider does not have any more: to be decommissioned."""
    take_back: tuple[Provided, ...] = ()
    """Machines that were set aside and that the provider lists again."""
    set_aside: tuple[Provided, ...] = ()
    """Machines that the provider does not list, or lists as missing."""
    complete: tuple[tuple[Intent, Machine], ...] = ()
    """Interrupted creations whose machine exists."""
    abandon: tuple[Intent, ...] = ()
    """Intents to drop: their machine was never created."""
    assimilate: tuple[Machine, ...] = ()
    """Unknown machines to take into the BMDB, as far as the limit allows."""
    create: tuple[Creation, ...] = ()
    spare: tuple[Creation, ...] = ()
    """The creations to try instead, in this order, if the provider forbids those on capacity of ``create``."""
    managed: int = 0
    """Machines that count towards the limit before this plan creates any: those of the BMDB, and all others in use."""
    waiting: int = 0
    """How many places at the provider, and machines to assimilate or create again, wait because of the limit."""
    drift: tuple[str, ...] = ()
    """One line for each drifted machine; the Provisioner only sets it aside."""


def make_plan(listing: Sequence[Machine], ledger: Ledger, limits: PlanLimits) -> ProvisioningPlan:
    """
    Compare the provider's complete *listing* with the *ledger* and return the actions to take.

    Raises:
        ListingInvalid: the listing contradicts itself.
        DriftLimitExceeded: too many machines drifted to trust either side; lists them all.
    """
    comparison = Comparison.of(listing, ledger)
    used, known = comparison.used, ledger.known
    unused, occupied = _capacity(listing, comparison)
    # Everything is sorted, so that the plan does not depend on the order of the listing.
    decommissioned = [
        each for each in ledger.provided if each.released_seconds is not None and not comparison.has(each.provider_id)
    ]
    take_back = [
        each for each in ledger.provided if each.set_aside and not each.quarantined and comparison.has(each.provider_id)
    ]
    found = comparison.drift.values()
    intents = {intent.machine_id: intent for intent in ledger.intents}
    complete = [
        (intents[each.machine_id], used[each.provider_id])
        for each in found
        if each.kind is DriftKind.ADOPTABLE and each.machine_id is not None
    ]
    moved = set(comparison.moved.values())
    unknown = [
        used[each.provider_id]
        for each in found
        if each.kind in (DriftKind.ADOPTABLE, DriftKind.FOREIGN)
        and each.machine_id is None
        and each.provider_id not in moved
    ]
    missing = [
        known[each.provider_id]
        for each in found
        if each.kind in (DriftKind.VANISHED, DriftKind.DISPUTED) and each.provider_id in known
    ]
    handled = {
        machine.provider_id for machine in (*(each for _, each in complete), *(unknown if limits.assimilate else ()))
    }
    drift = [each.text for each in found if each.kind is not DriftKind.STRANDED and each.provider_id not in handled]
    tolerated = limits.drift_limit and max(limits.drift_limit, len(known) // 100)
    # Machines that were set aside before do not count again: a fleet loses machines one by one, over the years. Nor do
    # machines that are listed as missing: then it is certain which side is right.
    explained = [
        provided for provided in missing if provided.set_aside or provided.quarantined or provided.provider_id in used
    ]
    if len(drift) - (len(explained) if tolerated else 0) > tolerated:
        raise DriftLimitExceeded(sorted(drift))

    count = len(known) - len(decommissioned)
    assimilate = unknown[: _room(limits, count + len(complete))] if limits.assimilate else []
    # A machine that the BMDB lacks, such as one that was created after the backup from which it was restored, exists
    # and costs like any other.
    count += len(
        {name for name in used.keys() - known.keys() if used[name].status is not ProviderStatus.MISSING}
        | {machine.provider_id for _, machine in complete}
    )
    # An intent whose token several machines carry waits until an operator has decided which is the right one.
    # A machine with the token of an intent always counts as drift.
    claimed = {used[each.provider_id].token for each in found if each.provider_id not in known}
    unclaimed = [intent for intent in ledger.intents if intent.machine_id not in claimed]
    resume, abandon = _unfinished(unclaimed, unused, occupied, ledger, limits)
    managed = count + len(unclaimed) - len(abandon)
    set_aside = [provided for provided in missing if not (provided.set_aside or provided.quarantined)]
    # Of a machine that has just gone missing, the ledger has no address yet: the next invocation sees whether one of
    # the entries is that machine under another id.
    fresh = [
        creation
        for creation in _fresh(unused, comparison)
        if not creation.takes_over or not (set_aside or creation.capacity.provider_id in moved)
    ]
    create = resume[: _room(limits, count)] + fresh[: _room(limits, managed)]
    left = fresh[_room(limits, managed) :] if limits.max_machines else []
    wanted = len(resume) + len(fresh) + (len(unknown) if limits.assimilate else 0)
    return ProvisioningPlan(
        decommissioned=tuple(sorted(decommissioned, key=attrgetter("provider_id"))),
        take_back=tuple(sorted(take_back, key=attrgetter("provider_id"))),
        set_aside=tuple(set_aside),
        complete=tuple(complete),
        abandon=tuple(abandon),
        assimilate=tuple(assimilate),
        create=tuple(create[: limits.chunk]),
        spare=tuple((create[limits.chunk :] + left)[: limits.chunk]),
        managed=managed,
        waiting=wanted - len(create) - len(assimilate),
        drift=tuple(sorted(drift)),
    )


def unanswered(listing: Sequence[Machine]) -> ProviderId | None:
    """Return a machine whose state the provider does not know, if it does not know that of most; else None."""
    machines = [each for each in listing if each.provider_id != INVALID]
    unknown = [each.provider_id for each in machines if each.status is ProviderStatus.UNKNOWN]
    return min(unknown) if 2 * len(unknown) > len(machines) else None


def _capacity(listing: Sequence[Machine], comparison: Comparison) -> tuple[list[Machine], set[str | None]]:
    """Return the free capacity, sorted by its id, and the ids of the capacity that machines in use occupy."""
    if len(comparison.used) == len(listing) and not comparison.ledger.intents:
        return [], set()  # nothing is unused, and without intents the occupied capacity does not matter
    unused = [machine for machine in listing if machine.provider_id not in comparison.used]
    refuse_duplicates(machine.capacity_id for machine in unused if machine.capacity_id is not None)
    occupied = {machine.capacity_id for machine in comparison.used.values()}
    free = [
        machine
        for machine in unused
        if machine.capacity_id not in occupied and machine.provider_id not in comparison.ledger.known
    ]
    return sorted(free, key=lambda machine: machine.capacity_id or ""), occupied


def _unfinished(
    intents: Sequence[Intent],
    unused: Sequence[Machine],
    occupied: set[str | None],
    ledger: Ledger,
    limits: PlanLimits,
) -> tuple[list[Creation], list[Intent]]:
    """Return the interrupted creations to repeat with their old token, and the intents to drop."""
    offered = {
        machine.capacity_id: machine for machine in unused if machine.capacity_id is not None and not machine.failed
    }
    resume: list[Creation] = []
    abandon: list[Intent] = []
    for intent in intents:
        if intent.capacity_id in ledger.penalized:
            continue
        if intent.capacity_id in offered:
            resume.append(Creation(offered.pop(intent.capacity_id), intent))  # one creation at a time on each capacity
        elif intent.age_seconds > limits.abandon_seconds or intent.capacity_id in occupied:
            abandon.append(intent)
    return resume, abandon


def _fresh(unused: Sequence[Machine], comparison: Comparison) -> list[Creation]:
    """Return creations on all capacity without an intent, and without a new machine that is not listed yet."""
    ledger = comparison.ledger
    begun = {intent.capacity_id for intent in ledger.intents} | {
        provided.reservation_id
        for provided in ledger.provided
        if provided.age_seconds <= YOUNG_SECONDS
        and provided.released_seconds is None
        and provided.provider_id not in comparison.used
    }
    return [
        Creation(machine, None)
        for machine in unused
        if not machine.failed
        and (
            machine.capacity_id is None
            or (machine.capacity_id not in ledger.penalized and machine.capacity_id not in begun)
        )
    ]


def _room(limits: PlanLimits, managed: int) -> int | None:
    """Return how many machines may be added to *managed* ones; None: any number."""
    return max(0, limits.max_machines - managed) if limits.max_machines else None
