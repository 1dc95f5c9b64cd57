"""
The migrator: a CloudFormation custom resource that stands for the BMDB's schema.

CloudFormation sends a request and waits up to an hour for an answer at the URL
in the request. So every request is answered within the time of the invocation,
whatever happens. The URL is a secret, since it allows answering: it appears in
no message and no log.
"""

from __future__ import annotations

import json
import re
import threading
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, TypeVar

from shepherd_core import telemetry
from shepherd_core.bmdb.schema.migrate import migrate, migrations, schema_version
from shepherd_core.domain.clock import ANSWER_SECONDS, Deadline
from shepherd_core.domain.errors import AnswerUndelivered, ConfigError, EventInvalid, ShepherdError, TimeLimitExceeded
from shepherd_core.domain.errors.bmdb import SchemaMismatch
from shepherd_core.domain.events import event_object, field, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shepherd_core.bmdb.connection import Connection
    from shepherd_core.domain.clock import Clock

T = TypeVar("T")

RESOURCE_ID = "bmdb-schema"
"""Must never change: CloudFormation would replace the resource and delete the old one."""

_VERSION = "SchemaVersion"
_ATTEMPTS = 3
_FIRST_PAUSE_SECONDS = 1.0
_ANSWER_LIMITS = (3, 5)  # seconds to connect, and between two bytes
_REASON_BYTES = 3_000  # CloudFormation takes 4,096 bytes in all
_OK = 200
_DIRECTION = "(north|south|east|west|central){1,2}"
_ANSWERED = re.compile(
    rf"https://cloudformation-custom-resource-response-[a-z]{{2}}(gov|iso[bef]?)?{_DIRECTION}[0-9]{{1,2}}"
    rf"\.s3([.-](dualstack\.)?[a-z]{{2}}(-gov|-iso[bef]?)?-{_DIRECTION}-[0-9]{{1,2}})?\.amazonaws\.com(\.cn)?/[!-~]*"
    r"|http://127\.0\.0\.1(:[0-9]+)?(/[!-~]*)?"
)
"""
Where answers go: to CloudFormation's buckets, such as …-euwest1.s3.eu-west-1.amazonaws.com, or to a test here.

A bucket that merely begins like that may be anybody's.
"""


@dataclass(frozen=True, slots=True)
class SettingsCheck:
    """Checks the settings of a deployment before its schema is touched."""

    check: Callable[[], None]
    """Raises ConfigError with every fault, or SourceError."""
    rolling_back: Callable[[str], bool]
    """Returns whether CloudFormation is rolling back the stack with this id."""


def handle(
    event: Mapping[str, object],
    connect: Callable[[], Connection],
    clock: Clock,
    seconds: float,
    settings: SettingsCheck | None = None,
    make_roles: Callable[[Connection, Deadline], list[str]] | None = None,
) -> dict[str, object]:
    """
    Carry out *event* on the BMDB's schema, answer it if it has a ``ResponseURL``, and return the answer.

    Create and Update check the *settings*, if CloudFormation sent them, apply the
    migrations that are missing, and call *make_roles*, which returns the roles that
    it made and granted anew. Delete, and an Update to an older ``SchemaVersion``,
    which a rollback sends, succeed and change nothing. A rollback does not fail
    because of settings; where they are refused, it only calls *make_roles*. May run
    twice and concurrently. *seconds* are left in all.

    Raises:
        AnswerUndelivered: CloudFormation did not accept the answer.
        EventInvalid: the answer would go to somebody else; nothing was done.
        ShepherdError: the event failed and has no ``ResponseURL`` to answer to.
    """
    deadline = Deadline(clock, seconds - ANSWER_SECONDS)

    def update(*, rollback: bool = False) -> dict[str, object]:
        return _migrate(connect(), deadline, make_roles, rollback=rollback)

    if not (isinstance(event, dict) and "ResponseURL" in event):
        return _carry_out(event, update, deadline, None)
    url = event["ResponseURL"]
    if not (isinstance(url, str) and _ANSWERED.fullmatch(url)):
        host = shown(str(url).partition("://")[2].partition("/")[0])
        raise EventInvalid(f"ResponseURL is at {host}; it must be at one of CloudFormation's own hosts")
    answer: dict[str, object]
    try:
        answer = {"Status": "SUCCESS", "Data": _carry_out(event, update, deadline, settings)}
    except Exception as error:  # noqa: BLE001 - CloudFormation waits for an answer in any case
        telemetry.error("deployment failed", exc=error)
        answer = {"Status": "FAILED", "Reason": _reason(error)}
    answer["PhysicalResourceId"] = RESOURCE_ID
    answer |= {name: event.get(name) for name in ("StackId", "RequestId", "LogicalResourceId")}
    _deliver(url, json.dumps(answer).encode(), clock)
    return answer


