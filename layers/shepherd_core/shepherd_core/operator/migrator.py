"""
The Migrator: a CloudFormation custom resource that represents the BMDB's schema.

CloudFormation waits up to an hour for an answer to its request. So every request
is answered within the time of the invocation, whatever happens.
"""

from __future__ import annotations

import json
import re
from concurrent import futures
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Protocol, TypeVar

from shepherd_core import telemetry
from shepherd_core.bmdb.schema.migrate import is_usable, migrate, migrations, schema_version
from shepherd_core.domain.clock import ANSWER_SECONDS, Deadline, in_background
from shepherd_core.domain.errors import EventInvalid, ShepherdError, TimeLimitExceeded
from shepherd_core.domain.errors.bmdb import SchemaMismatch
from shepherd_core.domain.events import event_object, field, shown
from shepherd_core.operator import cloudformation

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shepherd_core.bmdb.connection import Connection
    from shepherd_core.domain.clock import Clock

T = TypeVar("T")

RESOURCE_ID = "bmdb-schema"
"""Must never change: CloudFormation would replace the resource and delete the old one."""

_VERSION = "SchemaVersion"


class Memory(Protocol):
    """Texts by name, outside of the BMDB: a rollback must pass without it."""

    def find(self, name: str) -> str | None:
        """Return the text *name*; None: there is none."""

    def put(self, name: str, value: str, *, secret: bool, replace: bool) -> None:
        """Store a text."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """The parts of a deployment besides its schema."""

    check: Callable[[], None]
    """Checks the settings. Raises ConfigError with every fault, or SourceError."""
    memory: Memory


def handle(
    event: Mapping[str, object],
    connect: Callable[[], Connection],
    clock: Clock,
    seconds: float,
    deployment: Deployment | None = None,
    make_roles: Callable[[Connection, Deadline], list[str]] | None = None,
) -> dict[str, object]:
    """
    Carry out *event* on the BMDB's schema, answer it if it has a ``ResponseURL``, and return the answer.

    Create and Update check the settings of the *deployment*, if CloudFormation sent
    them, apply the migrations that are missing, and call *make_roles*, which returns
    the roles that it made and granted anew. An Update leaves those out that the code
    before it could not use: the next one applies them. Delete succeeds and changes
    nothing. A rollback, also an Update to an older ``SchemaVersion``, only calls
    *make_roles*, and succeeds in any case. May run twice and concurrently. *seconds*
    are left in all.

    Raises:
        AnswerUndelivered: CloudFormation did not accept the answer.
        EventInvalid: the answer would go to somebody else; nothing was done.
        ShepherdError: the event failed and has no ``ResponseURL`` to answer to.
    """
    deadline = Deadline(clock, seconds - ANSWER_SECONDS)

    def update(running: int | None, *, rollback: bool = False) -> dict[str, object]:
        return _migrate(connect(), deadline, make_roles, running, rollback=rollback)

    if not (isinstance(event, dict) and "ResponseURL" in event):
        return _carry_out(event, update, deadline, None)
    url = cloudformation.answer_url(event)
    answer: dict[str, object]
    try:
        answer = {"Status": "SUCCESS", "Data": _carry_out(event, update, deadline, deployment)}
    except Exception as error:  # noqa: BLE001 - CloudFormation waits for an answer in any case
        telemetry.error("deployment failed", exc=error)
        answer = {"Status": "FAILED", "Reason": cloudformation.failure_reason(error)}
    answer["PhysicalResourceId"] = RESOURCE_ID
    answer |= {name: event.get(name) for name in ("StackId", "RequestId", "LogicalResourceId")}
    cloudformation.deliver(url, answer, clock)
    return answer


def _carry_out(
    event: Mapping[str, object],
    update: Callable[..., dict[str, object]],
    deadline: Deadline,
    deployment: Deployment | None,
) -> dict[str, object]:
    kind = event_object(event).get("RequestType")
    if kind not in ("Create", "Update", "Delete"):
        raise EventInvalid(f"RequestType is {shown(kind)}; it must be Create, Update or Delete")
    if kind == "Delete":
        telemetry.info("schema kept: deleting the stack does not delete data")
        return {}
    wanted, before = _wanted(event), _wanted(event, "OldResourceProperties")
    latest = migrations()[-1].version
    older = wanted is not None and before is not None and wanted < before
    if kind == "Update" and (older or (deployment is not None and _is_rollback(event, deployment.memory))):
        try:
            _in_time(partial(update, None, rollback=True), deadline)
        except ShepherdError as error:
            telemetry.error("roles not granted in a rollback", exc=error)
        return {_VERSION: wanted}
    if wanted not in (None, latest):
        message = (
            f"the template has schema version {wanted}, but the code deployed with it has version {latest}: "
            "build both from the same source"
        )
        raise SchemaMismatch(message)

    def deploy() -> dict[str, object]:
        if deployment is not None:
            deployment.check()
        return update(before if kind == "Update" else None)

    return _in_time(deploy, deadline)


def _is_rollback(event: Mapping[str, object], memory: Memory) -> bool:
    """
    Return whether an Update takes back the last one, which may have failed; else remember it as the last.

    CloudFormation does not say so, and a network of functions may have no way to ask. An operator's update back is
    taken for a rollback, too.

    Raises:
        EventInvalid: the event names no stack.
        SecretError: what is remembered cannot be read or written.
    """
    stack = re.search(":stack/([A-Za-z0-9-]+)/", str(event.get("StackId")))
    if stack is None:
        raise EventInvalid(f"StackId is {shown(event.get('StackId'))}; it must be that of a stack")
    name = f"/{stack[1]}/last-update"
    before, after = event.get("OldResourceProperties"), event.get("ResourceProperties")
    if memory.find(name) == _digest(after, before):
        return True
    memory.put(name, _digest(before, after), secret=False, replace=True)
    return False


def _digest(before: object, after: object) -> str:
    return sha256(json.dumps([before, after], sort_keys=True).encode()).hexdigest()


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
    running: int | None,
    *,
    rollback: bool,
) -> dict[str, object]:
    """Apply the migrations that are missing, except in a *rollback*, and make the roles: grants belong to the code."""
    try:
        applied = [] if rollback else migrate(connection, running=running, deadline=deadline)
        version = schema_version(connection)
        if not is_usable(connection):
            telemetry.warning("the loops stop until code for this schema is deployed", schema_version=version)
        roles = make_roles(connection, deadline) if make_roles else []
    finally:
        connection.close()
    telemetry.info("schema up to date", schema_version=version, applied=[each.name for each in applied], roles=roles)
    return {_VERSION: version}


def _in_time(call: Callable[[], T], deadline: Deadline) -> T:
    """Return the result of *call*, run in a thread. At the deadline it is abandoned, and can commit no more."""
    outcome = in_background(call)
    if not futures.wait([outcome], max(0.0, deadline.remaining())).done:
        raise TimeLimitExceeded(
            "the migrations did not end within the time of this function; each is complete or rolled back"
        )
    return outcome.result()
