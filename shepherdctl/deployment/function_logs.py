"""Reads the functions' logs: the log groups of a stack, or the log file of a simulated environment."""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shepherd_core.adapters import aws
from shepherd_core.domain.errors import SourceMissing, SourceUnavailable
from shepherd_core.settings.functions.specs import SPECS

from shepherdctl.output.readable_log import record_of

FUNCTIONS = tuple(spec.role for spec in SPECS if not spec.owns_schema)
"""The functions that log something about machines."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line that a function logged."""

    at: datetime
    function: str
    record: Mapping[str, Any]


def lines(source: str, text: str, since: datetime, functions: Sequence[str]) -> Iterator[LogLine]:
    """
    Yield the lines of *functions* that contain *text*, oldest first.

    *source* is the name of a stack or, with a slash in it, the path of a file.

    Raises:
        SourceMissing: there is no such log, or no permission to read it.
        SourceUnavailable: CloudWatch did not answer.
    """
    if "/" in source:
        found = (line for line in _in_file(Path(source), text) if line.at >= since and line.function in functions)
        return iter(sorted(found, key=_time))
    return heapq.merge(*(_in_group(source, name, text, since) for name in functions), key=_time)


def _time(line: LogLine) -> datetime:
    return line.at


def _in_file(path: Path, text: str) -> Iterator[LogLine]:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            yield from _records(file, text)
    except OSError as error:
        message = f"the log {path} cannot be read: {error.strerror}. Correct SHEPHERD_LOGS"
        raise SourceMissing(message) from error


def _records(file: Iterable[str], text: str) -> Iterator[LogLine]:
    for line in file:
        if text in line and (record := record_of(line)) is not None:
            try:
                at = datetime.fromisoformat(str(record.get("timestamp")))
            except ValueError:
                continue
            yield LogLine(at.astimezone(UTC), str(record.get("loop", "agent-api")), record)


def _in_group(stack: str, function: str, text: str, since: datetime) -> Iterator[LogLine]:
    group = f"/aws/lambda/{stack}-{function}"
    wanted = {"logGroupName": group, "filterPattern": f'"{text}"', "startTime": int(since.timestamp() * 1000)}
    try:
        for page in aws.client("logs").get_paginator("filter_log_events").paginate(**wanted):
            for event in page["events"]:
                record = record_of(event["message"]) or {"message": event["message"]}
                yield LogLine(datetime.fromtimestamp(event["timestamp"] / 1000, UTC), function, record)
    except Exception as error:
        fault, name = aws.classify(error)
        if fault is aws.AwsFault.PASSING:
            raise SourceUnavailable(f"CloudWatch Logs: {name}") from error
        where = "SHEPHERD_LOGS names the stack, AWS_DEFAULT_REGION its region"
        message = f"the log group {group} cannot be read: {name}. {where}"
        raise SourceMissing(message) from error
