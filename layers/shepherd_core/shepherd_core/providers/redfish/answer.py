"""The answer of a BMC, with its errors sanitized."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shepherd_core.providers.kit.answer import retry_after
from shepherd_core.providers.kit.fields import from_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

TEXT_LENGTH = 300
"""The number of characters of a BMC's message that an error quotes."""

_MESSAGES = "@Message.ExtendedInfo"
_BAD_REQUEST = 400


class BmcAnswer:
    """An answer, with the part of the interface of a ``requests.Response`` that sushy uses."""

    def __init__(self, status: int, headers: Mapping[str, str], content: bytes, hidden: Callable[[str], str]) -> None:
        """*hidden* removes our credential from a text: a BMC may repeat the request in an error."""
        self.status_code = status
        self.headers = headers
        self.content = content
        self._hidden = hidden

    @property
    def retry_after(self) -> float | None:
        """Return the seconds of the header Retry-After."""
        return retry_after(self.headers)

    @property
    def ok(self) -> bool:
        """Return whether the BMC carried out the request, or began to."""
        return 200 <= self.status_code < 300  # noqa: PLR2004 - the class of statuses, not a status

    def json(self) -> Any:
        """
        Return the content as JSON; of an error only the fields that sushy uses, sanitized and of the right types.

        Raises:
            ValueError: it is not JSON, and not an error.
        """
        refused = self.status_code >= _BAD_REQUEST
        try:
            value = from_json(self.content)
        except ValueError as error:
            if not refused:
                raise ValueError(f"no JSON: {error}") from error
            value = None
        return {"error": self._sanitized(value)} if refused else value

    def decoded(self) -> Any:
        """Return the content as ``json`` does; an empty object if there is no content, None if it is not JSON."""
        try:
            return self.json() if self.content else {}
        except ValueError:
            return None

    def _sanitized(self, value: object) -> dict[str, object]:
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
        """Return a text as one short line without our credential; an empty text for any other value."""
        text = self._hidden(value) if isinstance(value, str) else ""
        return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:TEXT_LENGTH]


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def said(error: Mapping[str, Any] | None) -> str:
    """Return the text of an error that ``BmcAnswer`` sanitized: its messages, else its general message."""
    if error is None:
        return ""
    messages = [message["Message"] for message in error[_MESSAGES] if message["Message"]]
    ids = [message["MessageId"] for message in error[_MESSAGES] if message["MessageId"]]
    return "; ".join(dict.fromkeys(messages or [error["message"] or ", ".join(ids)]))[:TEXT_LENGTH]
