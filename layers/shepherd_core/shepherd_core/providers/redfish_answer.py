"""What a BMC answers: read in time and within measure, and its errors made harmless."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from shepherd_core.errors import ProviderUnavailable, TimeLimitExceeded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import urllib3

    from shepherd_core.clock import Deadline

TEXT_LENGTH = 300
"""How many characters of a BMC's words an error quotes."""

_PIECE = 65_536
_LARGEST = 4 * 1024 * 1024
_MESSAGES = "@Message.ExtendedInfo"
_BAD_REQUEST = 400


class Answer:
    """An answer, with as much of the interface of one of requests' as sushy uses."""

    def __init__(self, status: int, headers: Mapping[str, str], content: bytes, hidden: Callable[[str], str]) -> None:
        """*hidden* returns a text without our credential: a BMC may repeat in an error what it was sent."""
        self.status_code = status
        self.headers = headers
        self.content = content
        self._hidden = hidden

    @property
    def ok(self) -> bool:
        """Return whether the BMC did, or began to do, what it was asked for."""
        return 200 <= self.status_code < 300  # noqa: PLR2004 - the class of statuses, not a status

    def json(self) -> Any:
        """
        Return what the content means; of an error only what sushy looks at, cleaned and in the shape that it expects.

        Raises:
            ValueError: it is not JSON, and no error.
        """
        refused = self.status_code >= _BAD_REQUEST
        try:
            value = json.loads(self.content)
        except (ValueError, RecursionError) as error:
            if not refused:
                raise ValueError(f"no JSON: {error}") from error
            value = None
        return {"error": self._harmless(value)} if refused else value

    def _harmless(self, value: object) -> dict[str, object]:
        error = _object(_object(value).get("error"))
        messages = error.get(_MESSAGES) or _object(value).get(_MESSAGES)
        return {
            "code": self._text(error.get("code")) or "Base.1.0.GeneralError",
            "message": self._text(error.get("message")),
            _MESSAGES: [
                {
                    **{name: self._text(message.get(name)) for name in ("MessageId", "Message", "Severity")},
                    **{name: self._texts(message.get(name)) for name in ("MessageArgs", "RelatedProperties")},
                }
                for message in map(_object, _list(messages))
            ],
        }

    def _texts(self, value: object) -> list[str]:
        return [self._text(item) for item in _list(value)]

    def _text(self, value: object) -> str:
        """Return a text as one short line without our credential; nothing for anything else."""
        text = self._hidden(value) if isinstance(value, str) else ""
        return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:TEXT_LENGTH]


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def said(error: Mapping[str, Any] | None) -> str:
    """Return what a BMC says about an error, as ``Answer`` cleaned it: its messages, else what it says in general."""
    if error is None:
        return ""
    messages = [message["Message"] for message in error[_MESSAGES] if message["Message"]]
    ids = [message["MessageId"] for message in error[_MESSAGES] if message["MessageId"]]
    return "; ".join(dict.fromkeys(messages or [error["message"] or ", ".join(ids)]))[:TEXT_LENGTH]


def read(asked: str, response: urllib3.BaseHTTPResponse, limit: Deadline) -> bytes:
    """
    Return the whole body; one that trickles in outlives the limit by one piece at most.

    Raises:
        ProviderUnavailable: time is up, or this is no answer but a flood. Not TimeLimitExceeded: the request was sent.
    """
    content = bytearray()
    while piece := response.read1(_PIECE, decode_content=True):
        content += piece
        if len(content) > _LARGEST:
            raise ProviderUnavailable(f"{asked}: the answer is longer than {_LARGEST} bytes")
        try:
            limit.left()
        except TimeLimitExceeded as error:
            raise ProviderUnavailable(f"{asked}: the answer was still coming when the time was used up") from error
    return bytes(content)
