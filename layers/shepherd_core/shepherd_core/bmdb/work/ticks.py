"""
Ticks: what each invocation of a loop did, as its session records it when it closes.

A session that is never closed expires; the next session that closes deletes it and
records its tick as ``Expired``. Dry runs and operators' commands leave no tick.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from shepherd_core.domain.errors import cause_of
from shepherd_core.domain.errors.kinds import FailureKind
from shepherd_core.domain.record import record
from shepherd_core.telemetry import Metric

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shepherd_core.bmdb.connection import Connection

HALF_HOURS = 48
"""The number of half hours in the day that ``tick_totals`` covers."""


@dataclass(frozen=True, slots=True)
class TickHead:
    """The part of a tick's record that is known when its session opens."""

    loop: str
    provider: str
    settings_hash: str | None = None
    """Of the settings document in force; None: there is none."""
    code_version: str | None = None

    @property
    def name(self) -> str:
        """Return the name of the session, for operators."""
        return f"{self.loop}/{self.provider}"


@dataclass(frozen=True, slots=True)
class TickEnd:
    """The end of a tick."""

    counts: Mapping[str, float] = field(default_factory=dict)
    """Metrics by name."""
    error: BaseException | None = None
    """Why it failed; None: it succeeded."""

    @property
    def parameters(self) -> dict[str, str | None]:
        """Return the parameters of ``close_session``."""
        counts = json.dumps(dict(self.counts))
        if self.error is None:
            return {"outcome": "Succeeded", "kind": None, "cause": None, "counts": counts}
        cause = cause_of(self.error)
        return {"outcome": "Failed", "kind": cause.kind, "cause": cause.text, "counts": counts}


LASTING = [Metric.NO_ACCESS, Metric.FOUND_ALIVE, Metric.DRIFTED, Metric.SETTINGS_REFUSED]
"""Counts of which people want to know since when they are not 0."""


@record
class Tick:
    """The record of one invocation."""

    loop: str
    provider: str
    began_at: datetime
    ended_at: datetime
    seconds: float
    outcome: str
    """Succeeded, Failed or Expired."""
    kind: FailureKind | None
    cause: str | None
    """Why it failed."""
    counts: dict[str, float]
    """Metrics by name."""
    settings_hash: str | None
    code_version: str | None
    runtime_info: str
    failing_since: datetime | None = None
    """Since when the loop has not succeeded; None: this is not its last tick, or it succeeded."""
    lasting: dict[str, float] | None = None
    """For how many seconds before its end it has counted some of ``LASTING``; None: as above, or it failed."""


def last_ticks(connection: Connection, each: int = 1) -> list[Tick]:
    """Return the last *each* ticks of each loop at each provider, newest first."""
    return connection.fetch(Tick, "last_ticks", each=each, lasting=LASTING)


@record
class TickTotals:
    """The counts of a loop's ticks in one half hour of the last day."""

    loop: str
    half_hour: int
    """From 0, the oldest, to 47."""
    created: float
    finished: float
    failed: float
    lost: int
    """Ticks that failed or expired."""


def tick_totals(connection: Connection) -> list[TickTotals]:
    """Return what the ticks of the last day counted."""
    return connection.fetch(TickTotals, "tick_totals")
