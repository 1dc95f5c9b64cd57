"""
The Updater's part of the BMDB: the facts that providers list about their machines, and when they were listed.

There is one Updater at a time for each provider, from ``begin`` until its
session ends. Another can take its place only when that session has expired. From
then on, writes of the expired session are refused: facts never go back to those
of an older listing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING
from uuid import UUID

from shepherd_core.bmdb.connection import as_rows, sanitize_for_db
from shepherd_core.bmdb.listings.provisioning import paused
from shepherd_core.domain.errors.bmdb import SessionExpired
from shepherd_core.domain.machine import LONGEST_TEXT, ProviderId, ProviderStatus
from shepherd_core.domain.record import record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shepherd_core.bmdb.connection import Connection
    from shepherd_core.bmdb.session import Session
    from shepherd_core.domain.machine import Machine

CHUNK = 500
"""The most changes that one statement writes."""
LONGEST_WORD = 500
"""Characters that are stored of what a provider says of a failure, or of the hardware."""


@record
class ProviderFacts:
    """The facts that a provider lists about a machine, as the BMDB stores them."""

    reservation_id: str | None
    address: str | None
    location: str | None
    status: ProviderStatus | None
    """None: the provider has not been asked yet."""
    failure: str | None
    """Its words about a failure for good."""
    hardware: str | None
    """The name of the hardware, such as its BMC."""
    labels: dict[str, str]
    """Those that people gave it there."""

    @classmethod
    def of(cls, machine: Machine) -> ProviderFacts:
        """
        Return the facts in the listing.

        Texts too long for the BMDB are cut: refusing them would block all other machines.
        """
        address = None if machine.address is None else str(machine.address)
        failure, hardware = _text(machine.failure, LONGEST_WORD), _text(machine.hardware, LONGEST_WORD)
        return cls(
            _text(machine.reservation_id),
            address,
            _text(machine.location),
            machine.status,
            failure,
            hardware,
            dict(machine.labels),
        )


@record
class KnownMachine(ProviderFacts):
    """A machine of the provider, with its facts on record."""

    machine_id: UUID
    provider_id: ProviderId
    age_seconds: float
    """Since its creation was decided."""

    @property
    def facts(self) -> ProviderFacts:
        """Return its facts on record."""
        return ProviderFacts(*(getattr(self, each.name) for each in fields(ProviderFacts)))


@dataclass(frozen=True, slots=True)
class FactsChange:
    """New facts of a machine, which may equal the old ones."""

    known: KnownMachine
    now: ProviderFacts

    @property
    def changed(self) -> dict[str, tuple[object, object]]:
        """Return the facts that differ: by name, the old and the new value."""
        was, now = asdict(self.known.facts), asdict(self.now)
        return {name: (was[name], now[name]) for name in now if was[name] != now[name]}

    @property
    def summary(self) -> dict[str, object]:
        """Return the change as fields for logs and output."""
        return {"machine_id": self.known.machine_id, "provider_id": self.known.provider_id, "changed": self.changed}


@record
class ListingStatus:
    """Whether there is anything to update."""

    not_ready: int
    """Number of machines about which the next listing may say something new."""
    due: bool
    """All machines are due for a comparison with the listing."""
    holder: UUID | None
    """The session of the last Updater; None: there was none."""
    holder_alive: bool
    """Whether that session is alive."""
    paused: str | None = None
    """The owner and reason of the pause; None: not paused."""

    @property
    def wanted(self) -> bool:
        """Return whether the provider is to be asked for a listing."""
        return self.due or self.not_ready > 0


def check(connection: Connection, provider: str, update_seconds: float) -> ListingStatus:
    """Return whether there is anything to update; usually not. Facts of steady machines may be *update_seconds* old."""
    (status,) = connection.fetch(ListingStatus, "check_listing", provider=provider, seconds=update_seconds)
    return replace(status, paused=paused(connection, provider, "updater")) if status.wanted else status


def begin(session: Session, provider: str, holder: UUID | None) -> bool:
    """
    Become the one Updater of *provider* in place of *holder*, which had expired; False: another was faster.

    Read the known machines next, and only then ask the provider for its listing.
    """
    return bool(session.fetch_once(str, "begin_listing", provider=provider, holder=holder))


def known(connection: Connection, provider: str, *, everything: bool) -> list[KnownMachine]:
    """Return all machines of *provider*, or only those that are not ready, in no particular order."""
    return connection.fetch(KnownMachine, "all_facts" if everything else "facts_not_ready", provider=provider)


def write(session: Session, provider: str, changes: Sequence[FactsChange]) -> list[FactsChange]:
    """
    Record up to ``CHUNK`` changes in one statement; return those whose machines still exist. May run twice.

    Raises:
        SessionExpired: the session has expired, or another Updater took its place; nothing was recorded.
    """
    rows = as_rows({"machine_id": change.known.machine_id, **asdict(change.now)} for change in changes)
    written = set(session.fetch(UUID, "write_facts", provider=provider, rows=rows))
    if not written:
        raise SessionExpired
    return [change for change in changes if change.known.machine_id in written]


def end(session: Session, provider: str) -> None:
    """
    Record that all machines of *provider* were compared with the listing of this session. May run twice.

    Raises:
        SessionExpired: another Updater took its place.
    """
    if not session.run("end_listing", provider=provider):
        raise SessionExpired


def _text(text: str | None, longest: int = LONGEST_TEXT) -> str | None:
    return None if text is None else sanitize_for_db(text)[:longest]
