"""The endpoint that agents are moved to: who is told, and what the log says about those who still report elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from shepherd_core import telemetry

if TYPE_CHECKING:
    from uuid import UUID

    from shepherd_core.agent.endpoint import AgentRequest

_LOG_SECONDS = 3_600
"""Between two log lines about one machine, from one instance of the function."""
_REMEMBERED = 100_000


class NewEndpoint:
    """The endpoint that agents are moved to. An agent that already reports there is told nothing."""

    def __init__(self, url: str | None) -> None:
        """Make it from its URL; None: agents stay where they are."""
        self._url = url
        self._place = None if url is None else _place(url)
        self._logged: dict[UUID, int] = {}

    def told(self, machine_id: UUID, request: AgentRequest) -> str:
        """Return the endpoint for the response to *request*, whose sender has been verified; empty: none."""
        if self._url is None:
            return ""
        path = request.path.rpartition("/")[0]  # without /heartbeat
        if _place(f"https://{request.headers.get('host', '')}{path}") == self._place:
            return ""
        if request.received_at - self._logged.get(machine_id, 0) >= _LOG_SECONDS * 1000:
            if len(self._logged) >= _REMEMBERED:
                self._logged.clear()
            self._logged[machine_id] = request.received_at
            telemetry.info("agent told of the new endpoint", machine_id=machine_id, address=request.address)
        return self._url


def _place(url: str) -> tuple[str, str]:
    """Return where *url* leads: host and port, and the path."""
    parts = urlsplit(url if "://" in url else f"https://{url}")
    return parts.netloc.lower().removesuffix(":443"), parts.path.rstrip("/")
