"""Installations of an operating system: requested here, carried out and reported by the machine's agent."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from shepherd_core.domain.errors.bmdb import CommitUnknown
from shepherd_core.domain.pb.callback_pb2 import MetropolisInstallation, OSInstallationRequest
from shepherd_core.domain.record import record

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from shepherd_core.bmdb.connection import Connection


@record
class Request:
    """The installation that is requested."""

    generation: int
    raw: bytes = field(repr=False)
    """An OSInstallationRequest, as the agent receives it. May contain secrets of the new system."""
    requested_at: datetime


@record
class Report:
    """The outcome of an installation, as the agent reported it."""

    generation: int
    result: str
    """``Success`` or ``Error``."""
    raw: bytes = field(repr=False)
    """An OSInstallationReport, as the agent sent it."""
    reported_at: datetime


@dataclass(frozen=True, slots=True)
class Installation:
    """The request and the report on record for one machine."""

    request: Request | None = None
    report: Report | None = None

    @property
    def pending(self) -> bool:
        """Whether an installation is requested and its outcome not reported yet; it may be running."""
        if self.request is None:
            return False
        return self.report is None or self.report.generation != self.request.generation

    @property
    def next_generation(self) -> int:
        """The generation of the next request: higher than that of any request or report on record."""
        return 1 + max(known.generation if known else 0 for known in (self.request, self.report))


def load(connection: Connection, machine_id: UUID) -> Installation:
    """Return the request and the report on record for the machine."""
    requests = connection.fetch(Request, "installation_request", machine_id=machine_id)
    reports = connection.fetch(Report, "installation_report", machine_id=machine_id)
    return Installation(requests[0] if requests else None, reports[0] if reports else None)


def request(
    connection: Connection,
    machine_id: UUID,
    installation: MetropolisInstallation,
    seen: Installation,
    encode: Callable[[OSInstallationRequest], bytes] = OSInstallationRequest.SerializeToString,
) -> int | None:
    """
    Request *installation*, if *seen* still holds, and return its generation: the one after *seen*.

    *encode* returns the request as the agent receives it, signed; an agent refuses
    one without a signature.

    None: since ``load`` returned *seen*, another request was made or the agent
    reported; or the machine is not provided. Nothing was changed then. The agent
    gets the request in the answer to its next heartbeat. A request that replaces a
    pending one does not stop it.

    Raises:
        CommitUnknown: the connection broke again while the outcome was read; ``load`` shows it.
    """
    generation = seen.next_generation
    raw = encode(OSInstallationRequest(generation=generation, metropolis=installation))

    def write() -> bool:
        rows = connection.run(
            "request_installation",
            machine_id=machine_id,
            generation=generation,
            request=raw.hex(),
            requested=seen.request and seen.request.generation,
            reported=seen.report and seen.report.generation,
            reported_result=seen.report and seen.report.result,
        )
        return bool(rows)

    try:
        written = write()
    except CommitUnknown:
        # If the lost statement committed, this one changes nothing, and the request is found.
        written = write() or _is_requested(connection, machine_id, raw)
    return generation if written else None


def _is_requested(connection: Connection, machine_id: UUID, raw: bytes) -> bool:
    found = load(connection, machine_id).request
    return found is not None and found.raw == raw
