"""
Sends heartbeats to the endpoint through a relay, which need not be trusted.

An answer counts only if the endpoint made it for this very heartbeat. After any
other answer, or none within seconds, the agent reports directly, at once.
"""

from __future__ import annotations

import hmac
import math
import time
from base64 import b64decode
from http.client import HTTPException
from typing import TYPE_CHECKING

from ..reports.connection import EndpointChannel
from ..reports.reporter import SIGNATURE_HEADER, TIME_HEADER
from .times import ANSWER_SECONDS, collect_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from http.client import HTTPResponse

MAC_HEADER, COLLECT_HEADER = "Shepherd-Mac", "Shepherd-Collect"

_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 120.0, 3_600.0
"""The first pause is longer than three lost requests take, so that these do not wait for the relay, too."""
_LONGEST_ADDRESS = 300
_LONGEST_ANSWER = 65_536
_ACCEPTED = 200
_DOMAIN = b"shepherd-answer-v1"


class RelayClient:
    """
    The relay that the endpoint named, if it named one.

    After a wrong answer, or none, it is not used for a while: first two minutes, then twice as long each time, up to an
    hour.
    """

    def __init__(
        self,
        response_key: bytes,
        interval: Callable[[], float],
        seconds: float = ANSWER_SECONDS,
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Recognize the endpoint's answers by *response_key*.

        *interval* returns the seconds between two heartbeats. The relay may collect for a part of them, and then has
        *seconds* to answer.
        """
        self._response_key = response_key
        self._interval = interval
        self._seconds = seconds
        self._elapsed = elapsed
        self._address = ""
        self._begin()

    def _begin(self) -> None:
        self._next = -math.inf
        self._pause = _PAUSE_SECONDS

    def told(self, address: str) -> None:
        """Note the relay that an answer of the endpoint named, as HOST:PORT; empty: none."""
        if address != self._address:
            self._address = address
            self._begin()

    def send(self, message: bytes, headers: Callable[[], Mapping[str, str]]) -> bytes | None:
        """
        Send a heartbeat through the relay, if it is time to, and return the endpoint's HeartbeatResponse.

        None: report directly. *headers* signs the heartbeat. Never raises.
        """
        if not self._address or self._elapsed() < self._next:
            return None
        answer = self._asked(message, headers())
        if answer is None:
            self._next = self._elapsed() + self._pause
            self._pause = min(2 * self._pause, _LONGEST_PAUSE_SECONDS)
        else:
            self._pause = _PAUSE_SECONDS
        return answer

    def _asked(self, message: bytes, headers: Mapping[str, str]) -> bytes | None:
        host, _, port = self._address.rpartition(":")
        usable = self._address.isascii() and self._address.isprintable() and len(self._address) <= _LONGEST_ADDRESS
        if not usable or not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
            return None
        collect = collect_seconds(self._interval())
        lines = ["POST /heartbeat HTTP/1.1", f"Host: {self._address}", f"Content-Length: {len(message)}"]
        lines += [f"{COLLECT_HEADER}: {collect}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        end = time.monotonic() + collect + self._seconds
        try:
            connection = EndpointChannel(host.strip("[]"), int(port), None).connect(end)
            try:
                request = "\r\n".join([*lines, "\r\n"]).encode("ascii") + message
                response, body = connection.exchange(request, end, _LONGEST_ANSWER + 1)
            finally:
                connection.sock.close()
            authentic = self._authentic(headers[SIGNATURE_HEADER], response, body)
        except (OSError, ValueError, HTTPException, RuntimeError):
            return None
        return body if authentic and response.status == _ACCEPTED else None

    def _authentic(self, signature: str, response: HTTPResponse, body: bytes) -> bool:
        """Return whether the endpoint made this answer, for the heartbeat with this signature."""
        at, mac = response.headers.get(TIME_HEADER, ""), response.headers.get(MAC_HEADER, "")
        parts = (b64decode(signature).hex(), str(response.status), at)
        text = b"\n".join((_DOMAIN, *(part.encode("latin-1") for part in parts), body))
        expected = hmac.new(self._response_key, text, "sha256").digest()
        return hmac.compare_digest(expected, b64decode(mac, validate=True))
