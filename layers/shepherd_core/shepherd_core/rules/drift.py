"""Where a provider, the BMDB and the heartbeats disagree: one pure function, for the Provisioner and for people."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from shepherd_core.domain.errors import ListingInvalid
from shepherd_core.domain.machine import INVALID, Availability, ProviderStatus

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from uuid import UUID

    from shepherd_core.domain.machine import Machine, ProviderId
    from shepherd_core.domain.records import Ledger, Provided

YOUNG_SECONDS = 600.0
"""A machine that was created so lately is not missed, and one whose release was accepted so lately may still be listed:
listings lag behind."""

FRESH_SECONDS = 3600.0
"""A heartbeat that is not older than this is a sign of life, whatever the provider says."""


class DriftKind(StrEnum):
    """The class of a difference; each has exactly one."""

    ADOPTABLE = "adoptable"
    """In use at the provider under our name, not in the BMDB, and nobody else's: its token is that of a creation that
    was begun or of a machine that was forgotten, or it has none."""
    STRANDED = "stranded"
    """In the BMDB, and no loop can finish with it: the provider gave up on it, or its release was asked for and the
    machine is still there. The two sides do not contradict each other, so the Provisioner does not count it."""
    VANISHED = "vanished"
    """In the BMDB, and not in use at the provider; no heartbeat for ``FRESH_SECONDS``."""
    DUPLICATED = "duplicated"
    """In use at the provider, not in the BMDB, and another machine has the same token."""
    FOREIGN = "foreign"
    """In use at the provider under our name, with a token that this BMDB never gave: another BMDB's machine."""
    DISPUTED = "disputed"
    """Contradictory: not in use at the provider, and its agent reports; or released, and in use at the provider."""


@dataclass(frozen=True, slots=True)
class Drift:
    """One machine about which the sides disagree."""

    kind: DriftKind
    provider_id: ProviderId
    machine_id: UUID | None = None
    """In the BMDB: a machine, or the creation whose machine this is. None: the BMDB has neither."""
    words: str = field(default="", compare=False)
    """What is wrong, on one line that begins with the provider id; the evidence included."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a complete listing and the BMDB said at one time."""

    used: Mapping[ProviderId, Machine]
    ledger: Ledger
    differences: Mapping[ProviderId, Drift]
    at: float
    """By the clock of whoever looked."""

    @classmethod
    def of(cls, listing: Sequence[Machine], ledger: Ledger, at: float = 0.0) -> Comparison:
        """
        Compare a complete *listing* with the *ledger*.

        Raises:
            ListingInvalid: the listing contradicts itself.
        """
        used = in_use(listing, ledger.known)
        return cls(used, ledger, {difference.provider_id: difference for difference in compare(used, ledger)}, at)

    def has(self, provider_id: ProviderId) -> bool:
        """Return whether the machine is in use, and not listed as gone."""
        machine = self.used.get(provider_id)
        return machine is not None and machine.status is not ProviderStatus.MISSING

    def machine(self, machine_id: UUID) -> Provided | None:
        """Return what the BMDB has under that id; None: no machine of this provider."""
        return next((provided for provided in self.ledger.provided if provided.machine_id == machine_id), None)


def agreed(first: Comparison, second: Comparison) -> list[tuple[Drift, bool]]:
    """
    Return the differences of both looks by provider id, as last seen, and whether the looks agree on each.

    Nothing may be done about those on which they do not.
    """
    return [
        (
            second.differences.get(provider_id) or first.differences[provider_id],
            first.differences.get(provider_id) == second.differences.get(provider_id),
        )
        for provider_id in sorted({*first.differences, *second.differences})
    ]


def compare(used: Mapping[ProviderId, Machine], ledger: Ledger) -> list[Drift]:
    """Return the differences between the machines *used* at the provider and the *ledger*, by provider id."""
    known, missing = ledger.known, ProviderStatus.MISSING
    strangers = [used[name] for name in used.keys() - known.keys()]
    # Nearly all that the BMDB has is there, and well, and to stay. Only the others are judged one by one.
    absent = known.keys() - used.keys()
    unwell = {name for name, machine in used.items() if machine.failed or machine.status is missing}
    leaving = {
        provided.provider_id
        for provided in ledger.provided
        if provided.asked_seconds is not None or provided.released_seconds is not None
    }
    found = [_judge_known(known[name], used.get(name)) for name in absent | leaving | (unwell & known.keys())]
    if strangers:
        found += _judge_strangers(strangers, ledger)
    return sorted((difference for difference in found if difference), key=lambda difference: difference.provider_id)


