"""The login of one client: kept while it is good, and not sent while the API would lock us out."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from shepherd_core.domain.errors import TimeLimitExceeded

if TYPE_CHECKING:
    from shepherd_core.domain.clock import Clock, Deadline
    from shepherd_core.providers.kit.auth import Authentication, Login


class Logins:
    """The login for *url* by *authentication*. Safe to use from several threads."""

    def __init__(self, url: str, authentication: Authentication, clock: Clock, lockout_seconds: float) -> None:
        self._url = url
        self._authentication = authentication
        self._clock = clock
        self._lockout_seconds = lockout_seconds
        self._login: Login | None = None
        self._lock = threading.Lock()
        self._refused: tuple[Login, float] | None = None

    def usable(self, deadline: Deadline) -> Login:
        """Return the login; a new one if it has ended or was refused. Raises as ``Authentication.login``."""
        login = self._login
        if login is None or self.locked_seconds(login):
            return self.after(login, deadline)
        ended = login.until is not None and login.until <= self._clock.monotonic()
        return self.after(login, deadline) if ended else login

    def after(self, former: Login | None, deadline: Deadline) -> Login:
        """Return the login after *former*, perhaps an equal one. If several threads need it, one asks for all."""
        if not self._lock.acquire(timeout=deadline.left(threading.TIMEOUT_MAX)):
            raise TimeLimitExceeded
        try:
            if self._login is None or self._login is former:
                self._login = None  # unless there is another
                self._login = self._authentication.login(self._url, deadline)
            return self._login
        finally:
            self._lock.release()

    def refuse(self, login: Login) -> None:
        """Record that the API refused *login*."""
        self._refused = (login, self._clock.monotonic() + self._lockout_seconds)

    def locked_seconds(self, login: Login) -> float:
        """Return the seconds for which *login* must not be sent."""
        refused, until = self._refused or (None, 0)
        return max(0.0, until - self._clock.monotonic()) if refused == login else 0
