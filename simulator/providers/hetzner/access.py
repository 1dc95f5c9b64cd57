"""The credentials and the rate limits of the simulated Robot web service."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from simulator.providers.hetzner.objects import RobotRefused
from simulator.providers.kit.credentials import basic
from simulator.providers.kit.http_server import HttpRequest

_HOUR = 3_600
_FAILED_LOGINS = 3
_PER_HOUR = {"GET /server": 200, "POST /reset/{number}": 50, "POST /key": 200}
"""Requests in an hour, where they are not 500."""
_SHARED = {"GET /server/{number}": "GET /server"}
"""Operations that share a limit, as observed."""


@dataclass(frozen=True, kw_only=True)
class RobotOptions:
    """Durations and limits of the simulated service."""

    action_seconds: float = 0.0
    """From a reset until it takes effect."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """Requests an hour by quota ("POST /reset/{number}"), where they differ from the description."""
    lockout_seconds: float = 600
    clock: Callable[[], float] = time.monotonic
    """The seconds by which hours and the lock-out are measured."""
    authorized_key: str = ""
    """An SSH key that each server accepts."""


class AccessControl:
    """Checks credentials and rate limits. Safe to use from any thread."""

    def __init__(self, credential: str, options: RobotOptions) -> None:
        self.failed_logins = 0
        """The number of requests with a wrong credential."""
        self._credential = credential
        self._limits = options.limits
        self._lockout_seconds = options.lockout_seconds
        self._clock = options.clock
        self._lock = threading.Lock()
        self._failed: Counter[str] = Counter()
        self._locked_until: dict[str, float] = {}
        self._hours: dict[str, tuple[float, int]] = {}

    def log_in(self, request: HttpRequest) -> None:
        """
        Check the credential of a request.

        Raises:
            RobotRefused: it is wrong, or the client's address is locked out.
        """
        right = basic(request, self._credential)
        with self._lock:
            now, client = self._clock(), request.client
            locked = now < self._locked_until.get(client, 0)
            self.failed_logins += not right
            if not right and not locked:
                self._failed[client] += 1
                if self._failed[client] == _FAILED_LOGINS:
                    self._failed[client] = 0
                    self._locked_until[client] = now + self._lockout_seconds
        if locked or not right:
            raise RobotRefused("UNAUTHORIZED")

    def count(self, quota: str) -> None:
        """
        Count a request.

        Raises:
            RobotRefused: it exceeds the limit for this hour.
        """
        quota = _SHARED.get(quota, quota)
        limit = self._limits.get(quota, _PER_HOUR.get(quota, 500))
        with self._lock:
            began, count = self._hours.get(quota, (self._clock(), 0))
            if self._clock() >= began + _HOUR:
                began, count = self._clock(), 0
            self._hours[quota] = (began, count + 1)
        if count >= limit:
            raise RobotRefused("RATE_LIMIT_EXCEEDED", max_request=limit, interval=_HOUR)
