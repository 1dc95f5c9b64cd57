"""The API that agents report to, as a Lambda function behind a function URL or an HTTP API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shepherd_core import handlers

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext


def lambda_handler(event: dict[str, Any], context: LambdaContext) -> dict[str, object]:
    """Answer one request; *event* is as in events/agent_api.json."""
    return handlers.agent_api(event, context)
