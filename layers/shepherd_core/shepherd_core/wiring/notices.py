"""Publishes notices to operators, at the topic of the alarms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shepherd_core import telemetry
from shepherd_core.bmdb.work import notices
from shepherd_core.domain.clock import NOTIFY_SECONDS
from shepherd_core.domain.errors import ShepherdError
from shepherd_core.wiring.settings import alarm_topic

if TYPE_CHECKING:
    from shepherd_core.bmdb.connection import Connection
    from shepherd_core.domain.clock import Deadline


def publish(connection: Connection, provider: str, deadline: Deadline) -> None:
    """
    Publish the notices of *provider*, if there is a topic and time. Never fails: the work of the invocation is done.

    What could not be published is tried again after ten minutes.
    """
    topic = alarm_topic()
    if topic is None or deadline.remaining() < NOTIFY_SECONDS:
        return
    try:
        if not (claimed := notices.claim(connection, provider)):
            return
        from shepherd_core.adapters.aws import sns  # noqa: PLC0415 - only if there is something to tell
        from shepherd_core.rules.notices import messages  # noqa: PLC0415

        for message in messages(claimed):
            if deadline.remaining() < NOTIFY_SECONDS:
                return
            cause = sns.publish(topic, message)
            if cause is None:
                notices.sent(connection, message.notice_ids)
            else:
                telemetry.warning("notice not sent", subject=message.subject, cause=cause)
    except ShepherdError as error:
        telemetry.warning("notices not sent", cause=error)