def _carry_out(
    event: Mapping[str, object],
    update: Callable[..., dict[str, object]],
    deadline: Deadline,
    settings: SettingsCheck | None,
) -> dict[str, object]:
    kind = event_object(event).get("RequestType")
    if kind not in ("Create", "Update", "Delete"):
        raise EventInvalid(f"RequestType is {shown(kind)}; it must be Create, Update or Delete")
    if kind == "Delete":
        telemetry.info("schema kept: deleting the stack does not delete data")
        return {}
    wanted, before = _wanted(event), _wanted(event, "OldResourceProperties")
    if kind == "Update" and wanted is not None and before is not None and wanted < before:
        telemetry.warning(
            "schema kept at rollback: the loops stop until code for this schema is deployed",
            schema_version=before,
            wanted=wanted,
        )
        return {_VERSION: wanted}
    latest = migrations()[-1].version
    if wanted not in (None, latest):
        message = (
            f"the template has schema version {wanted}, but the code deployed with it has version {latest}: "
            "build both from the same source"
        )
        raise SchemaMismatch(message)

    def deploy() -> dict[str, object]:
        if settings is not None and not _right(settings, kind, str(event.get("StackId"))):
            try:
                update(rollback=True)
            except ShepherdError as error:
                telemetry.error("roles not granted in a rollback", exc=error)
            return {_VERSION: latest}  # which the deployment before this one has brought the schema to
        return update()

    return _in_time(deploy, deadline)


def _right(settings: SettingsCheck, kind: str, stack: str) -> bool:
    """
    Return whether the settings are right; False in a rollback, which must not leave the stack half done.

    Raises:
        ConfigError, SourceError: they are wrong, and the deployment must fail.
    """
    try:
        settings.check()
    except ShepherdError as error:
        if kind != "Update" or not settings.rolling_back(stack):
            raise
        telemetry.error("settings are wrong: schema kept in a rollback", exc=error)
        return False
    return True


def _wanted(event: Mapping[str, object], properties: str = "ResourceProperties") -> int | None:
    """Return the schema version in the *properties* of the resource, if any. CloudFormation sends it as text."""
    value = field(event, properties, dict).get(_VERSION) if properties in event else None
    if value is None:
        return None
    if not str(value).isdecimal():
        raise EventInvalid(f"{properties}.{_VERSION} is {shown(value)}; it must be a whole number")
    return int(str(value))


def _migrate(
    connection: Connection,
    deadline: Deadline,
    make_roles: Callable[[Connection, Deadline], list[str]] | None,
    *,
    rollback: bool,
) -> dict[str, object]:
    """Apply the migrations that are missing, except in a *rollback*, and make the roles: grants belong to the code."""
    try:
        applied = [] if rollback else migrate(connection, deadline=deadline)
        version = schema_version(connection)
        roles = make_roles(connection, deadline) if make_roles else []
    finally:
        connection.close()
    telemetry.info("schema up to date", schema_version=version, applied=[each.name for each in applied], roles=roles)
    return {_VERSION: version}


def _in_time(call: Callable[[], T], deadline: Deadline) -> T:
    """Return the result of *call*, run in a thread. At the deadline it is abandoned, and can commit no more."""
    outcome: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()

    def target() -> None:
        try:
            outcome.put((call(), None))
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            outcome.put((None, error))

    threading.Thread(target=target, daemon=True).start()
    try:
        result, error = outcome.get(timeout=max(0.0, deadline.remaining()))
    except Empty:
        message = "the migrations did not end within the time of this function; unfinished ones are rolled back"
        raise TimeLimitExceeded(message) from None
    if error is not None:
        raise error
    return result  # type: ignore[return-value]  # there is no error, so there is a result


def _reason(error: Exception) -> str:
    """Return the reason for CloudFormation: of many faults as many as there is room for."""
    if isinstance(error, ConfigError):
        for count in range(len(error.faults), 0, -1):
            more = len(error.faults) - count
            rest = [f"and {more} more, in the log of the Migrator"] if more else []
            reason = f"{type(error).__name__}: {ConfigError([*error.faults[:count], *rest])}"
            if _fits(reason):
                return reason
    # The text of an error that is not ours may hold anything.
    text = f": {error}" if isinstance(error, ShepherdError) else ": unexpected; see the log"
    reason = f"{type(error).__name__}{text}"
    while not _fits(reason):
        reason = f"{reason[: len(reason) * 9 // 10 - 1]}…"
    return reason


def _fits(reason: str) -> bool:
    return len(json.dumps(reason)) <= _REASON_BYTES


def _deliver(url: str, answer: bytes, clock: Clock) -> None:
    import requests  # noqa: PLC0415 - only for CloudFormation

    outcome = ""
    for attempt in range(_ATTEMPTS):
        if attempt:
            clock.sleep(_FIRST_PAUSE_SECONDS * attempt)
        try:
            # The URL is signed for an empty content type.
            answered = requests.put(
                url, answer, headers={"Content-Type": ""}, timeout=_ANSWER_LIMITS, allow_redirects=False
            )
        except requests.RequestException as error:
            outcome = type(error).__name__  # its text holds the URL
        else:
            if answered.status_code == _OK:
                return
            outcome = f"status {answered.status_code}"
        telemetry.warning("CloudFormation did not accept the answer", outcome=outcome)
    raise AnswerUndelivered(f"CloudFormation did not accept the answer in {_ATTEMPTS} attempts: {outcome}")
