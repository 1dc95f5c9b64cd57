"""What the Provisioner should do: a pure function of what the provider lists and what the BMDB knows."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shepherd_core.errors import Discrepancy, ListingInvalid
from shepherd_core.machine import INVALID, Availability, ProviderStatus

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from uuid import UUID

    from shepherd_core.bmdb.provisioning import Intent, Ledger, Provided
    from shepherd_core.machine import Machine, ProviderId


YOUNG_SECONDS = 600.0
"""A machine that was created so lately is not missed: listings lag behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How far one pass may go."""

    max_machines: int
    """Machines to manage at most; 0: no limit."""
    chunk: int
    """Machines to create in one pass at most."""
    max_disputed: int
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


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do, in this order; every step stands for itself."""

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
    differences: tuple[str, ...] = ()
    """One line for each machine about which the two sides disagree; nothing but ``set_aside`` is done about it."""


def reconcile(listing: Sequence[Machine], ledger: Ledger, limits: Limits) -> Plan:
    """
    Compare the provider's complete *listing* with the *ledger* and return what to do.

    Raises:
        ListingInvalid: the listing contradicts itself.
        Discrepancy: the two disagree about too many machines to trust either; names them all.
    """
    # Sorted, so that what is done, and what waits for the limits, does not depend on the order of a listing.
    known = {provided.provider_id: provided for provided in sorted(ledger.provided, key=lambda each: each.provider_id)}
    used, unused = _resolve(listing, known)
    adopt, differences = _adoptions(used, known, ledger)
    adopted = {intent.machine_id for intent, _ in adopt}

    unknown = [
        machine
        for provider_id, machine in used.items()
        if provider_id not in known
        and machine.token not in adopted
        and not machine.failed
        and provider_id not in differences
    ]
    if not limits.assimilate:
        for machine in unknown:
            differences[machine.provider_id] = f"{machine.provider_id} is in use at the provider and not in the BMDB"
    gone = {provider_id for provider_id, machine in used.items() if machine.status is ProviderStatus.MISSING}
    missing = [
        provided
        for provider_id, provided in known.items()
        if provider_id in gone
        or (
            provider_id not in used
            and provided.status is not ProviderStatus.PROVISIONING_FAILED_PERMANENT
            and provided.age_seconds > YOUNG_SECONDS
        )
    ]
    for provided in missing:
        differences[provided.provider_id] = (
            f"{provided.provider_id} (machine {provided.machine_id}) is in the BMDB and not in use at the provider"
        )
    tolerated = limits.max_disputed and max(limits.max_disputed, len(known) // 100)
    # What was set aside before stops nobody again: a fleet loses machines one by one, over the years. Nor does what the
    # provider itself says is gone: then there is no doubt which side is right.
    explained = [
        provided for provided in missing if provided.set_aside or provided.quarantined or provided.provider_id in gone
    ]
    if len(differences) - (len(explained) if tolerated else 0) > tolerated:
        raise Discrepancy(sorted(differences.values()))

    settled = len(known) + len(adopt)
    assimilate = unknown[: _room(limits, settled)] if limits.assimilate else []
    settled += len(assimilate)
    # An intent whose token is in dispute waits until somebody has decided which of the machines is it.
    claimed = {machine.token for provider_id, machine in used.items() if provider_id not in known}
    unclaimed = [intent for intent in ledger.intents if intent.machine_id not in claimed]
    resume, forget = _unfinished(unclaimed, unused, used, ledger, limits)
    managed = settled + len(ledger.intents) - len(adopt) - len(forget)
    create = resume[: _room(limits, settled)] + _fresh(unused, ledger)[: _room(limits, managed)]
    return Plan(
        take_back=tuple(
            provided
            for provider_id, provided in known.items()
            if provided.set_aside and not provided.quarantined and provider_id in used and provider_id not in gone
        ),
        set_aside=tuple(provided for provided in missing if not (provided.set_aside or provided.quarantined)),
        adopt=tuple(adopt),
        forget=tuple(forget),
        assimilate=tuple(assimilate),
        create=tuple(create[: limits.chunk]),
        managed=managed,
        differences=tuple(sorted(differences.values())),
    )


def in_use(listing: Sequence[Machine], known: Collection[ProviderId]) -> dict[ProviderId, Machine]:
    """
    Return the machines in use by id, where those that may be used or not are if the BMDB has them: they are *known*.

    Raises:
        ListingInvalid: the listing contradicts itself.
    """
    used: dict[ProviderId, Machine] = {}
    for machine in listing:
        named = machine.provider_id != INVALID
        match machine.availability:
            case Availability.KNOWN_UNUSED:
                pass
            case Availability.POSSIBLY_USED if not named or machine.provider_id not in known:
                pass
            case Availability.POSSIBLY_USED:
                used[machine.provider_id] = machine
            case Availability.KNOWN_USED if named:
                used[machine.provider_id] = machine
            case _:
                message = (
                    f"the provider lists {machine.provider_id} at {machine.address} with availability "
                    f"{machine.availability!r}, which it cannot have"
                )
                raise ListingInvalid(message)
    _refuse_duplicates(machine.provider_id for machine in listing if machine.provider_id != INVALID)
    return used


def _resolve(
    listing: Sequence[Machine], known: Collection[ProviderId]
) -> tuple[dict[ProviderId, Machine], list[Machine]]:
    """Return the machines in use by id, and the capacity that none of them, or of the BMDB, is; in a stable order."""
    used = in_use(listing, known)
    unused = [machine for machine in listing if machine.provider_id not in used]
    _refuse_duplicates(machine.capacity_id for machine in unused if machine.capacity_id is not None)
    occupied = {machine.capacity_id for machine in used.values()}
    free = [machine for machine in unused if machine.capacity_id not in occupied and machine.provider_id not in known]
    return dict(sorted(used.items())), sorted(free, key=lambda machine: machine.capacity_id or "")


def _refuse_duplicates(names: Iterable[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        message = f"the provider lists {', '.join(sorted(twice))} more than once"
        raise ListingInvalid(message)


def _adoptions(
    used: dict[ProviderId, Machine], known: Collection[ProviderId], ledger: Ledger
) -> tuple[list[tuple[Intent, Machine]], dict[ProviderId, str]]:
    """Return which machines are what which intents wanted, and a difference for each machine that claims too much."""
    intents = {intent.machine_id: intent for intent in ledger.intents}
    owners = {provided.machine_id: provided.provider_id for provided in ledger.provided}
    by_token: dict[UUID, list[Machine]] = {}
    for machine in used.values():
        if machine.token is not None and machine.provider_id not in known:
            by_token.setdefault(machine.token, []).append(machine)
    adopt: list[tuple[Intent, Machine]] = []
    differences: dict[ProviderId, str] = {}
    for token, machines in by_token.items():
        claimants = [machine.provider_id for machine in machines] + ([owners[token]] if token in owners else [])
        if len(claimants) > 1:
            for machine in machines:
                others = ", ".join(claimant for claimant in claimants if claimant != machine.provider_id)
                differences[machine.provider_id] = (
                    f"{machine.provider_id} carries the token {token}, and so does {others}"
                )
        elif token in intents:
            adopt.append((intents[token], machines[0]))
    return adopt, differences


def _unfinished(
    intents: Sequence[Intent],
    unused: Sequence[Machine],
    used: dict[ProviderId, Machine],
    ledger: Ledger,
    limits: Limits,
) -> tuple[list[Creation], list[Intent]]:
    """Return which interrupted creations to repeat, with their old token, and which to give up."""
    offered = {
        machine.capacity_id: machine for machine in unused if machine.capacity_id is not None and not machine.failed
    }
    occupied = {machine.capacity_id for machine in used.values()}
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


def _room(limits: Limits, managed: int) -> int | None:
    """Return how many machines may be added to so many; None: any number."""
    return max(0, limits.max_machines - managed) if limits.max_machines else None
