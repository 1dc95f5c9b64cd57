"""A complete HTTP answer: reading it by the deadline, and what all APIs have in common."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

from shepherd_core.adapters.http import bounded_answer
from shepherd_core.adapters.http.bounded_answer import LONGEST_ANSWER, AnswerTooLate, AnswerTooLong
from shepherd_core.domain.errors import ShepherdError
from shepherd_core.domain.errors.provider import ProviderUnavailable
from shepherd_core.providers.kit.fields import from_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    import urllib3

    from shepherd_core.domain.clock import Deadline

LONGEST_RETRY_AFTER_SECONDS = 86_400

_MULTIPLE_CHOICES, _SERVER_ERROR, _UNAVAILABLE = 300, 500, 503


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A complete answer."""

    status: int
    body: bytes
    retry_after: float | None
    """The seconds of the header Retry-After."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    def decoded(self) -> Any:
        """Return the body as JSON; None if it is null, or not JSON that ``from_json`` reads."""
        try:
            return from_json(self.body)
        except ValueError:
            return None


def read(request: str, response: urllib3.BaseHTTPResponse, deadline: Deadline, longest: int = LONGEST_ANSWER) -> bytes:
    """
    Return the whole body, decompressed; see ``bounded_answer``.

    Raises:
        ProviderUnavailable: the deadline passed, or the body is longer than *longest* bytes. Not TimeLimitExceeded:
            the request was sent.
    """
    try:
        return bounded_answer.read(response, deadline.remaining, longest)
    except (AnswerTooLong, AnswerTooLate) as error:
        raise ProviderUnavailable(f"{request}: {error}") from error


def innermost(error: BaseException) -> BaseException:
    """Return the first cause of *error*, outside Shepherd; the errors around it only repeat it at length."""
    while (reason := error.__cause__ or error.__context__) is not None and not isinstance(reason, ShepherdError):
        error = reason
    return error


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of the header Retry-After; a date is compared with the API's own clock."""
    value = headers.get("Retry-After", "")
    if value.isascii() and value.isdecimal():
        seconds = float(value)
    else:
        try:
            until, now = (parsedate_to_datetime(text) for text in (value, headers.get("Date", "")))
            seconds = (until - now).total_seconds()
        except (ValueError, TypeError, OverflowError):
            return None
    return min(max(seconds, 0), LONGEST_RETRY_AFTER_SECONDS)


def declines(status: int) -> bool:
    """Return whether *status* means that the request was not carried out, and will not be."""
    return _MULTIPLE_CHOICES <= status < _SERVER_ERROR or status == _UNAVAILABLE


def never_sent(error: BaseException | None) -> bool:
    """Return whether a request failed with *error* before any of it was sent."""
    while error is not None:
        if isinstance(error, ConnectTimeoutError | NewConnectionError | ssl.SSLCertVerificationError):
            return True
        error = error.__cause__ or error.__context__
    return False
