"""
Log lines and metrics for operators, as JSON on standard output.

The names of metrics and of log keys are defined here and nowhere else.
Powertools is imported when the first line is written. The log level is not set here:
Lambda's own setting (``AWS_LAMBDA_LOG_LEVEL``) decides or, if it is not set,
``POWERTOOLS_LOG_LEVEL``.
"""

from __future__ import annotations

import functools
import json
import logging
import math
import sys
import time
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from datetime import date
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Any, Self, TextIO

if TYPE_CHECKING:
    from aws_lambda_powertools import Logger

NAMESPACE = "Shepherd"
"""The CloudWatch namespace of all metrics."""
COUNTS = "counts"
"""The message of the line with the counts of an invocation."""

_ALARM = ("provider",)


class Metric(StrEnum):
    """
    A count of an invocation; the value is its name in the log line and in the result of a function.

    CloudWatch gets those that an alarm evaluates, while they are not 0. The others
    are only in the log, because CloudWatch charges for each metric.
    """

    unit: str
    """As CloudWatch spells it."""
    dimensions: tuple[str, ...]
    """Its dimensions in CloudWatch; none: it is only in the log."""

    def __new__(cls, name: str, dimensions: tuple[str, ...] = (), unit: str = "Count") -> Self:
        """Return a metric with these fields."""
        metric = str.__new__(cls, name)
        metric._value_, metric.unit, metric.dimensions = name, unit, dimensions
        return metric

    CLAIMED = "claimed"
    """Machines that this invocation claimed."""
    FINISHED = "finished"
    """Machines whose work succeeded and is committed."""
    FAILED = "failed"
    """Machines whose work failed; they back off."""
    CANCELED = "canceled"
    """Machines that were given back untouched for lack of time."""
    NO_LONGER_DUE = "no_longer_due"
    """Machines that were due for recovery and left alone: they report again, or are paused."""
    HELD_BACK = "held_back"
    """Machines that were due for recovery and wait for its budget."""
    NOT_TAKEN = "not_taken"
    """Steps of recovery that were attempted and that the provider certainly did not take."""
    FOUND_ALIVE = "found_alive", _ALARM
    """Unhealthy machines that answered over SSH: only their agents are restarted."""
    BACKLOG = "backlog"
    """Machines that were due and not claimed when the invocation ended."""
    OLDEST_DUE_AGE = "oldest_due_age_seconds", _ALARM, "Seconds"
    """Seconds since the oldest of these machines became due."""
    INCOMPLETE = "incomplete"
    """1 if the invocation ran out of time before it ran out of work, else 0."""
    RECOVERY_LIMITED = "recovery_limited", _ALARM
    """Locations, and the provider, whose budget of recovery is smaller than usual or used up."""
    DEAD = "dead"
    """Machines that do not report and were not found alive, and those interrupted in the last six hours."""
    QUARANTINED = "quarantined", _ALARM
    """Quarantined machines; no loop touches them until an operator ends the quarantine."""
    NO_ACCESS = "no_access"
    """Machines on which no agent can be started until an operator acts: wrong host key, login or address."""
    CREATED = "created"
    """Machines that were created at the provider."""
    INTENTS_COMPLETED = "intents_completed"
    """Machines that an interrupted invocation created, and that this one found at the provider and recorded."""
    INTENTS_ABANDONED = "intents_abandoned"
    """Intents that were dropped because their machine was never created."""
    ASSIMILATED = "assimilated"
    """Unknown machines at the provider that were taken into the BMDB."""
    DRIFTED = "drifted", _ALARM
    """Machines with drift that the Provisioner does not repair."""
    DRIFT_LIMIT_EXCEEDED = "drift_limit_exceeded", _ALARM
    """1 if more machines drifted than the limit allows, so that the invocation changed nothing, else 0."""
    CAPACITY_PENALIZED = "capacity_penalized"
    """Capacity whose creations failed and that is not used for a while."""
    MACHINES_TOTAL = "machines_total", _ALARM
    """Machines of this provider that count towards the limit: those in the BMDB, and intents."""
    WAITING_FOR_LIMIT = "waiting_for_limit"
    """Capacity at the provider that stays unused because the limit of machines is reached."""
    UPDATED = "updated"
    """Machines whose record was updated from the provider's listing."""
    NOT_READY = "not_ready"
    """Machines recorded as neither up, nor missing, nor failed permanently."""
    MISSING = "missing"
    """Machines recorded as missing, because the provider does not list them any more."""
    LEFT = "left"
    """1 in the tick of an invocation that left the work to a concurrent one."""
    SETTINGS_REFUSED = "settings_refused", _ALARM
    """1 if the settings document was refused, so that the last good one stays in force; else not written."""


