"""Notices: what operators are told."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID


class NoticeKind(StrEnum):
    """What a notice is about. There is at most one message of a kind in ten minutes."""

    QUARANTINE = "quarantine"
    """A machine was put into quarantine; the detail is the cause."""
    RECOVERY = "recovery"
    """Recovery was suspended, or has resumed; the detail is the reason."""
    SSH_OUTAGE = "ssh_outage"
    """An SSH outage began or ended; the detail is the reason."""
    LIMIT = "limit"
    """The limit of machines is reached; the detail says so."""


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that happened at a provider."""

    notice_id: UUID
    kind: NoticeKind
    provider: str
    noticed_at: datetime
    detail: str
    location: str | None = None
    """Empty text: the whole provider."""
    machine_id: UUID | None = None
    provider_id: str | None = None
    began_at: datetime | None = None
    """Of a suspension or an SSH outage."""
    ended_at: datetime | None = None
    """None: it is in force."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message to operators, about all notices of one kind."""

    subject: str
    """ASCII without control characters, at most 100 characters: nothing from outside."""
    text: str
    notice_ids: tuple[UUID, ...]
