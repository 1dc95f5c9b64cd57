"""What the Provisioner should do: a pure function of what the provider lists and what the BMDB knows."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

from shepherd_core.domain.errors import DriftLimitExceeded
from shepherd_core.domain.machine import INVALID
from shepherd_core.rules.drift import Comparison, DriftKind, refuse_duplicates

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shepherd_core.domain.machine import Machine
    from shepherd_core.domain.records import Intent, Ledger, Provided


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanLimits:
    """How far one pass may go."""

    max_machines: int
    """Machines to manage at most; 0: no limit."""
    chunk: int
    """Machines to create in one pass at most."""
    drift_limit: int
    """New unexplained differences that are set aside one by one; more than that, and than a hundredth of the fleet,
    stop the pass. 0: every difference does, new or old."""
    assimilate: bool
    """Take unknown machines at the provider into the BMDB."""
    forget_seconds: float
    """Age at which an intent whose machine never appeared, and whose capacity is not offered, is given up."""


@dataclass(frozen=True, slots=True)
class Creation:
    """A machine to create on a piece of capacity; with an intent: the creation that was begun for it before."""

    capacity: Machine
    intent: Intent | None

    @property
    def takes_over(self) -> bool:
        """Return whether the machine exists already, so that nothing is created at the provider."""
        return self.capacity.provider_id != INVALID


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do, in this order; every step stands for itself."""

    depart: tuple[Provided, ...] = ()
    """Machines that were released, and that the provider has no more."""
    take_back: tuple[Provided, ...] = ()
    """Machines that were set aside, and that the provider lists again."""
    set_aside: tuple[Provided, ...] = ()
    """Machines that the provider does not list, or lists as missing."""
    adopt: tuple[tuple[Intent, Machine], ...] = ()
    """Creations whose machine exists by now."""
    forget: tuple[Intent, ...] = ()
    """Creations that never happened."""
    assimilate: tuple[Machine, ...] = ()
    """Unknown machines to take into the BMDB, as far as the limit allows."""
    create: tuple[Creation, ...] = ()
    managed: int = 0
    """Machines that count towards the limit before anything is created."""
    waiting: int = 0
    """Places at the provider, and machines to take in or to create again, that the limit of machines keeps out."""
    differences: tuple[str, ...] = ()
    """One line for each machine about which the two sides disagree; nothing but ``set_aside`` is done about it."""


