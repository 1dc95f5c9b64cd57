"""The texts of notices: pure."""

from __future__ import annotations

from datetime import UTC
from itertools import groupby
from typing import TYPE_CHECKING

from shepherd_core.domain.health import where
from shepherd_core.domain.notices import Message, Notice, NoticeKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import datetime

_LENGTH = 300
"""Of a text from outside, which is put on one line and stripped of control characters."""
_ADVICE = {
    NoticeKind.QUARANTINE: "No loop touches a machine in quarantine.\n"
    "What it waits for: shepherdctl machine why ID\n"
    "When it is repaired: shepherdctl machine unquarantine ID",
    NoticeKind.RECOVERY: "While recovery is suspended, no machine there is rebooted. Recovery resumes by itself.\n"
    "The figures now: shepherdctl status",
    NoticeKind.SSH_OUTAGE: "Until the outage is over, machines there that did not come back are not rebooted again.\n"
    "Check the network, the firewall and the SSH key. The figures now: shepherdctl status",
    NoticeKind.LIMIT: "To allow more: shepherdctl settings set provisioner.max_machines NUMBER",
}
_BEGIN_END = {
    NoticeKind.RECOVERY: ("recovery is suspended", "recovery has resumed"),
    NoticeKind.SSH_OUTAGE: ("an SSH outage began", "the SSH outage is over"),
}
_SUBJECT = {
    NoticeKind.RECOVERY: ("recovery", "suspended", "resumed"),
    NoticeKind.SSH_OUTAGE: ("SSH outage", "begun", "over"),
}


def messages(notices: Iterable[Notice]) -> Iterator[Message]:
    """Yield one message for each kind; *notices* are of one provider, ordered by kind. Equal lines appear once."""
    for kind, group in groupby(notices, key=lambda notice: notice.kind):
        found = list(group)
        lines = list(dict.fromkeys(_line(notice) for notice in found))
        yield Message(
            f"Shepherd, {found[0].provider}: {_subject(kind, found, len(lines))}",
            "\n".join([*lines, "", _ADVICE[kind], ""]),
            tuple(notice.notice_id for notice in found),
        )


def _subject(kind: NoticeKind, found: Sequence[Notice], different: int) -> str:
    if kind is NoticeKind.QUARANTINE:
        return f"{different} machine{'' if different == 1 else 's'} put into quarantine"
    if kind is NoticeKind.LIMIT:
        return "limit of machines reached"
    what, begun, over = _SUBJECT[kind]
    words = [word for word, ended in ((begun, False), (over, True)) if ended in {_ended(each) for each in found}]
    return f"{what} {' and '.join(words)}"


def _ended(notice: Notice) -> bool:
    return notice.ended_at is not None


def _line(notice: Notice) -> str:
    place = "" if notice.location is None else f", {_plain(where(notice.location))}"
    detail = _plain(notice.detail)
    if notice.kind is NoticeKind.QUARANTINE:
        name = f"{notice.machine_id} (provider id {_plain(notice.provider_id or '')}{place})"
        return f"{_time(notice.noticed_at)}: machine {name} was put into quarantine: {detail}"
    if notice.kind is NoticeKind.LIMIT:
        return f"{_time(notice.noticed_at)}: {detail}."
    begun, over = _BEGIN_END[notice.kind]
    if notice.ended_at is None or notice.began_at is None:
        return f"{_time(notice.noticed_at)}: {begun} at {notice.provider}{place}: {detail}"
    minutes = max(1, round((notice.ended_at - notice.began_at).total_seconds() / 60))
    return f"{_time(notice.ended_at)}: {over} at {notice.provider}{place}, after {minutes} min: {detail}"


def _time(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _plain(text: str) -> str:
    line = " ".join("".join(character if character.isprintable() else " " for character in text).split())
    return line if len(line) <= _LENGTH else f"{line[: _LENGTH - 1]}…"
