"""Events that no schedule, API or CloudFormation sends: each fails with an error that names what is wrong."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aws_lambda_powertools.utilities.typing import LambdaContext
from shepherd_core import handlers
from shepherd_core.domain.errors import EventInvalid

from simulator.lambda_.environment import Context

EVENTS = Path(__file__).parents[3] / "events"
TICK, REQUEST = (json.loads((EVENTS / f"{name}.json").read_text()) for name in ("recoverer", "agent_api"))
DEPLOYMENT = {"RequestType": "Create", "ResourceProperties": {"SchemaVersion": "1"}}
LONG = "x" * 5_000_000
CONTEXT = Context("a-request", "by hand", time.monotonic() + 300)


def recoverer(event: Any, context: LambdaContext) -> dict[str, object]:
    return handlers.invoke("recoverer", event, context)


@pytest.mark.parametrize("function", [recoverer, handlers.agent_api, handlers.migrate], ids=lambda each: each.__name__)
@pytest.mark.parametrize(
    ("event", "text"), [("a text", "'a text'"), (["a"], "['a']"), (None, "None"), (7, "7")], ids=repr
)
def test_an_event_that_is_no_object_is_refused(function: Callable[..., Any], event: Any, text: str) -> None:
    """Somebody invokes the function by hand; a TypeError from its inside tells nothing."""
    with pytest.raises(EventInvalid) as caught:
        function(event, CONTEXT)
    assert f"the event is {text}; it must be an object" in str(caught.value)


@pytest.mark.parametrize(
    ("function", "event", "text"),
    [
        (recoverer, {**TICK, "scheduled_time": "yesterday"}, "scheduled_time is 'yesterday'; it must be a time"),
        (recoverer, {**TICK, "scheduled_time": "2026-11-21T09:30:00"}, "scheduled_time is '2026-11-21T09:30:00'; it"),
        (recoverer, {**TICK, "scheduled_time": LONG}, "the event has 50000"),
        (recoverer, {**TICK, "loop": "x" * 60_000}, "the event is for the loop 'xxx"),
        (recoverer, {**TICK, "dry_run": "x" * 60_000}, "dry_run is 'xxx"),
        (recoverer, {"loop": "recoverer"}, "scheduled_time is missing"),
        (recoverer, {**TICK, "loop": "provisioner"}, "the event is for the loop 'provisioner'"),
        (recoverer, {**TICK, "dry_rnu": True}, "dry_rnu"),
        (recoverer, {**TICK, "dry_run": "false"}, "dry_run is 'false'"),
        (recoverer, {}, "loop is missing"),
        (recoverer, {"version": "0", "detail-type": "Scheduled Event", "detail": "{}"}, "loop is missing"),
        (handlers.migrate, {**DEPLOYMENT, "RequestType": ["x"]}, "RequestType is ['x']; it must be Create, Up"),
        (
            handlers.migrate,
            {**DEPLOYMENT, "ResourceProperties": "1"},
            "ResourceProperties is '1'; it must be an object",
        ),
        (handlers.migrate, {**DEPLOYMENT, "padding": LONG}, "the event has 5000"),
        (handlers.agent_api, {**REQUEST, "headers": ["x"]}, "headers is ['x']; it must be an object"),
        (
            handlers.agent_api,
            {**REQUEST, "headers": {"shepherd-time": 7}},
            "headers.'shepherd-time' is 7; it must be text",
        ),
        (handlers.agent_api, {**REQUEST, "rawPath": 7}, "rawPath is 7; it must be text"),
        (handlers.agent_api, {**REQUEST, "body": {}}, "body is {}; it must be text"),
        (handlers.agent_api, {**REQUEST, "body": "\u00e4"}, "body is '\u00e4'; it must be base64"),
        (handlers.agent_api, {**REQUEST, "isBase64Encoded": "no"}, "isBase64Encoded is 'no'; it must be true or false"),
        (handlers.agent_api, {**REQUEST, "requestContext": {}}, "requestContext.http is missing; it must be text"),
        (handlers.agent_api, {**REQUEST, "requestContext": 7}, "requestContext is 7; it must be an object"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_a_wrong_field_is_named_with_its_value(function: Callable[..., Any], event: dict[str, Any], text: str) -> None:
    """The sender of the event sees only the message; a long value is shortened in it."""
    with pytest.raises(EventInvalid) as caught:
        function(event, CONTEXT)
    assert text in str(caught.value)
    assert len(str(caught.value)) < 300