def make_plan(listing: Sequence[Machine], ledger: Ledger, limits: PlanLimits) -> Plan:
    """
    Compare the provider's complete *listing* with the *ledger* and return what to do.

    Raises:
        ListingInvalid: the listing contradicts itself.
        Discrepancy: the two disagree about too many machines to trust either; names them all.
    """
    look = Comparison.of(listing, ledger)
    used, known = look.used, ledger.known
    unused, occupied = _capacity(listing, look)
    # What is done, and what waits for the limits, is sorted, and so does not depend on the order of a listing.
    depart = [each for each in ledger.provided if each.released_seconds is not None and not look.has(each.provider_id)]
    take_back = [
        each for each in ledger.provided if each.set_aside and not each.quarantined and look.has(each.provider_id)
    ]
    found = look.differences.values()
    intents = {intent.machine_id: intent for intent in ledger.intents}
    adopt = [
        (intents[each.machine_id], used[each.provider_id])
        for each in found
        if each.kind is DriftKind.ADOPTABLE and each.machine_id is not None
    ]
    unknown = [
        used[each.provider_id]
        for each in found
        if each.kind in (DriftKind.ADOPTABLE, DriftKind.FOREIGN) and each.machine_id is None
    ]
    missing = [
        known[each.provider_id]
        for each in found
        if each.kind in (DriftKind.VANISHED, DriftKind.DISPUTED) and each.provider_id in known
    ]
    settling = {
        machine.provider_id for machine in (*(each for _, each in adopt), *(unknown if limits.assimilate else ()))
    }
    differences = [
        each.words for each in found if each.kind is not DriftKind.STRANDED and each.provider_id not in settling
    ]
    tolerated = limits.drift_limit and max(limits.drift_limit, len(known) // 100)
    # What was set aside before stops nobody again: a fleet loses machines one by one, over the years. Nor does what is
    # missing although it is listed, as gone: then there is no doubt which side is right.
    explained = [
        provided for provided in missing if provided.set_aside or provided.quarantined or provided.provider_id in used
    ]
    if len(differences) - (len(explained) if tolerated else 0) > tolerated:
        raise DriftLimitExceeded(sorted(differences))

    settled = len(known) - len(depart) + len(adopt)
    assimilate = unknown[: _room(limits, settled)] if limits.assimilate else []
    settled += len(assimilate)
    # An intent whose token is in dispute waits until somebody has decided which of the machines is it. Whatever carries
    # the token of an intent is a difference.
    claimed = {used[each.provider_id].token for each in found if each.provider_id not in known}
    unclaimed = [intent for intent in ledger.intents if intent.machine_id not in claimed]
    resume, forget = _unfinished(unclaimed, unused, occupied, ledger, limits)
    managed = settled + len(ledger.intents) - len(adopt) - len(forget)
    fresh = _fresh(unused, ledger)
    create = resume[: _room(limits, settled)] + fresh[: _room(limits, managed)]
    wanted = len(resume) + len(fresh) + (len(unknown) if limits.assimilate else 0)
    return Plan(
        depart=tuple(sorted(depart, key=attrgetter("provider_id"))),
        take_back=tuple(sorted(take_back, key=attrgetter("provider_id"))),
        set_aside=tuple(provided for provided in missing if not (provided.set_aside or provided.quarantined)),
        adopt=tuple(adopt),
        forget=tuple(forget),
        assimilate=tuple(assimilate),
        create=tuple(create[: limits.chunk]),
        managed=managed,
        waiting=wanted - len(create) - len(assimilate),
        differences=tuple(sorted(differences)),
    )


def _capacity(listing: Sequence[Machine], look: Comparison) -> tuple[list[Machine], set[str | None]]:
    """Return the capacity that no machine of either side is, by name, and the names of what machines in use occupy."""
    if len(look.used) == len(listing) and not look.ledger.intents:
        return [], set()  # nothing is unused, and nobody asks what is occupied
    unused = [machine for machine in listing if machine.provider_id not in look.used]
    refuse_duplicates(machine.capacity_id for machine in unused if machine.capacity_id is not None)
    occupied = {machine.capacity_id for machine in look.used.values()}
    free = [
        machine
        for machine in unused
        if machine.capacity_id not in occupied and machine.provider_id not in look.ledger.known
    ]
    return sorted(free, key=lambda machine: machine.capacity_id or ""), occupied


def _unfinished(
    intents: Sequence[Intent],
    unused: Sequence[Machine],
    occupied: set[str | None],
    ledger: Ledger,
    limits: PlanLimits,
) -> tuple[list[Creation], list[Intent]]:
    """Return which interrupted creations to repeat, with their old token, and which to give up."""
    offered = {
        machine.capacity_id: machine for machine in unused if machine.capacity_id is not None and not machine.failed
    }
    resume: list[Creation] = []
    forget: list[Intent] = []
    for intent in intents:
        if intent.capacity_id in ledger.penalized:
            continue
        if intent.capacity_id in offered:
            resume.append(Creation(offered.pop(intent.capacity_id), intent))  # one at a time on each capacity
        elif intent.age_seconds > limits.forget_seconds or intent.capacity_id in occupied:
            forget.append(intent)
    return resume, forget


def _fresh(unused: Sequence[Machine], ledger: Ledger) -> list[Creation]:
    """Return creations on all capacity that nothing was begun for."""
    begun = {intent.capacity_id for intent in ledger.intents}
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
    """Return how many machines may be added to so many; None: any number."""
    return max(0, limits.max_machines - managed) if limits.max_machines else None
