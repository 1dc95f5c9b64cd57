"""
Notices: what operators are told, seldom twice.

The statement that records a fact writes its notice. A loop claims the notices of
its provider at its end, publishes them, and records that. If it dies in between,
they are claimed again ten minutes later. What was not published within a day is
not published any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shepherd_core.domain.notices import Notice, NoticeKind

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from shepherd_core.bmdb.connection import Connection


def claim(connection: Connection, provider: str) -> list[Notice]:
    """Return the notices to publish now, by kind and time. No other invocation gets them for ten minutes."""
    records = connection.records("claim_notices", provider=provider)
    return [Notice(**{**record, "kind": NoticeKind(record["kind"])}) for record in records]


def sent(connection: Connection, notice_ids: Sequence[UUID]) -> None:
    """Record that these notices were published. May run twice."""
    connection.run("notices_sent", notice_ids=list(notice_ids))
