"""The whole fleet, for operators: counts, what holds machines back, and what fails."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from shepherd_core.domain.errors.kinds import FailureKind
from shepherd_core.domain.record import record
from shepherd_core.domain.states import State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shepherd_core.bmdb.connection import Connection

NOTICES = 50


@record
class FleetCount:
    """How many machines at a location of a provider are in a state."""

    provider: str
    location: str | None
    state: State
    ages: dict[str, int]
    """How many machines have a last heartbeat that is younger than so many of the ages; not those that need none."""
    machines: int
    being_worked_on: int
    backing_off: int
    paused: int
    """Machines to which a pause applies, their own or a wider one."""


def fleet_counts(connection: Connection, ages: Sequence[float] = ()) -> list[FleetCount]:
    """Return how many machines there are, also by *ages* of the last heartbeat in seconds."""
    return connection.fetch(FleetCount, "fleet_counts", ages=list(ages))


def locations(connection: Connection) -> list[str]:
    """Return the names of all locations where machines are."""
    return connection.fetch(str, "locations")


@record
class Notice:
    """What holds machines back, or the present time."""

    kind: str
    """budget (``machines`` may be interrupted in an hour), limit, pause, quarantine; or now, in ``since``."""
    provider: str | None
    location: str | None
    process: str | None
    machines: int | None
    owner: str | None
    reason: str | None
    """Of a limit, its number."""
    since: datetime
    until: datetime | None
    with_labels: list[str] | None
    """Of a pause of machines that have them all."""


def fleet_notices(connection: Connection) -> list[Notice]:
    """Return what holds machines back, at most NOTICES; the present time is the first."""
    return connection.fetch(Notice, "fleet_notices", limit=NOTICES)


@record
class Unsteady:
    """How many machines of a provider may need an operator although nothing fails now."""

    provider: str
    recovered_often: int
    reports_again: int
    """They are in quarantine."""
    quarantined_since: datetime | None = None
    """Of the machine that is in quarantine for the longest time."""


def unsteady(connection: Connection) -> list[Unsteady]:
    """Return how many machines are recovered often, and how many in quarantine report again."""
    return connection.fetch(Unsteady, "unsteady")


@record
class Failing:
    """What fails now in the same way."""

    loop: str
    """
    A process (machines whose work failed), quarantine, provider (machines that failed for good there), or provisioner
    (capacity under a penalty).
    """
    kind: FailureKind | None
    count: int
    examples: list[str]
    """Ids of machines or of capacity, up to three."""
    cause: str
    """The newest."""
    failed_at: datetime | None

    @property
    def of_machines(self) -> bool:
        """Return whether the examples are machines, not capacity."""
        return self.loop != "provisioner"


def failures(connection: Connection, *, provider: str | None = None, location: str | None = None) -> list[Failing]:
    """Return what fails now, without ticks."""
    return connection.fetch(Failing, "failures", provider=provider, location=location)
