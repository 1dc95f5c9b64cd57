"""Notices an outage of the provider, so that the Recoverer stops asking it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from shepherd_core import telemetry
from shepherd_core.domain.errors.provider import ProviderNotAsked

if TYPE_CHECKING:
    from shepherd_core.domain.errors.provider import ProviderError

_FAILURES = 3
"""After this many failures of the provider in a row, it is not asked again in this invocation."""


class ProviderOutage:
    """Counts the provider's failures in this invocation, to tell when to stop asking. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failures = 0
        self._cause: ProviderError | None = None

    def check(self) -> None:
        """
        Check that the provider may be asked.

        Raises:
            ProviderNotAsked: it failed for several machines, one after another.
        """
        with self._lock:
            if self._failures >= _FAILURES:
                message = f"the provider was not asked, because it failed for {self._failures} machines: {self._cause}"
                raise ProviderNotAsked(message)

    def failed(self, error: ProviderError) -> None:
        """Record that the provider failed in a way that is not a machine's fault."""
        with self._lock:
            self._failures += 1
            self._cause = error
            if self._failures == _FAILURES:
                telemetry.warning("provider outage: recovery waits", machines=self._failures, cause=error)

    def answered(self) -> None:
        """Record that the provider answered about a machine."""
        with self._lock:
            self._failures = 0
