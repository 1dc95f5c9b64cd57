"""A whole answer over HTTP: reading it in time, and what it says in general."""

from __future__ import annotations

import json
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from shepherd_core.errors import ProviderUnavailable, TimeLimitExceeded

if TYPE_CHECKING:
    from collections.abc import Mapping

    import requests

    from shepherd_core.clock import Deadline

LONGEST_RETRY_AFTER_SECONDS = 86_400

_PIECE = 65_536


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer."""

    status: int
    body: bytes
    retry_after: float | None
    """Seconds that the header Retry-After asks for."""

    def decoded(self) -> Any:
        """Return what the body means as JSON; None if it is none, or null."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None


def read(request: str, response: requests.Response, deadline: Deadline) -> bytes:
    """
    Return the whole body; one that trickles in outlives the deadline by one piece at most.

    Raises:
        ProviderUnavailable: the deadline passed. Not TimeLimitExceeded: the request was sent.
    """
    content = bytearray()
    while piece := response.raw.read1(_PIECE, decode_content=True):
        content += piece
        try:
            deadline.left()
        except TimeLimitExceeded as error:
            raise ProviderUnavailable(f"{request}: the answer was still coming when the time was used up") from error
    return bytes(content)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that the API wants to be left alone; a date is compared with the API's own clock."""
    value = headers.get("Retry-After", "")
    if value.isascii() and value.isdecimal():
        seconds = float(value)
    else:
        try:
            until, now = (parsedate_to_datetime(text) for text in (value, headers.get("Date", "")))
            seconds = (until - now).total_seconds()
        except (ValueError, TypeError):
            return None
    return min(max(seconds, 0), LONGEST_RETRY_AFTER_SECONDS)
