"""The objects that adapters of providers are built with, besides their settings."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shepherd_core.domain.errors import SecretError, SourceError
from shepherd_core.domain.errors.provider import ProviderUnavailable, ProviderUnusable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shepherd_core.domain.clock import Clock

_LIST_SECONDS = 30.0
"""How old a list of machines may be."""


@contextmanager
def readable(what: str) -> Iterator[None]:
    """Raise the errors of secrets and documents as the provider's; *what* names what is read."""
    try:
        yield
    except (SecretError, SourceError) as error:
        raise (ProviderUnavailable if error.retryable else ProviderUnusable)(f"{what}: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderContext:
    """The clock, documents and secrets that an adapter may use. Nothing of it is used before the first request."""

    clock: Clock
    read: Callable[[str], bytes]
    """Returns the document at a path, https://…, ssm:NAME or s3://BUCKET/KEY; raises SourceError."""
    read_secret: Callable[[str], str]
    """Returns the secret of that name; raises SecretError."""
    invalidate_secret: Callable[[str], None]
    """Makes the next ``read_secret`` read that secret again."""
    public_key: Callable[[], str]
    """Returns our public key as a line for ``authorized_keys``; raises SecretError."""

    def secret(self, name: str) -> Callable[[], str]:
        """Return a reader of the secret *name* past its cache: logins keep it, and read again when it was refused."""

        def read() -> str:
            self.invalidate_secret(name)
            return self.read_secret(name)

        return read

    def cached(self, source: str) -> Callable[[], bytes]:
        """Return a reader of *source* that caches for half a minute: a batch of machines fetches a list once."""
        lock = threading.Lock()
        cached: list[tuple[float, bytes]] = []

        def read() -> bytes:
            with lock:
                if not cached or self.clock.monotonic() - cached[0][0] > _LIST_SECONDS:
                    cached[:] = [(self.clock.monotonic(), self.read(source))]
                return cached[0][1]

        return read
