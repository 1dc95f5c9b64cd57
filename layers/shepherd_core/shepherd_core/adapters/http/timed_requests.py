"""Sessions of requests with the time limit of ``timed_headers``."""

from __future__ import annotations

from typing import Any

from requests.adapters import HTTPAdapter

from shepherd_core.adapters.http.timed_headers import POOLS


class TimedAdapter(HTTPAdapter):
    """The adapter of a session whose connections have that limit."""

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        """Make the pools."""
        super().init_poolmanager(*args, **options)
        self.poolmanager.pool_classes_by_scheme = POOLS
