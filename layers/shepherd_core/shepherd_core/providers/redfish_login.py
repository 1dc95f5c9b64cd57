"""Who we are to a BMC: credentials, and the care not to be locked out with a wrong one."""

from __future__ import annotations

import base64
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shepherd_core.errors import ProviderRefused, ProviderUnavailable, SecretError, TimeLimitExceeded

if TYPE_CHECKING:
    from collections.abc import Callable

    from shepherd_core.clock import Clock, Deadline

LOCKOUT_SECONDS = 600
"""For how long a credential that a BMC refused is not sent to it again: some lock an account at the third bad login."""


@dataclass(frozen=True, slots=True, repr=False)
class Credential:
    """A user of a BMC and the password."""

    user: str
    password: str

    @property
    def basic(self) -> str:
        """Return it as HTTP Basic authentication sends it."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()

    @property
    def secrets(self) -> tuple[str, ...]:
        """Return what of it no error may repeat."""
        return (self.basic.removeprefix("Basic "), self.password)


class Logins:
    """
    The credentials of all BMCs, each a secret ``user:password``.

    *read* returns a secret by its name and raises SecretError; *forget* makes
    it look anew next time. They are called by one thread at a time, for which
    the others wait no longer than their limits. Safe to use from several threads.
    """

    def __init__(self, read: Callable[[str], str], forget: Callable[[str], None], clock: Clock) -> None:
        self._read = read
        self._forget = forget
        self._clock = clock
        self._reading = threading.Lock()
        self._refused: dict[str, tuple[Credential, float]] = {}

    def get(self, bmc: str, secret: str, limit: Deadline) -> Credential:
        """
        Return the credential for the BMC at the URL *bmc*.

        Raises:
            ProviderRefused: the BMC refused it less than ``LOCKOUT_SECONDS`` ago, or there is none.
            ProviderUnavailable: the secret cannot be read now.
            TimeLimitExceeded: others took all the time to read theirs.
        """
        credential = self._parsed(secret, limit)
        refused, until = self._refused.get(bmc, (None, 0.0))
        left = until - self._clock.monotonic()
        if credential == refused and left > 0:
            raise ProviderRefused(
                f"the BMC {bmc} refused the credential {secret!r}; it is not sent again for {left:.0f} s, "
                "or until it is another one"
            )
        return credential

    def refuse(self, bmc: str, secret: str, credential: Credential, limit: Deadline) -> Credential | None:
        """
        Take note that the BMC refused *credential*; return the one that took its place since it was read, if any.

        Raises:
            ProviderRefused: the secret is there no more, or no credential.
            ProviderUnavailable: the secret cannot be read now.
            TimeLimitExceeded: others took all the time to read theirs.
        """
        self._refused[bmc] = (credential, self._clock.monotonic() + LOCKOUT_SECONDS)
        self._forget(secret)
        newer = self._parsed(secret, limit)
        return None if newer == credential else newer

    def _parsed(self, secret: str, limit: Deadline) -> Credential:
        if not self._reading.acquire(timeout=limit.left(threading.TIMEOUT_MAX)):
            raise TimeLimitExceeded
        try:
            text = self._read(secret)
        except SecretError as error:
            kind = ProviderUnavailable if error.retryable else ProviderRefused
            raise kind(f"the credential of a BMC: {error}") from error
        finally:
            self._reading.release()
        user, colon, password = text.strip().partition(":")
        if not user or not colon or not password or not text.strip().isprintable():
            raise ProviderRefused(f"the secret {secret!r} does not hold a credential; user:password was wanted")
        return Credential(user, password)