_bound: dict[str, object] = {}


def bind(**keys: object) -> None:
    """Add *keys* (``request_id``, ``loop``, ``provider``, …) to every line, from any thread, until ``unbind``."""
    _bound.update(keys)


def bound() -> dict[str, Any]:
    """Return the bound keys."""
    return dict(_bound)


def unbind() -> None:
    """Remove all bound keys. Call it when an invocation ends: the next one may run in the same process."""
    _bound.clear()


def info(message: str, /, **facts: object) -> None:
    """Write one line. *message* is fixed text; varying parts go into *facts*, which keep their names."""
    _logger().info(message, extra=_extra(facts), stacklevel=3)


def warning(message: str, /, **facts: object) -> None:
    """Write one line about a condition that an operator should check in time; as ``info``."""
    _logger().warning(message, extra=_extra(facts), stacklevel=3)


def error(message: str, /, *, exc: BaseException | None = None, **facts: object) -> None:
    """Write one line about a failure; as ``info``. *exc* is logged with its traceback and causes."""
    _logger().error(message, exc_info=exc, extra=_extra(facts), stacklevel=3)


def emit(loop: str, provider: str, counts: Mapping[Metric, float]) -> None:
    """
    Write *counts* as one log line, from which CloudWatch takes the metrics that are not 0.

    Call it once, after everything that is counted has been committed. Without
    *counts* nothing is written.
    """
    if not counts:
        return
    dimensions = {"loop": loop, "provider": provider}
    line: dict[str, object] = {"message": COUNTS, **_bound, **dimensions}
    line |= {metric.value: count for metric, count in counts.items()}
    metrics = [metric for metric, count in counts.items() if metric.dimensions and count]
    if metrics:
        line["_aws"] = {
            "Timestamp": int(time.time() * 1000),  # noqa: TID251 - CloudWatch requires it, and nothing else reads it
            "CloudWatchMetrics": [
                {
                    "Namespace": NAMESPACE,
                    "Dimensions": [list(of)],
                    "Metrics": [
                        {"Name": metric.value, "Unit": metric.unit} for metric in metrics if metric.dimensions == of
                    ],
                }
                for of in dict.fromkeys(metric.dimensions for metric in metrics)
            ],
        }
    # In one write, so that no line of another thread gets into it.
    sys.stdout.write(json.dumps(_plain(line), separators=(",", ":")) + "\n")
    sys.stdout.flush()


class _Stdout(logging.StreamHandler[TextIO]):
    """Looks up standard output for each line, because it may have been redirected."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]  # a plain attribute there
        return sys.stdout


@functools.cache
def _logger() -> Logger:
    from aws_lambda_powertools import Logger  # noqa: PLC0415 - takes an eighth of a second, so only when needed

    return Logger(
        service="shepherd",
        logger_handler=_Stdout(),
        json_serializer=_serialize,
        json_deserializer=_verbatim,
        serialize_stacktrace=False,  # would repeat the traceback in another form
        utc=True,
        use_rfc3339=True,  # Lambda filters by level only lines with such a time
    )


def _extra(facts: dict[str, object]) -> dict[str, object]:
    # Under one key, because logging refuses extra keys that are attributes of its records: name, process, module.
    return {"facts": {**_bound, **facts}}


def _verbatim(message: object) -> str:
    return str(message)  # else a message that happens to be JSON would be parsed


def _serialize(line: dict[str, Any]) -> str:
    facts: dict[str, object] = line.pop("facts", {})
    for key, value in facts.items():
        line[f"{key}_" if key in line else key] = value
    return json.dumps(_plain(line), separators=(",", ":"))


def _plain(value: object) -> object:  # noqa: PLR0911 - a table
    """Return *value* in JSON types. Every value is accepted: a log line must not fail."""
    match value:
        case Enum():
            return _plain(value.value)
        case None | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case bytes() | bytearray():
            return value.decode(errors="backslashreplace")
        case date():  # a datetime is one too
            return value.isoformat()
        case BaseException():
            return f"{type(value).__name__}: {value}"
        case Mapping():
            return {str(_plain(key)): _plain(item) for key, item in value.items()}
        case AbstractSet():
            return sorted((_plain(item) for item in value), key=str)
        case list() | tuple():
            return [_plain(item) for item in value]
        case _:
            return str(value)
