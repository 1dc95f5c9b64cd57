"""The endpoint in use: that of the takeover, or another that it named and that has answered."""

from __future__ import annotations

import math
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from ..messages import named_endpoint
from ..refusal import AgentRefusal
from .endpoint import Endpoint, NotDelivered
from .reporter import Reporter

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..ed25519 import PrivateKey

_TRIAL_SECONDS = 10.0
_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 600.0, 86_400.0
_LOST = 3
_LONGEST_ADDRESS = 2_000
_WRITING = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_TRUNC
_LONGEST_RECORD = 2 * _LONGEST_ADDRESS + 200


class SwitchingReporter(Reporter):
    """
    A reporter that changes the endpoint if an answer names another.

    An endpoint that was named gets one message. If it accepts that, under the CA of the takeover, it is in use from
    then on. If not, the same message goes to the endpoint before, and the next trial waits, at first for ten minutes,
    and twice as long after each, up to a day. An endpoint that names yet another one is not used, so that two that
    name each other never move an agent. After every third message in a row that was lost, the endpoint of the takeover
    is tried.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        key: PrivateKey,
        machine_id: str,
        ca_certificate: bytes,
        record: str,
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Begin with *endpoint*, that of the takeover, and its *ca_certificate*.

        *record* is the file of the endpoint in use, for the next agent of this machine; *elapsed* returns seconds.
        """
        super().__init__(endpoint, key, machine_id)
        self._first = endpoint
        self._ca_certificate = ca_certificate
        self._record = record
        self._elapsed = elapsed
        self._named = self._recorded()
        self._lost = 0
        self._pause = _PAUSE_SECONDS
        self._next_trial = -math.inf

    def send(self, method: str, message: bytes) -> bytes:
        """As in the base class, but to the endpoint that was named, if it is time to try that."""
        candidate = self._candidate()
        answer = None if candidate is None else self._tried(candidate, method, message)
        if answer is None:
            try:
                answer = super().send(method, message)
            except NotDelivered:
                self._lost += 1
                raise
        self._lost = 0
        with suppress(ValueError):  # the caller finds out
            self.told(named_endpoint(answer))
        return answer

    def told(self, address: str) -> None:
        """Note the endpoint that an answer named; empty: none."""
        self._named = address

    def _candidate(self) -> Endpoint | None:
        """Return the endpoint to try with this heartbeat, if any."""
        current = self.endpoint
        if current is not self._first and self._lost and self._lost % _LOST == 0:
            self._begin_pause()
            return self._first
        if self._named in ("", current.address) or self._elapsed() < self._next_trial:
            return None
        self._begin_pause()
        return self._first if self._named == self._first.address else self._made(self._named)

    def _begin_pause(self) -> None:
        now = self._elapsed()
        if now - self._next_trial >= _LONGEST_PAUSE_SECONDS:
            self._pause = _PAUSE_SECONDS
        self._next_trial = now + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_SECONDS)

    def _made(self, address: str) -> Endpoint | None:
        """Return the endpoint at *address*; None if the takeover would have refused it, or if it is less safe."""
        if len(address) > _LONGEST_ADDRESS:
            return None
        try:
            endpoint = Endpoint(address, self._ca_certificate, self._first.seconds)
        except AgentRefusal:
            return None
        return endpoint if endpoint.encrypted or not self._first.encrypted else None

    def _tried(self, endpoint: Endpoint, method: str, message: bytes) -> bytes | None:
        """Return the answer of *endpoint*, which is in use from now on; None if it is not."""
        usual, endpoint.seconds = endpoint.seconds, min(_TRIAL_SECONDS, endpoint.seconds)
        try:
            answer = self.try_at(endpoint, method, message)
            named = named_endpoint(answer)
        except (NotDelivered, ValueError):
            endpoint.close()
            return None
        finally:
            endpoint.seconds = usual
        # Any web server may answer 200 with an empty body. Shepherd's body has at least the interval.
        if endpoint is not self._first and (not answer or named not in ("", endpoint.address)):
            endpoint.close()
            return None
        self.endpoint.close()
        self.endpoint = endpoint
        self._write("" if endpoint is self._first else endpoint.address)
        return answer

    def _recorded(self) -> str:
        """Return the endpoint that an earlier agent of this machine was moved to from the same first one."""
        with suppress(OSError, ValueError):
            file = os.open(self._record, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # O_NONBLOCK: a pipe would wait
            try:
                lines = os.read(file, _LONGEST_RECORD).decode("ascii").splitlines()
            finally:
                os.close(file)
            if lines[:2] == [self.machine_id, self._first.address] and len(lines) == 3:  # noqa: PLR2004
                return lines[2]
        return ""

    def _write(self, address: str) -> None:
        """Record *address*. A record that cannot be written costs the next agent a trial, no more."""
        with suppress(OSError, ValueError):
            file = os.open(self._record, _WRITING, 0o600)
            try:
                lines = [self.machine_id, self._first.address, address] if address else []
                os.write(file, "".join(f"{line}\n" for line in lines).encode("ascii"))
            finally:
                os.close(file)
