"""Drift: where a provider, the BMDB and the heartbeats disagree. Pure functions, for the Provisioner and operators."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from shepherd_core.domain.errors.provider import ListingInvalid
from shepherd_core.domain.machine import INVALID, Availability, ProviderStatus

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from uuid import UUID

    from shepherd_core.domain.machine import Machine, ProviderId
    from shepherd_core.domain.records import Ledger, Provided

YOUNG_SECONDS = 600.0
"""Listings lag behind. A machine younger than this is not missed, and one whose release was accepted within this time
may still be listed."""

FRESH_SECONDS = 7200.0
"""A machine with a heartbeat not older than this is alive, whatever the provider says. Agents report at least once an
hour."""


class DriftKind(StrEnum):
    """The classes of drift; each drifted machine has exactly one."""

    ADOPTABLE = "adoptable"
    """In use at the provider under our name, not in the BMDB, and not another BMDB's: its token is that of a creation
    that was begun or of a machine that was forgotten, or it has none."""
    STRANDED = "stranded"
    """No loop can complete it: it failed permanently at the provider, whether or not the BMDB has it, or its release
    was requested and it is still there. It does not count towards the drift limit."""
    VANISHED = "vanished"
    """In the BMDB, and not in use at the provider; no heartbeat for ``FRESH_SECONDS``."""
    DUPLICATED = "duplicated"
    """In use at the provider, not in the BMDB, and another machine has the same token."""
    FOREIGN = "foreign"
    """In use at the provider under our name, with a token that this BMDB never issued: another BMDB's machine."""
    DISPUTED = "disputed"
    """Contradictory: not in use at the provider although its agent reports; or released, and in use at the provider."""


@dataclass(frozen=True, slots=True)
class Drift:
    """One machine on which the two sides disagree."""

    kind: DriftKind
    provider_id: ProviderId
    machine_id: UUID | None
    """Of the machine in the BMDB, or of the creation whose machine this is. None: the BMDB has neither."""
    text: str
    """The disagreement and its evidence, on one line that begins with the provider id."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A complete listing, the BMDB's records of the same time, and the drift between them."""

    listing: Sequence[Machine]
    used: Mapping[ProviderId, Machine]
    ledger: Ledger
    moved: Mapping[ProviderId, ProviderId]
    """The machines that are not in use at the provider, and the entry of the listing that has the same hardware."""
    drift: Mapping[ProviderId, Drift]
    """Ordered by provider id."""

    @classmethod
    def of(cls, listing: Sequence[Machine], ledger: Ledger) -> Comparison:
        """
        Compare a complete *listing* with the *ledger*.

        Raises:
            ListingInvalid: the listing contradicts itself.
        """
        used = in_use(listing, ledger.known)
        moved = _moved(listing, used, ledger)
        drift = {difference.provider_id: difference for difference in compare(used, ledger, moved)}
        return cls(listing, used, ledger, moved, drift)

    def has(self, provider_id: ProviderId) -> bool:
        """Return whether the machine is in use, and not listed as gone."""
        machine = self.used.get(provider_id)
        return machine is not None and machine.status is not ProviderStatus.MISSING

    def listed(self, provider_id: ProviderId) -> Machine | None:
        """Return the entry of the listing with this id."""
        return next((machine for machine in self.listing if machine.provider_id == provider_id), None)

    def unknown(self, kind: DriftKind) -> tuple[ProviderId, ...]:
        """Return the machines of one class of drift that are in use at the provider and not in the BMDB."""
        return tuple(name for name, each in self.drift.items() if each.kind is kind and name not in self.ledger.known)

    def machine(self, machine_id: UUID) -> Provided | None:
        """Return the BMDB's record of the machine; None: it is not a machine of this provider."""
        return next((provided for provided in self.ledger.provided if provided.machine_id == machine_id), None)


def compare(used: Mapping[ProviderId, Machine], ledger: Ledger, moved: Mapping[ProviderId, ProviderId]) -> list[Drift]:
    """
    Return the drift between the machines *used* at the provider and the *ledger*, ordered by provider id.

    *moved*: as of ``Comparison``.
    """
    known, missing = ledger.known, ProviderStatus.MISSING
    unknown = [used[name] for name in used.keys() - known.keys()]
    # Nearly all machines in the BMDB are in use, without a failure or a release. Only the others are examined singly.
    absent = known.keys() - used.keys()
    unwell = {name for name, machine in used.items() if machine.failed or machine.status is missing}
    leaving = {
        provided.provider_id
        for provided in ledger.provided
        if provided.asked_seconds is not None or provided.released_seconds is not None
    }
    found = [
        _known_drift(known[name], used.get(name), moved.get(name))
        for name in absent | leaving | (unwell & known.keys())
    ]
    if unknown:
        found += _unknown_drift(unknown, ledger)
    return sorted((difference for difference in found if difference), key=lambda difference: difference.provider_id)


