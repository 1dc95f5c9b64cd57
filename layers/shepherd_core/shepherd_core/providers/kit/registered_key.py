"""Our SSH key in the key store of a provider, added at its first use."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shepherd_core.domain.errors import TimeLimitExceeded
from shepherd_core.domain.errors.provider import ProviderRefused, ProviderUnavailable
from shepherd_core.providers.kit.context import readable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from shepherd_core.domain.clock import Deadline


@dataclass(frozen=True, slots=True)
class StoredKey:
    """An SSH key in the key store."""

    id: str
    """The id by which a request for a machine names the key."""
    name: str | None
    line: str
    """As in ``authorized_keys``."""
    created_at: str


class RegisteredKey:
    """
    The SSH key of *public_key* (a line as in ``authorized_keys``), under *name* or the name that it has there already.

    *listed* returns all keys of the store; *add* adds a key, or raises
    ProviderRefused if it is there already. Safe to use from several threads and
    processes.
    """

    def __init__(
        self,
        name: str,
        public_key: Callable[[], str],
        listed: Callable[[Deadline], Iterable[StoredKey]],
        add: Callable[[str, str, Deadline], object],
    ) -> None:
        """*add* takes name and line."""
        self._name = name
        self._public_key = public_key
        self._listed = listed
        self._add = add
        self._found: tuple[str, str] | None = None
        self._lock = threading.Lock()

    def line(self) -> str:
        """
        Return the key.

        Raises:
            ProviderUnavailable: it cannot be read now.
            ProviderRefused: it cannot be read.
        """
        with readable("our SSH key"):
            return self._public_key()

    def ensure(self, deadline: Deadline) -> str:
        """
        Return the id of the key; add it to the store if it is not there.

        Raises:
            ProviderRefused: it is not there, and another key has our name.
        """
        if not self._lock.acquire(timeout=deadline.left(threading.TIMEOUT_MAX)):
            raise TimeLimitExceeded
        try:
            line = self.line()  # again: it may have been rotated
            if self._found is None or self._found[0] != line:
                self._found = line, self._find(line, deadline) or self._put(line, deadline)
            return self._found[1]
        finally:
            self._lock.release()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Look up the key again if a request that names it is refused, because the key may have been removed."""
        try:
            yield
        except ProviderRefused:
            self.invalidate()
            raise

    def invalidate(self) -> None:
        """Look up the key again at its next use."""
        self._found = None

    def _find(self, line: str, deadline: Deadline) -> str | None:
        keys = list(self._listed(deadline))
        same = [key for key in keys if key.line.split()[:2] == line.split()[:2]]  # the rest is a comment
        if same:
            return min(same, key=lambda key: (key.name != self._name, key.created_at, key.id)).id
        if any(key.name == self._name for key in keys):
            raise ProviderRefused(f"another SSH key has the name {self._name!r} at the provider: remove or rename it")
        return None

    def _put(self, line: str, deadline: Deadline) -> str:
        refused = None
        try:
            self._add(self._name, line, deadline)
        except ProviderRefused as error:
            refused = error  # another process may have added it meanwhile
        # Looked up even after success: if several processes added it at the same time, all use the oldest.
        found = self._find(line, deadline)
        if found is None:
            raise refused or ProviderUnavailable(f"the SSH key {self._name!r} was added, but is not listed yet")
        return found
