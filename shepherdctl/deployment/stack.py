"""The stack of a deployment, as CloudFormation makes it: its change set, its events, and why it failed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from shepherd_core.adapters import aws
from shepherd_core.domain.clock import Deadline
from shepherd_core.domain.errors import ShepherdError
from shepherd_core.wiring.adapters import CLOCK

from shepherdctl.deployment.account import described, errors
from shepherdctl.deployment.plan import HALFWAY, FoundStack
from shepherdctl.output.printing import note
from shepherdctl.output.readable_log import record_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shepherdctl.deployment.plan import DeployStack

_PAUSE_SECONDS = 3.0
_LONGEST_SECONDS = 3_600.0
"""A custom resource may take an hour; everything else is quicker."""
_LONGEST_MIGRATION = timedelta(minutes=6)
"""As the template has it."""
_CAPABILITIES = ["CAPABILITY_IAM", "CAPABILITY_AUTO_EXPAND"]
_NESTED = "AWS::CloudFormation::Stack"
_MIGRATOR = "BmdbSchema"
_TOLD = re.compile(r"Message returned: (.*?)(?: \(RequestId: [0-9a-f-]+\))?$", re.DOTALL)
_IN_LOG = re.compile("in the log of the Migrator|see the log")
_FOLLOWS = re.compile("cancelled|^Embedded stack|^The following resource")
"""How the reasons of failures begin that another one explains."""
_ERROR = re.compile(r"^(?:\w+\.)*(\w+: )", re.MULTILINE)
"""How the last lines of a traceback begin, which name the error."""
_NOTHING = re.compile("didn't contain changes|No updates are to be performed")


@dataclass
class _Progress:
    """The events of a stack and its nested ones that were shown already."""

    seen: set[str] = field(default_factory=set)
    stacks: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def deploy(change: DeployStack, template_url: str) -> bool:
    """
    Create or update the stack, and show its events as they come; return whether there was anything to do.

    Raises:
        ShepherdError: CloudFormation refused or failed; says all reasons, the Migrator's as a whole.
    """
    client, name = aws.client("cloudformation"), f"shepherdctl-{uuid4()}"
    parameters = [{"ParameterKey": key, "ParameterValue": value} for key, value in change.parameters.items()]
    with errors(f"making a change set of {change.stack}"):
        made = client.create_change_set(
            StackName=change.stack,
            ChangeSetName=name,
            ChangeSetType="CREATE" if change.creates else "UPDATE",
            TemplateURL=template_url,
            Parameters=parameters,
            Capabilities=_CAPABILITIES,
        )
        # The stack is named, too: rights are for stacks.
        this = {"ChangeSetName": made["Id"], "StackName": made["StackId"]}
        changes = _change_set(client, this)
        if changes["Status"] == "FAILED":
            reason = changes.get("StatusReason", "")
            client.delete_change_set(**this)
            if _NOTHING.search(reason):
                if described(change.stack)["StackStatus"] != HALFWAY:
                    return False
                reason = (
                    f"it finds nothing to change, but the stack is {HALFWAY}: take its last update back with "
                    f"aws cloudformation rollback-stack --stack-name {change.stack}, then run this again"
                )
            raise ShepherdError(f"CloudFormation refuses the change of {change.stack}: {reason}")
        progress = _past(client, made["StackId"])
        client.execute_change_set(**this)
    status = follow(made["StackId"], progress)
    if status not in {"CREATE_COMPLETE", "UPDATE_COMPLETE"}:
        reasons = "\n".join(f"  - {each}" for each in progress.failures) or "  CloudFormation gives no reason"
        raise ShepherdError(f"the stack {change.stack} is {status}:\n{reasons}")
    return True


def follow(stack_id: str, progress: _Progress | None = None) -> str:
    """
    Show the events of a stack until CloudFormation is done with it, and return its state then.

    Raises:
        ShepherdError: it takes longer than an hour.
    """
    client, progress = aws.client("cloudformation"), progress or _past(aws.client("cloudformation"), stack_id)
    deadline = Deadline(CLOCK, _LONGEST_SECONDS)
    while deadline.remaining() > 0:
        found = described(stack_id)
        with errors(f"reading the events of {stack_id}"):
            _show(client, progress)
        if found is None:
            return "DELETE_COMPLETE"
        if not FoundStack(found["StackStatus"]).moves:
            return str(found["StackStatus"])
        CLOCK.sleep(_PAUSE_SECONDS)
    raise ShepherdError(f"CloudFormation is still at work on {stack_id} after an hour: run this again to go on waiting")


def delete(name: str) -> None:
    """
    Delete the stack *name*, and show its events as they come. May run twice.

    Raises:
        ShepherdError: CloudFormation refused or failed.
    """
    client, found = aws.client("cloudformation"), described(name)
    if found is None:
        return
    progress = _past(client, found["StackId"])
    with errors(f"deleting the stack {name}"):
        client.delete_stack(StackName=found["StackId"])
    status = follow(found["StackId"], progress)
    if status != "DELETE_COMPLETE":
        reasons = "\n".join(f"  - {each}" for each in progress.failures)
        raise ShepherdError(f"the stack {name} is {status}:\n{reasons}")


def resources(name: str) -> dict[str, list[str]]:
    """Return what is in the stack *name* and in its nested ones, by type."""
    found: dict[str, list[str]] = {}
    pending, client = [name], aws.client("cloudformation")
    with errors(f"listing the resources of {name}"):
        while pending:
            for page in client.get_paginator("list_stack_resources").paginate(StackName=pending.pop()):
                for each in page["StackResourceSummaries"]:
                    if each["ResourceType"] == _NESTED:
                        pending.append(each["PhysicalResourceId"])
                    found.setdefault(each["ResourceType"], []).append(each["LogicalResourceId"])
    return dict(sorted(found.items()))


def outputs(name: str) -> dict[str, str]:
    """Return the outputs of the stack *name*."""
    found = described(name) or {}
    return {each["OutputKey"]: each["OutputValue"] for each in found.get("Outputs", [])}


def _change_set(client: Any, this: dict[str, str]) -> Any:
    deadline = Deadline(CLOCK, _LONGEST_SECONDS)
    while (found := client.describe_change_set(**this))["Status"] not in {"CREATE_COMPLETE", "FAILED"}:
        if deadline.remaining() <= 0:
            raise ShepherdError("CloudFormation has made no change set within an hour: try again")
        CLOCK.sleep(_PAUSE_SECONDS)
    return found


def _past(client: Any, stack_id: str) -> _Progress:
    """Return where the events of a stack begin that are still to come."""
    progress = _Progress(stacks=[stack_id])
    with errors(f"reading the events of {stack_id}"):
        for event in _events(client, stack_id):
            progress.seen.add(event["EventId"])
    return progress


def _events(client: Any, stack_id: str) -> Iterator[Any]:
    for page in client.get_paginator("describe_stack_events").paginate(StackName=stack_id):
        yield from page["StackEvents"]


def _show(client: Any, progress: _Progress) -> None:
    """Show the events that are new, also of nested stacks that they name, and keep why resources failed."""
    read = 0
    while read < len(progress.stacks):
        new = []
        for stack_id in progress.stacks[read:]:
            read += 1
            for event in _events(client, stack_id):
                if event["EventId"] in progress.seen:
                    break  # the newest come first
                new.append(event)
        for event in sorted(new, key=lambda each: each["Timestamp"]):
            _show_one(event, progress)


def _show_one(event: Any, progress: _Progress) -> None:
    progress.seen.add(event["EventId"])
    is_stack, nested = event["ResourceType"] == _NESTED, event.get("PhysicalResourceId", "")
    if is_stack and nested and nested not in progress.stacks:
        progress.stacks.append(nested)
    status, reason = event["ResourceStatus"], _reason(event)
    note(f"{event['Timestamp']:%H:%M:%S} {status:<28} {event['LogicalResourceId']}")
    if status.endswith("_FAILED") and not _FOLLOWS.search(reason):
        progress.failures.append(f"{event['LogicalResourceId']}: {reason}")


def _reason(event: Any) -> str:
    """Return why a resource failed; of the Migrator, its whole reason, from its log while that is there."""
    reason = str(event.get("ResourceStatusReason", ""))
    if told := _TOLD.search(reason):
        reason = told[1]
    in_log = event["LogicalResourceId"] == _MIGRATOR and _IN_LOG.search(reason)
    return _logged(reason, event) if in_log else reason


def _logged(reason: str, failure: Any) -> str:
    """Return *reason* as the Migrator logged it before its *failure*; a rollback deletes its log soon."""
    group, since = f"/aws/lambda/{failure['StackName']}-migrator", failure["Timestamp"] - _LONGEST_MIGRATION
    wanted = {"logGroupName": group, "filterPattern": '"deployment failed"', "startTime": int(since.timestamp() * 1000)}
    try:
        for page in aws.client("logs").get_paginator("filter_log_events").paginate(**wanted):
            for line in page["events"]:  # the oldest first
                told = str((record_of(line["message"]) or {}).get("exception", line["message"]))
                begins = [each.start(1) for each in _ERROR.finditer(told)]
                reason = told[begins[-1] if begins else 0 :].strip()
    except Exception as error:  # noqa: BLE001 - the reason is not made better by another error
        return f"{reason} (and {group} cannot be read: {aws.classify(error)[1]})"
    return reason
