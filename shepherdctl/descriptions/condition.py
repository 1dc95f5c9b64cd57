"""
The conditions of a fleet: each has a name, a severity, a sentence and a cure.

A test compares the names with the alarms, and with the table of docs/conditions.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from datetime import datetime

EXIT_STATUS = 3
"""Of ``shepherdctl status``, if something needs attention."""
AWS_ALONE = {"agent-api-errors", "agent-api-throttles", "agent-api-busy", "failure-queue"}
"""Alarms on what AWS counts and the BMDB does not know."""


class Severity(StrEnum):
    """How soon somebody must look."""

    URGENT = "urgent"
    """Shepherd does not do its work on some machines, or on all."""
    WARNING = "warning"
    """It works; somebody should look today."""


class ConditionName(StrEnum):
    """The conditions; people and programs read the value."""

    severity: Severity
    alarms: tuple[str, ...]
    """The alarms that tell the same, without stack and loop; none: only ``shepherdctl`` tells it."""

    def __new__(cls, name: str, severity: Severity, *alarms: str) -> Self:
        """Return a name with these fields."""
        made = str.__new__(cls, name)
        made._value_, made.severity, made.alarms = name, severity, alarms
        return made

    DATABASE_READ_ONLY = "database-read-only", Severity.URGENT
    CLOCK_DIFFERS = "clock-differs", Severity.URGENT, "failing"
    RECOVERY_LIMITED = "recovery-limited", Severity.URGENT, "recovery-limited"
    LOOP_LATE = "loop-late", Severity.URGENT, "failing"
    PROVIDER_AWAY = "provider-away", Severity.URGENT, "failing"
    LOOP_FAILS = "loop-fails", Severity.URGENT, "failing"
    BAD_AGENT = "bad-agent", Severity.URGENT
    NO_REPORTS = "no-reports", Severity.URGENT, "agent-api-silent"
    DRIFT_LIMIT_EXCEEDED = "drift-limit-exceeded", Severity.URGENT, "drift-limit-exceeded"
    LONG_WAIT = "long-wait", Severity.WARNING, "oldest-wait"
    LOOP_SLOW = "loop-slow", Severity.WARNING, "duration"
    CLOCK_JUMPED = "clock-jumped", Severity.WARNING
    OLD_TRANSACTION = "old-transaction", Severity.WARNING
    QUARANTINED = "quarantined", Severity.WARNING, "quarantined"
    REPORTS_AGAIN = "reports-again", Severity.WARNING
    RECOVERED_OFTEN = "recovered-often", Severity.WARNING
    PLACES_LOST = "places-lost", Severity.WARNING
    SETTINGS_REFUSED = "settings-refused", Severity.WARNING, "settings-refused"
    NO_ACCESS = "no-access", Severity.WARNING
    DRIFTED = "drifted", Severity.WARNING, "drifted"
    FOUND_ALIVE = "found-alive", Severity.WARNING, "found-alive"


@dataclass(frozen=True, slots=True)
class Condition:
    """Something that needs an operator."""

    name: ConditionName
    text: str
    """One sentence without a full stop: what is wrong, and where."""
    cure: str
    """What to do about it; commands stand there as they are typed."""
    provider: str | None = None
    """None: all of them."""
    location: str | None = None
    """None: no single one."""
    loop: str | None = None
    since: datetime | None = None
    """None: it is not known."""
    machines: int | None = None
    """How many it keeps from work, if that is known."""