def _unknown_drift(unknown: Sequence[Machine], ledger: Ledger) -> list[Drift | None]:
    """Return the drift of each machine in use that the BMDB does not have; None: it has none."""
    claims = _claims(unknown, ledger)
    begun = {intent.machine_id for intent in ledger.intents}
    forgotten = {tombstone.machine_id for tombstone in ledger.tombstones if not tombstone.released}
    released = {name for each in ledger.tombstones if each.released for name in (each.machine_id, each.provider_id)}

    def drift(machine: Machine) -> Drift | None:
        name, token = machine.provider_id, machine.token
        place = f"{name} is in use at the provider and not in the BMDB"
        if others := sorted(claimant for claimant in claims[token] if claimant != name):
            kind, words = DriftKind.DUPLICATED, f"{name} carries the token {token}, and so does {', '.join(others)}"
        elif token in begun:
            return Drift(DriftKind.ADOPTABLE, name, token, f"{place}, which began to create it")
        elif machine.status is ProviderStatus.MISSING:
            return None  # it is gone, and no record refers to it
        elif machine.failed:
            kind, words = DriftKind.STRANDED, f"{place}, and has failed permanently"
        elif token in released or name in released:
            kind, words = DriftKind.DISPUTED, f"{name} was released and is in use at the provider"
        elif token in forgotten:
            kind, words = DriftKind.ADOPTABLE, f"{place}, which has forgotten it as machine {token}"
        elif token is None:
            kind, words = DriftKind.ADOPTABLE, place
        else:
            kind, words = DriftKind.FOREIGN, f"{place}, which never issued its token {token}"
        return Drift(kind, name, None, words)

    return [drift(machine) for machine in unknown]


def _claims(unknown: Sequence[Machine], ledger: Ledger) -> Mapping[UUID | None, Sequence[ProviderId]]:
    """Return the machines that carry each token of the *unknown* ones, including machines of the BMDB."""
    claims: dict[UUID | None, list[ProviderId]] = {machine.token: [] for machine in unknown}
    for provided in ledger.provided:
        if provided.machine_id in claims:
            claims[provided.machine_id].append(provided.provider_id)
    for machine in unknown:
        if machine.token is not None:
            claims[machine.token].append(machine.provider_id)
    return claims


def _moved(
    listing: Sequence[Machine], used: Mapping[ProviderId, Machine], ledger: Ledger
) -> dict[ProviderId, ProviderId]:
    """Return, for machines that are not in use, the entry of the same hardware under an id that the BMDB lacks."""
    gone = [ledger.known[name] for name in ledger.known.keys() - used.keys()]
    gone = [each for each in gone if each.released_seconds is None and (each.hardware or each.address or each.host_key)]
    if not gone:
        return {}
    others = [
        machine for machine in listing if machine.provider_id not in ledger.known and machine.provider_id != INVALID
    ]
    by_hardware = {machine.hardware: machine for machine in others if machine.hardware}
    by_key = {machine.host_key: machine for machine in others if machine.host_key}
    by_address = {str(machine.address): machine for machine in others if machine.address is not None}
    found: dict[ProviderId, ProviderId] = {}
    for each in gone:
        machine = (
            by_hardware.get(each.hardware or "")
            or by_key.get(each.host_key or "")
            or by_address.get(each.address or "")
        )
        if machine is not None and _same(each, machine):
            found[each.provider_id] = machine.provider_id
    return found


def _same(provided: Provided, machine: Machine) -> bool:
    """Return whether nothing contradicts that the two, which have something in common, are one machine."""
    for ours, theirs in ((provided.hardware, machine.hardware), (provided.host_key, machine.host_key)):
        if ours and theirs:
            return ours == theirs  # if not, one has got the address of the other
    return True


def _known_drift(provided: Provided, machine: Machine | None, moved_to: ProviderId | None) -> Drift | None:
    if machine is None or machine.status is ProviderStatus.MISSING:
        found = _absent(provided, listed=machine is not None)
    else:
        found = _present(provided, machine)
    if found is None:
        return None
    words = f"{provided.provider_id} (machine {provided.machine_id}) {found[1]}"
    if moved_to is not None:
        words += f"; {moved_to} has its hardware, host key or address"
    return Drift(found[0], provided.provider_id, provided.machine_id, words)


def _present(provided: Provided, machine: Machine) -> tuple[DriftKind, str] | None:
    """Return the drift of a machine in the BMDB that is in use at the provider."""
    if provided.released_seconds is not None:
        late = provided.released_seconds > YOUNG_SECONDS
        return (DriftKind.STRANDED, "is still in use although its release was accepted") if late else None
    if provided.asked_seconds is not None:
        return DriftKind.STRANDED, "was to be released, and it is not on record whether the provider accepted"
    return (DriftKind.STRANDED, "has failed permanently at the provider") if machine.failed else None


def _absent(provided: Provided, *, listed: bool) -> tuple[DriftKind, str] | None:
    """Return the drift of a machine in the BMDB that is not in use; *listed*: the provider lists it as missing."""
    if provided.released_seconds is not None:
        return None  # as intended
    if provided.status is ProviderStatus.PROVISIONING_FAILED_PERMANENT and not listed:
        return DriftKind.STRANDED, "has failed permanently at the provider and is not listed any more"
    if provided.age_seconds <= YOUNG_SECONDS and not listed:
        return None
    words = "is in the BMDB and not in use at the provider"
    if alive(provided):
        return DriftKind.DISPUTED, f"{words}, but its agent reported {provided.heartbeat_seconds:.0f} s ago"
    return DriftKind.VANISHED, words


def alive(provided: Provided) -> bool:
    """Return whether its agent reported within the last two hours."""
    return provided.heartbeat_seconds is not None and provided.heartbeat_seconds <= FRESH_SECONDS


def in_use(listing: Sequence[Machine], known: Collection[ProviderId]) -> dict[ProviderId, Machine]:
    """
    Return the machines in use, by provider id. A ``POSSIBLY_USED`` one is in use if the BMDB has it: it is in *known*.

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
    # If every entry is a machine in use, listed once and with an id, the listing cannot contradict itself.
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
                f"{machine.availability!r}; it must be one of {', '.join(availabilities)}, and a used machine has an id"
            )
            raise ListingInvalid(message)


def refuse_duplicates(names: Iterable[str]) -> None:
    """
    Check that no name comes twice.

    Raises:
        ListingInvalid: a name comes twice.
    """
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        message = f"the provider lists {', '.join(sorted(twice))} more than once"
        raise ListingInvalid(message)
