"""Sessions of requests whose answers have begun in time, or are cut off; see ``timed_headers``."""

from __future__ import annotations

from typing import Any

from requests.adapters import HTTPAdapter

from shepherd_core.adapters.http.timed_headers import POOLS


class TimedAdapter(HTTPAdapter):
    """The adapter of a session whose connections are such."""

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        """Make the pools."""
        super().init_poolmanager(*args, **options)
        self.poolmanager.pool_classes_by_scheme = POOLS
