"""
What Shepherd tells its operators: log lines and metrics, as JSON on standard output.

The names of metrics and of log keys are here and nowhere else. Powertools is
loaded with the first line. The level is not set here: Lambda's own setting
(``AWS_LAMBDA_LOG_LEVEL``) decides or, where there is none, ``POWERTOOLS_LOG_LEVEL``.
"""

from __future__ import annotations

import functools
import json
import logging
import math
import sys
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from datetime import date
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from aws_lambda_powertools import Logger

NAMESPACE = "Shepherd"
"""The CloudWatch namespace of all metrics."""


class Metric(StrEnum):
    """What is counted; the value is its name in CloudWatch and in what a function returns."""

    CLAIMED = "claimed"
    """Machines whose work this invocation took on."""
    FINISHED = "finished"
    """Machines whose work succeeded and is committed."""
    FAILED = "failed"
    """Machines whose work failed; they are in backoff."""
    CANCELED = "canceled"
    """Machines whose work was given back untouched for lack of time."""
    SPARED = "spared"
    """Machines that were to be recovered and were not touched: they report again, or somebody holds that up."""
    NOT_TAKEN = "not_taken"
    """Steps of recovery that the provider was asked for, or would have been, and certainly did not take."""
    BACKLOG = "backlog"
    """Machines that were due and not taken on when the invocation ended."""
    OLDEST_DUE_AGE = "oldest_due_age_seconds"
    """How long the machine that has been due longest has been waiting."""
    INCOMPLETE = "incomplete"
    """1 if the invocation ran out of time before it ran out of work, else 0."""
    RECOVERY_SUSPENDED = "recovery_suspended"
    """Locations (or 1 for the provider as a whole) where too many machines are silent at once to recover any."""
    UNHEALTHY = "unhealthy"
    """Machines that fell silent, of those that were looked at."""
    STARTUP_TIMEOUTS = "startup_timeouts"
    """Machines whose agent never reported, of those that were looked at."""
    QUARANTINED = "quarantined"
    """Machines that recovery gave up on, and that no loop touches until an operator says so."""
    NO_ACCESS = "no_access"
    """Machines on which no agent can be started until an operator acts: host key, login or address are not right."""
    CREATED = "created"
    """Machines that the provider was made to create."""
    ADOPTED = "adopted"
    """Machines of an earlier, interrupted pass that were found at the provider and recorded."""
    FORGOTTEN = "forgotten"
    """Intents to create a machine that never happened and were dropped."""
    ASSIMILATED = "assimilated"
    """Unknown machines at the provider that were taken into the BMDB."""
    DISPUTED = "disputed"
    """Machines about which provider and BMDB disagree, set aside one by one."""
    DRIFT_LIMIT_EXCEEDED = "drift_limit_exceeded"
    """1 if provider and BMDB disagree in bulk, so that the pass did nothing, else 0."""
    CAPACITY_PENALIZED = "capacity_penalized"
    """Capacity that failed and is left alone for a while."""
    MACHINES_TOTAL = "machines_total"
    """Machines of this provider in the BMDB."""
    WAITING = "waiting_for_limit"
    """Places at the provider that stay unused because so many machines are managed as may be."""
    UPDATED = "updated"
    """Machines of which something else was put on record, because the provider says so."""
    NOT_READY = "not_ready"
    """Machines that were on record as neither up, nor missing, nor failed for good."""
    MISSING = "missing"
    """Machines that were put on record as missing, because the provider does not list them any more."""
    REPAIRED = "repaired"
    """Machines whose due row disagreed with the facts, and was mended; 0, unless something is broken."""

    @property
    def unit(self) -> str:
        """Return the unit as CloudWatch spells it."""
        return "Seconds" if self is Metric.OLDEST_DUE_AGE else "Count"


_bound: dict[str, object] = {}


def bind(**keys: object) -> None:
    """Add *keys* (``request_id``, ``loop``, ``provider``, …) to every line, from any thread, until ``unbind``."""
    _bound.update(keys)


def unbind() -> None:
    """Forget all bound keys; to be called when an invocation ends, since the next one may use this process."""
    _bound.clear()


def info(message: str, /, **facts: object) -> None:
    """Write one line: *message* is fixed text, and what varies goes into *facts*, which keep their names."""
    _logger().info(message, extra=_extra(facts), stacklevel=3)


def warning(message: str, /, **facts: object) -> None:
    """Write one line about what somebody should look at when there is time; as ``info``."""
    _logger().warning(message, extra=_extra(facts), stacklevel=3)


def error(message: str, /, *, exc: BaseException | None = None, **facts: object) -> None:
    """Write one line about what failed; as ``info``. *exc* is told with its traceback and causes."""
    _logger().error(message, exc_info=exc, extra=_extra(facts), stacklevel=3)


def emit(loop: str, provider: str, counts: Mapping[Metric, float]) -> None:
    """
    Write *counts* as one metric record with the dimensions *loop* and *provider*, and no others.

    To be called once, when everything that is counted has been committed.
    Nothing is written when there is nothing to count.
    """
    if not counts:
        return
    from aws_lambda_powertools.metrics.provider.cloudwatch_emf.cloudwatch import (  # noqa: PLC0415 - see above
        AmazonCloudWatchEMFProvider,
    )

    record = AmazonCloudWatchEMFProvider(namespace=NAMESPACE)
    record.service = ""  # else POWERTOOLS_SERVICE_NAME would become a third dimension
    record.add_dimension("loop", loop)
    record.add_dimension("provider", provider)
    for metric, count in counts.items():
        record.add_metric(metric.value, metric.unit, count)
    # In one write, so that no line of another thread gets into it.
    sys.stdout.write(json.dumps(record.serialize_metric_set()) + "\n")
    sys.stdout.flush()


class _Stdout(logging.StreamHandler[TextIO]):
    """Writes to what is standard output when a line is written, which may have been redirected since."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]  # a plain attribute there
        return sys.stdout


@functools.cache
def _logger() -> Logger:
    from aws_lambda_powertools import Logger  # noqa: PLC0415 - an eighth of a second, and late on purpose

    return Logger(
        service="shepherd",
        logger_handler=_Stdout(),
        json_serializer=_serialize,
        json_deserializer=_verbatim,
        serialize_stacktrace=False,  # the same again, in another form
        utc=True,
        use_rfc3339=True,  # what Lambda wants of lines that it filters by level
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
    """Return *value* as JSON has it; every value has a form, since a log line must not fail."""
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
