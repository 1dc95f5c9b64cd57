"""The Updater as a Lambda function."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shepherd_core import handlers

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext


def lambda_handler(event: dict[str, object], context: LambdaContext) -> dict[str, object]:
    """Run one invocation and return its counts; *event* is as in events/updater.json."""
    return handlers.invoke("updater", event, context)
