"""Signed requests."""

from __future__ import annotations

import time
from base64 import b64encode
from typing import TYPE_CHECKING

from .endpoint import NotDelivered

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..ed25519 import PrivateKey
    from .endpoint import Endpoint

MACHINE_HEADER, TIME_HEADER, SIGNATURE_HEADER = "Shepherd-Machine", "Shepherd-Time", "Shepherd-Signature"
_DOMAIN = b"shepherd-agent-v1"
_ACCEPTED, _MALFORMED, _UNAUTHORIZED, _TOO_LARGE, _TOO_OFTEN = 200, 400, 401, 413, 429
_TOLERANCE = 300_000  # milliseconds by which the endpoint accepts a different time


def milliseconds() -> int:
    """Return the milliseconds since the Unix epoch by the machine's clock."""
    return time.time_ns() // 1_000_000


class MessageRefused(NotDelivered):
    """The endpoint refuses this message, and would refuse it again."""


class TooOften(NotDelivered):
    """The endpoint does not accept such a message again yet."""


class HeardBefore(TooOften):
    """The agent API accepted a heartbeat seconds ago: the last one, or this one, whose answer was lost."""


class Unauthorized(NotDelivered):
    """The endpoint does not accept the signature: our clock is wrong, or it has the key of another agent."""


class EndpointClock:
    """Milliseconds since the Unix epoch, by the endpoint's clock as far as it is known; strictly increasing."""

    def __init__(self, now: Callable[[], int]) -> None:
        """*now* is the machine's own clock."""
        self._now = now
        self._offset = 0
        self._last = 0

    def next(self) -> int:
        """Return the time of a new request."""
        self._last = max(self._last + 1, self._now() + self._offset)
        return self._last

    def correct(self, server: int) -> None:
        """Adjust to the endpoint's time."""
        self._offset = server - self._now()
        if self._last > server + _TOLERANCE:
            self._last = 0  # so far ahead that the endpoint never accepted it


class Reporter:
    """Sends the messages of one machine to one endpoint, signed with one key."""

    def __init__(
        self, endpoint: Endpoint, key: PrivateKey, machine_id: str, now: Callable[[], int] = milliseconds
    ) -> None:
        """Send to *endpoint*, signed with *key*; *now* returns the time in milliseconds."""
        self.machine_id = machine_id
        self.endpoint = endpoint
        self._key = key
        self._clock = EndpointClock(now)

    def send(self, method: str, message: bytes) -> bytes:
        """
        Send *message* to *method* once, signed, and return the answer.

        Raises:
            Unauthorized: the signature was not accepted; the clock is adjusted. Send the message again after a pause.
            MessageRefused: the endpoint refuses this message; do not send it again.
            TooOften: the endpoint accepts such messages less often; leave out what can wait. If it is HeardBefore,
                nothing was lost.
            NotDelivered: the endpoint was not reached, or answered another error.
        """
        path = self.endpoint.path(method)
        answer = self.endpoint.post(method, message, lambda: self._headers(path, message))
        if answer.status == _ACCEPTED:
            return answer.body
        if answer.status == _UNAUTHORIZED:
            server = answer.headers.get(TIME_HEADER, "")
            if server.isascii() and server.isdigit() and len(server) < 16:  # noqa: PLR2004 - the year 33658
                self._clock.correct(int(server))
            raise Unauthorized(answer.reason, answered=True)
        if answer.status == _TOO_OFTEN:
            # AWS answers with this status as well, but without Shepherd's time.
            raise (HeardBefore if TIME_HEADER in answer.headers else TooOften)(answer.reason, answered=True)
        raise (MessageRefused if answer.status in (_MALFORMED, _TOO_LARGE) else NotDelivered)(
            answer.reason, answered=True
        )

    def _headers(self, path: str, message: bytes) -> dict[str, str]:
        """Sign a new request."""
        text = str(self._clock.next())
        signed = b"\n".join((_DOMAIN, b"POST", path.encode(), text.encode(), message))
        signature = b64encode(self._key.sign(signed)).decode()
        return {MACHINE_HEADER: self.machine_id, TIME_HEADER: text, SIGNATURE_HEADER: signature}
