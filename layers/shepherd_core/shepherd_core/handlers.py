"""
The entry points of the Lambda functions: events in, counts or answers out.

``wiring`` builds what they run. Modules that only one function needs are
imported when it is invoked.
"""

from __future__ import annotations

import gc
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from shepherd_core import telemetry
from shepherd_core.domain.clock import CLOSING_SECONDS, Deadline
from shepherd_core.domain.errors import DriftLimitExceeded, EventInvalid, ShepherdError
from shepherd_core.domain.events import event_object, field, shown, texts
from shepherd_core.telemetry import Metric
from shepherd_core.wiring import adapters, agent_endpoint, settings
from shepherd_core.wiring.adapters import CLOCK

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext

    from shepherd_core.agent.endpoint import AgentRequest


def invoke(loop: str, event: Mapping[str, object], context: LambdaContext) -> dict[str, object]:
    """
    Run one invocation of *loop* as a Lambda function; return its counts, or its plan if the event asks for a dry run.

    May run twice and concurrently. An invocation that could not do its work
    raises, so that Lambda counts an error.

    Raises:
        EventInvalid: the event is not for this function.
        ConfigError: the settings are wrong; lists every fault.
        ShepherdError: the invocation failed.
    """
    telemetry.bind(request_id=context.aws_request_id, loop=loop)
    try:
        dry_run = _dry_run(loop, event)
        seconds = context.get_remaining_time_in_millis() / 1000 - CLOSING_SECONDS
        return run(loop, seconds, context.aws_request_id, dry_run=dry_run)
    except ShepherdError as error:
        telemetry.error("invocation failed", exc=error)
        raise
    finally:
        telemetry.unbind()


def run(loop: str, seconds: float, runtime_info: str, *, dry_run: bool = False) -> dict[str, object]:
    """Run *loop* once for at most *seconds*; *runtime_info* is stored with its session. Otherwise as ``invoke``."""
    from shepherd_core.wiring import loops  # noqa: PLC0415 - see the module's docstring

    function = loops.build(loop)
    telemetry.bind(provider=function.provider, **settings.log_keys())
    head: dict[str, object] = {"loop": loop, "provider": function.provider, "dry_run": dry_run}
    deadline = Deadline(CLOCK, seconds)
    if dry_run:
        return {**head, **{name: _plain(part) for name, part in function.plan(deadline).items()}}
    try:
        counts = {**function.run(deadline, runtime_info), **settings.counts()}
    except DriftLimitExceeded as error:
        counts = {Metric.DRIFT_LIMIT_EXCEEDED: 1, Metric.DRIFTED: len(error.drift), **settings.counts()}
        telemetry.emit(loop, function.provider, counts)
        raise
    telemetry.emit(loop, function.provider, counts)
    return {**head, **{metric.value: count for metric, count in counts.items()}}


def migrate(event: Mapping[str, object], context: LambdaContext) -> dict[str, object]:
    """
    Bring the BMDB's schema and roles up to date. ``operator.migrator.handle`` says what *event* may be.

    Raises:
        ShepherdError: the schema could not be brought up to date.
    """
    from shepherd_core.operator import migrator  # noqa: PLC0415 - see the module's docstring

    telemetry.bind(request_id=context.aws_request_id, loop="migrator")
    try:
        seconds = context.get_remaining_time_in_millis() / 1000
        return migrator.handle(
            event,
            adapters.migrator,
            CLOCK,
            seconds,
            migrator.Deployment(settings.check, adapters.uncached()),
            adapters.make_roles,
        )
    except ShepherdError as error:
        telemetry.error("invocation failed", exc=error)
        raise
    finally:
        telemetry.unbind()


def agent_api(event: Mapping[str, Any], context: LambdaContext) -> dict[str, object]:
    """
    Answer one request of an agent, as ``AgentApi.handle``.

    *event* comes from a function URL or an HTTP API; both send payload version 2.0.

    Raises:
        EventInvalid: the event is not such a request.
        ConfigError: the settings are wrong.
    """
    telemetry.bind(request_id=context.aws_request_id, loop="agent_api")
    try:
        with _keeping_what_a_start_makes():
            request = _request(event)
            api = agent_endpoint.build()
            telemetry.bind(**settings.log_keys())
            answer = api.handle(request)
    except ShepherdError as error:
        telemetry.error("invocation failed", exc=error)
        raise
    finally:
        telemetry.unbind()
    return {
        "statusCode": answer.status.value,
        "headers": answer.headers,
        "body": b64encode(answer.body).decode(),
        "isBase64Encoded": True,
    }


@contextmanager
def _keeping_what_a_start_makes() -> Iterator[None]:
    """In a new process, collect no garbage: what its first request makes stays, and the search took a twelfth of it."""
    if gc.get_freeze_count():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _request(event: Mapping[str, Any]) -> AgentRequest:
    from shepherd_core.agent.endpoint import AgentRequest  # noqa: PLC0415 - see the module's docstring

    try:
        method = field(event, "requestContext.http.method", str)
        body = field(event, "body", str) if event.get("body") is not None else ""
        encoded = "isBase64Encoded" in event and field(event, "isBase64Encoded", bool)
        return AgentRequest(
            method=method,
            path=field(event, "rawPath", str),
            headers=texts(event, "headers"),
            body=b64decode(body) if encoded else body.encode(),
            received_at=field(event, "requestContext.timeEpoch", int),
            address=field(event, "requestContext.http.sourceIp", str),
        )
    except (EventInvalid, ValueError) as error:
        text = str(error) if isinstance(error, EventInvalid) else f"body is {shown(body)}; it must be base64"
        message = f"the event is not a request of a function URL or an HTTP API, payload version 2.0: {text}"
        raise EventInvalid(message) from error


def _dry_run(loop: str, event: Mapping[str, object]) -> bool:
    """Check that a schedule of *loop* sent *event*, see ``events/``, and return whether it asks for a dry run."""
    try:
        addressee, time = field(event_object(event), "loop", str), field(event, "scheduled_time", str)
        dry_run = "dry_run" in event and field(event, "dry_run", bool)
        if unknown := event.keys() - {"loop", "scheduled_time", "dry_run"}:
            raise EventInvalid(f"{shown(min(unknown))} is unknown")  # noqa: TRY301 - named below as the others are
        if datetime.fromisoformat(time).tzinfo is None:
            raise ValueError  # noqa: TRY301
    except EventInvalid as error:
        raise EventInvalid(f"the event is not a schedule's: {error}") from error
    except ValueError as error:
        message = f"scheduled_time is {shown(time)}; it must be a time such as 2026-11-21T09:30:00Z"
        raise EventInvalid(f"the event is not a schedule's: {message}") from error
    if addressee != loop:
        message = f"the event is for the loop {shown(addressee)}, but this function is the {loop}"
        raise EventInvalid(message)
    return dry_run


def _plain(plan: object) -> object:
    """Return a plan in JSON types."""
    if is_dataclass(plan) and not isinstance(plan, type):
        return _plain(asdict(plan))
    if isinstance(plan, Mapping):
        return {str(key): _plain(value) for key, value in plan.items()}
    if isinstance(plan, list | tuple):
        return [_plain(item) for item in plan]
    return plan if plan is None or isinstance(plan, bool | int | float) else str(plan)
