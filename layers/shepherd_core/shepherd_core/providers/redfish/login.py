"""The credentials of BMCs, and the protection against a lock-out by a wrong one."""

from __future__ import annotations

import base64
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shepherd_core.domain.errors import SecretError, TimeLimitExceeded
from shepherd_core.domain.errors.provider import ProviderRefused, ProviderUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from shepherd_core.domain.clock import Clock, Deadline

LOCKOUT_SECONDS = 600
"""How long a refused credential is not sent to the BMC again: some lock an account after three bad logins."""


@dataclass(frozen=True, slots=True, repr=False)
class Credential:
    """A user of a BMC and the password."""

    user: str
    password: str

    @property
    def basic(self) -> str:
        """Return the value of the header Authorization."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()

    @property
    def secrets(self) -> tuple[str, ...]:
        """Return the texts that must not be in errors."""
        return (self.basic.removeprefix("Basic "), self.password)


class BmcCredentials:
    """
    The credentials of all BMCs, each a secret ``user:password``.

    *read* returns a secret by its name and raises SecretError; *invalidate* makes
    *read* fetch it again. They are called by one thread at a time; the others
    wait, at most until their limits. Safe to use from several threads.
    """

    def __init__(self, read: Callable[[str], str], invalidate: Callable[[str], None], clock: Clock) -> None:
        self._read = read
        self._invalidate = invalidate
        self._clock = clock
        self._reading = threading.Lock()
        self._refused: dict[str, tuple[Credential, float]] = {}

    def get(self, bmc: str, secret: str, limit: Deadline) -> Credential:
        """
        Return the credential for the BMC at the URL *bmc*.

        Raises:
            ProviderRefused: the BMC refused it less than ``LOCKOUT_SECONDS`` ago, or there is none.
            ProviderUnavailable: the secret cannot be read now.
            TimeLimitExceeded: other threads read secrets until the limit.
        """
        credential = self._parsed(secret, limit)
        refused, until = self._refused.get(bmc, (None, 0.0))
        left = until - self._clock.monotonic()
        if credential == refused and left > 0:
            raise ProviderRefused(
                f"the BMC {bmc} refused the credential {secret!r}; it is not sent again for {left:.0f} s, "
                "unless it is changed"
            )
        return credential

    def refuse(self, bmc: str, secret: str, credential: Credential, limit: Deadline) -> Credential | None:
        """
        Record that the BMC refused *credential*; return its replacement in the secret store, if there is one.

        Raises:
            ProviderRefused: the secret is gone, or not a credential.
            ProviderUnavailable: the secret cannot be read now.
            TimeLimitExceeded: other threads read secrets until the limit.
        """
        self._refused[bmc] = (credential, self._clock.monotonic() + LOCKOUT_SECONDS)
        self._invalidate(secret)
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
            raise ProviderRefused(f"the secret {secret!r} is not a credential; it must be user:password")
        return Credential(user, password)
