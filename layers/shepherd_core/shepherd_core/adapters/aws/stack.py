"""The state of a CloudFormation stack."""

from __future__ import annotations

from shepherd_core import telemetry
from shepherd_core.adapters import aws


def rolling_back(stack: str) -> bool:
    """Return whether CloudFormation is rolling back the stack with this name or id; False if that is unknown."""
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - boto3 is about to be loaded

    try:
        found = aws.client("cloudformation", attempts=2).describe_stacks(StackName=stack)["Stacks"]
    except (BotoCoreError, ClientError) as error:
        telemetry.warning("state of the stack unknown", cause=aws.classify(error)[1])
        return False
    return any("ROLLBACK" in each["StackStatus"] for each in found)
