"""One request to the agent API: what holds for all its heartbeats, the answers to them, and its line in the log."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

from shepherd_core import telemetry

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from shepherd_core.agent.heartbeats import HeartbeatRefused

TIME_HEADER = "shepherd-time"

_RETRY_SECONDS = "10"
_LONGEST_ADDRESS = 64
_MOST_NAMED = 10
"""Refusals of one request that its line in the log names; it counts all."""


@dataclass(frozen=True, slots=True)
class AgentResponse:
    """
    The response to a request, or to one heartbeat of a batch.

    The body is a HeartbeatBatchResponse, a HeartbeatResponse if the status is 200, or else a line of text.
    """

    status: HTTPStatus
    time: int
    """Milliseconds since the Unix epoch, by the database's clock if it was asked. A header unless the status is 200."""
    body: bytes
    relayed: bool = False
    """The body is a HeartbeatBatchResponse, whatever the status."""
    response_key: bytes | None = None
    """That of the agent that signed the heartbeat; None: it has none, or no known agent signed it."""

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers by lower-case name."""
        if self.status is HTTPStatus.OK or self.relayed:
            return {"content-type": "application/x-protobuf"}  # its bytes are paid for with every heartbeat
        return {
            "content-type": "text/plain; charset=utf-8",
            TIME_HEADER: str(self.time),
            **({"allow": "POST"} if self.status is HTTPStatus.METHOD_NOT_ALLOWED else {}),
            **({"retry-after": _RETRY_SECONDS} if self.status is HTTPStatus.SERVICE_UNAVAILABLE else {}),
        }


class ReceivedRequest:
    """One request with heartbeats: what holds for all of them, and one line in the log for those that are refused."""

    def __init__(self, received_at: int, address: str, told: Callable[[UUID], str], *, relayed: bool) -> None:
        """
        Begin one that arrived at *received_at*, in milliseconds since the Unix epoch, from *address*.

        *told* returns the endpoint that an agent is told to report to; empty: none. *relayed*: a relay sent it.
        """
        self.received_at = received_at
        self.told = told
        self.relayed = relayed
        self._address = address[:_LONGEST_ADDRESS]
        self._refused: list[dict[str, object]] = []
        self._count = 0

    def unavailable(self) -> AgentResponse:
        """Return the answer to what cannot be recorded now."""
        return AgentResponse(HTTPStatus.SERVICE_UNAVAILABLE, self.received_at, b"try again later\n")

    def refuse(self, refusal: HeartbeatRefused, machine_id: UUID | None = None) -> AgentResponse:
        """Return the answer to what is refused."""
        self._count += 1
        if self._count <= _MOST_NAMED:
            self._refused.append({"status": refusal.status, "machine_id": machine_id, "why": refusal.why})
        return AgentResponse(refusal.status, refusal.time or self.received_at, f"{refusal.text}\n".encode())

    def close(self) -> None:
        """Log what was refused: one line, because a sender can cause any number of refusals."""
        if self._refused:
            first, *others = self._refused
            more: dict[str, object] = {"others": others} if others else {}
            telemetry.warning("request refused", **first, address=self._address, count=self._count, **more)
