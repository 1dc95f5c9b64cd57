"""Notices to operators, through SNS."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shepherd_core.adapters import aws

if TYPE_CHECKING:
    from shepherd_core.domain.notices import Message


def publish(topic: str, message: Message) -> str | None:
    """
    Publish *message*; return why it was certainly or possibly not published, else None.

    It is tried once, because a second attempt could publish it twice; the caller tries again after ten minutes.
    """
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - boto3 is about to be loaded

    try:
        aws.client("sns", attempts=1).publish(TopicArn=topic, Subject=message.subject, Message=message.text)
    except (BotoCoreError, ClientError) as error:
        return aws.classify(error)[1]
    return None
