"""How often the agent reports: as the endpoint sets it; a file keeps it for the next agent of the machine."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from ..duration import seconds_from

if TYPE_CHECKING:
    from collections.abc import Mapping

INTERVAL_VARIABLE = "SHEPHERD_AGENT_HEARTBEAT_SECONDS"
_DEFAULT = 60.0
_SHORTEST, _LONGEST = 10.0, 3600.0
_RECORD_LENGTH = 8


class Interval:
    """The seconds between two heartbeats."""

    def __init__(self, environment: Mapping[str, str], record: str) -> None:
        """
        Begin with the interval in *environment*, else the one in the file *record*, else a minute.

        One in the environment that is shorter than 10 seconds is also the shortest that the endpoint may set.

        Raises:
            AgentRefusal: see ``seconds_from``.
        """
        self._record = record
        given = bool(environment.get(INTERVAL_VARIABLE))
        self.seconds = seconds_from(environment, INTERVAL_VARIABLE, _DEFAULT)
        self._shortest = min(self.seconds, _SHORTEST) if given else _SHORTEST
        if not given:
            with suppress(OSError, ValueError):
                self.seconds = self._bounded(int(self._read()))

    @property
    def whole_seconds(self) -> int:
        """Return the interval as heartbeats report it, rounded up."""
        return math.ceil(self.seconds)

    def set(self, seconds: int) -> bool:
        """Use the interval that the endpoint set, within bounds; 0: no change. Return whether it changed."""
        bounded = self._bounded(seconds)
        if not seconds or bounded == self.seconds:
            return False
        self.seconds = bounded
        with suppress(OSError):  # the next agent is told again
            self._write()
        return True

    def _bounded(self, seconds: int) -> float:
        return min(max(float(seconds), self._shortest), _LONGEST)

    def _read(self) -> str:
        file = os.open(self._record, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # O_NONBLOCK: a pipe would wait
        try:
            return os.read(file, _RECORD_LENGTH).decode()
        finally:
            os.close(file)

    def _write(self) -> None:
        file = os.open(self._record, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        try:
            os.pwrite(file, b"%-7d\n" % self.whole_seconds, 0)
        finally:
            os.close(file)