def _judge_strangers(strangers: Sequence[Machine], ledger: Ledger) -> list[Drift | None]:
    """Return what is wrong with each machine in use that the BMDB has not."""
    claims = _claims(strangers, ledger)
    begun = {intent.machine_id for intent in ledger.intents}
    forgotten = {departed.machine_id for departed in ledger.departed if not departed.released}
    released = {name for each in ledger.departed if each.released for name in (each.machine_id, each.provider_id)}

    def judge(machine: Machine) -> Drift | None:
        name, token = machine.provider_id, machine.token
        strange = f"{name} is in use at the provider and not in the BMDB"
        if others := sorted(claimant for claimant in claims[token] if claimant != name):
            kind, words = DriftKind.DUPLICATED, f"{name} carries the token {token}, and so does {', '.join(others)}"
        elif token in begun:
            return Drift(DriftKind.ADOPTABLE, name, token, f"{strange}, which began to create it")
        elif machine.failed or machine.status is ProviderStatus.MISSING:
            return None  # it is nobody's any more
        elif token in released or name in released:
            kind, words = DriftKind.DISPUTED, f"{name} was released and is in use at the provider"
        elif token in forgotten:
            kind, words = DriftKind.ADOPTABLE, f"{strange}, which has forgotten it as machine {token}"
        elif token is None:
            kind, words = DriftKind.ADOPTABLE, strange
        else:
            kind, words = DriftKind.FOREIGN, f"{strange}, which never gave its token {token}"
        return Drift(kind, name, None, words)

    return [judge(machine) for machine in strangers]


def _claims(strangers: Sequence[Machine], ledger: Ledger) -> Mapping[UUID | None, Sequence[ProviderId]]:
    """Return which machines claim each token of the *strangers*, the BMDB's own among them; no token: nobody."""
    claims: dict[UUID | None, list[ProviderId]] = {machine.token: [] for machine in strangers}
    for provided in ledger.provided:
        if provided.machine_id in claims:
            claims[provided.machine_id].append(provided.provider_id)
    for machine in strangers:
        if machine.token is not None:
            claims[machine.token].append(machine.provider_id)
    return claims


def _judge_known(provided: Provided, machine: Machine | None) -> Drift | None:
    if machine is None or machine.status is ProviderStatus.MISSING:
        found = _absent(provided, listed=machine is not None)
    else:
        found = _present(provided, machine)
    if found is None:
        return None
    words = f"{provided.provider_id} (machine {provided.machine_id}) {found[1]}"
    return Drift(found[0], provided.provider_id, provided.machine_id, words)


def _present(provided: Provided, machine: Machine) -> tuple[DriftKind, str] | None:
    """Return what is wrong with a machine of the BMDB that the provider has in use."""
    if provided.released_seconds is not None:
        late = provided.released_seconds > YOUNG_SECONDS
        return (DriftKind.STRANDED, "is still in use although its release was accepted") if late else None
    if provided.asked_seconds is not None:
        return DriftKind.STRANDED, "was to be released, and whether the provider heard of it is not on record"
    return (DriftKind.STRANDED, "is one that the provider gave up on") if machine.failed else None


def _absent(provided: Provided, *, listed: bool) -> tuple[DriftKind, str] | None:
    """Return what is wrong with a machine of the BMDB that the provider has not in use; *listed*: and says so."""
    if provided.released_seconds is not None:
        return None  # as was wanted
    if provided.status is ProviderStatus.PROVISIONING_FAILED_PERMANENT and not listed:
        return DriftKind.STRANDED, "is one that the provider gave up on and lists no more"
    if provided.age_seconds <= YOUNG_SECONDS and not listed:
        return None
    words = "is in the BMDB and not in use at the provider"
    if alive(provided):
        return DriftKind.DISPUTED, f"{words}, but its agent reported {provided.heartbeat_seconds:.0f} s ago"
    return DriftKind.VANISHED, words


def alive(provided: Provided) -> bool:
    """Return whether its agent reported lately."""
    return provided.heartbeat_seconds is not None and provided.heartbeat_seconds <= FRESH_SECONDS


def in_use(listing: Sequence[Machine], known: Collection[ProviderId]) -> dict[ProviderId, Machine]:
    """
    Return the machines in use by id, where those that may be used or not are if the BMDB has them: they are *known*.

    Raises:
        ListingInvalid: the listing contradicts itself.
    """
    certain, perhaps = Availability.KNOWN_USED, Availability.POSSIBLY_USED
    used = {
        machine.provider_id: machine
        for machine in listing
        if machine.availability == certain
        or (machine.availability == perhaps and machine.provider_id in known and machine.provider_id != INVALID)
    }
    # A listing of nothing but machines in use, each once and with an id, contradicts itself in nothing.
    if len(used) < len(listing) or INVALID in used:
        _refuse_impossible(listing)
        refuse_duplicates(machine.provider_id for machine in listing if machine.provider_id != INVALID)
    return used


def _refuse_impossible(listing: Sequence[Machine]) -> None:
    availabilities = tuple(Availability)
    for machine in listing:
        if machine.availability not in availabilities or (
            machine.provider_id == INVALID and machine.availability == Availability.KNOWN_USED
        ):
            message = (
                f"the provider lists {machine.provider_id} at {machine.address} with availability "
                f"{machine.availability!r}, which it cannot have"
            )
            raise ListingInvalid(message)


def refuse_duplicates(names: Iterable[str]) -> None:
    """
    See that no name comes twice.

    Raises:
        ListingInvalid: one does.
    """
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        message = f"the provider lists {', '.join(sorted(twice))} more than once"
        raise ListingInvalid(message)
