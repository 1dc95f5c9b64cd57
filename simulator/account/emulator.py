"""
Run ministack, an emulator of AWS that others wrote, with what it lacks.

Runs in an environment that has ministack, by ministack's own environment variables and two more: ``ENDPOINT``, the URL
that agents are given as the function URL, and ``MINUTE``, the seconds that a minute of its schedules takes. Each patch
has its reason.
docs/reliability.md says what ministack is more lenient in than AWS.
"""

import contextvars
import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from ministack.app import main
from ministack.core import iam_actions, iam_evaluator
from ministack.services import eventbridge, scheduler
from ministack.services.cloudformation import changesets, engine, handlers, provisioners, stacks

_FUNCTIONS = {"Fn::FindInMap", "Fn::If", "Fn::Join", "Fn::Select", "Fn::Split", "Fn::Sub"}
_nested: contextvars.ContextVar[list[dict[str, str]]] = contextvars.ContextVar("nested")


def patch(module: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Replace the function *name* of *module*, wherever CloudFormation imports it, by what *make* returns."""
    before = getattr(module, name)
    after = make(before)
    for each in (module, changesets, engine, handlers, provisioners, stacks):
        if getattr(each, name, None) is before:
            setattr(each, name, after)


def with_functions(evaluate: Any) -> Any:
    """Evaluate every function in conditions, and not parameters alone."""

    def patched(template: dict[str, Any], parameters: dict[str, Any]) -> Any:
        def resolved(node: Any) -> Any:
            if isinstance(node, list):
                return [resolved(each) for each in node]
            if not isinstance(node, dict):
                return node
            if _FUNCTIONS & node.keys():
                return engine._resolve_refs(node, {}, parameters, {}, template.get("Mappings", {}), "", "")
            return {key: resolved(value) for key, value in node.items()}

        return evaluate({**template, "Conditions": resolved(template.get("Conditions", {}))}, parameters)

    return patched


def knowing_parameters(deploy: Any) -> Any:
    """For ``transformed``: what the nested stack is given."""

    def patched(name: str, properties: dict[str, Any], *args: Any, **more: Any) -> Any:
        given = [{"Key": key, "Value": str(value)} for key, value in properties.get("Parameters", {}).items()]
        token = _nested.set(given)
        try:
            return deploy(name, properties, *args, **more)
        finally:
            _nested.reset(token)

    return patched


def transformed(parse: Any) -> Any:
    """Apply the transforms of nested templates, too: without them, their loops are no resources."""

    def patched(text: str) -> Any:
        template = parse(text)
        given = _nested.get(None)
        return template if given is None else engine._apply_transforms(template, given)

    return patched


def without_expressions(record: Any) -> Any:
    """Keep alarms with expressions, which it refuses, without evaluating them."""

    def patched(name: str, properties: dict[str, Any]) -> Any:
        stand_in = {"MetricName": "expression", "Namespace": "expression"} if properties.get("Metrics") else {}
        return record(name, {**properties, "Metrics": [], **stand_in})

    return patched


def at_endpoint(attributes: Any) -> Any:
    """Name our endpoint as the function URL: no name server here knows its hosts."""
    return lambda config: {**attributes(config), "FunctionUrl": f"{os.environ['ENDPOINT']}/"}


def faster(seconds: Any) -> Any:
    """Let schedules run faster: a minute is long for a test."""

    def patched(expression: str) -> float | None:
        every = seconds(expression)
        return None if every is None else every * float(os.environ["MINUTE"]) / 60

    return patched


def with_time(invoke: Any) -> Any:
    """Write the time of a schedule's event where its input names it, as AWS does."""

    def patched(target: dict[str, Any], event: dict[str, Any], rule: dict[str, Any]) -> Any:
        if event.get("Source") == "aws.scheduler" and "Input" in target:
            time = datetime.fromtimestamp(event["Time"], UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            target = {**target, "Input": target["Input"].replace("<aws.scheduler.scheduled-time>", time)}
        return invoke(target, event, rule)

    return patched


def with_path(extract: Any) -> Any:
    """Name the path that parameters are listed by as the resource, as AWS does: for it, that is all of them."""

    def patched(service: str, method: str, path: str, headers: Any, body: bytes, *args: Any) -> str:
        found: str = extract(service, method, path, headers, body, *args)
        if service == "ssm" and found == "*" and "Path" in (request := json.loads(body or b"{}")):
            _, region, account = args
            return f"arn:aws:ssm:{region}:{account}:parameter{request['Path']}"
        return found

    return patched


def told(enforce: Any) -> Any:
    """Log refusals, which it tells the caller alone."""

    def patched(key: str, action: str, *args: Any, **more: Any) -> Any:
        refusal = enforce(key, action, *args, **more)
        if refusal is not None:
            who = getattr(refusal, "principal_arn", refusal)
            print(f"DENIED {action} to {who}", flush=True)  # noqa: T201 - into the log
        return refusal

    return patched


patch(engine, "_evaluate_conditions", with_functions)
patch(provisioners, "_cfn_nested_stack_deploy", knowing_parameters)
engine._parse_template = transformed(engine._parse_template)  # nested stacks' alone: others have their own name of it
patch(provisioners, "_cw_metric_alarm_record", without_expressions)
patch(provisioners, "_lambda_url_attributes", at_endpoint)
patch(eventbridge, "_parse_rate_seconds", faster)
patch(eventbridge, "_invoke_target", with_time)
patch(iam_evaluator, "enforce", told)
patch(iam_actions, "extract_resource_arn", with_path)
scheduler._SCHEDULE_TICK_INTERVAL = 1

main()
