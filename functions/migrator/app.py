"""The migrator as a Lambda function: the BMDB's schema as a resource of the deployment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shepherd_core import handlers

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext


def lambda_handler(event: dict[str, object], context: LambdaContext) -> dict[str, object]:
    """Apply missing migrations; *event* is CloudFormation's, or as in events/migrator.json."""
    return handlers.migrate(event, context)
