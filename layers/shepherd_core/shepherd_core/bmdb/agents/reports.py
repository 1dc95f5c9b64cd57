"""
Reports of agents: heartbeats, and with them hardware and the outcome of installations.

None of it needs a session. A session keeps others away from a machine during
work, and work that began too long ago from being committed. A heartbeat is a
single statement, which itself checks that it comes from the agent on record and
is newer than the last one.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from shepherd_core.bmdb.schema.migrate import migrations, mismatch
from shepherd_core.domain.errors import CommitUnknown, StatementFailed

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from shepherd_core.bmdb.connection import Connection

T = TypeVar("T")

_NO_SUCH_TABLE_OR_COLUMN = ("42P01", "42703")


@dataclass(frozen=True, slots=True)
class Agent:
    """The agent that should be reporting for a machine."""

    time: int
    """The database's time, in milliseconds since the Unix epoch."""
    public_key: bytes | None
    """None: the machine has no started agent, or there is no such machine."""
    signed_at: int | None
    """The time in the last heartbeat that was accepted from it, in milliseconds; None: there was none yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """The hardware of a machine; each sum is 0 to ``2**63 - 1``."""

    raw: bytes
    """The AgentHardwareReport, serialized."""
    hardware_threads: int
    memory_bytes: int
    disks: int
    disk_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """The outcome of an installation."""

    raw: bytes
    """The OSInstallationReport, serialized."""
    generation: int
    result: Literal["Success", "Error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """A heartbeat whose signature was verified, and the reports that came with it."""

    machine_id: UUID
    signed_at: int
    """The agent's time when it signed: milliseconds since the Unix epoch."""
    hardware: Hardware | None = None
    installation: Installation | None = None


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """The answer to a heartbeat of the agent on record."""

    time: int
    """The database's time, in milliseconds since the Unix epoch."""
    request: tuple[int, bytes] | None = None
    """Generation and serialized OSInstallationRequest of a requested installation that has not been reported."""
    refused: bool = False
    """Nothing was recorded: the generation of the installation report is too low, or was never requested."""


class _GenerationRefused(Exception):
    """Rolls the transaction back; never leaves this module."""

    def __init__(self, time: int) -> None:
        self.time = time


def reporting_agent(connection: Connection, machine_id: UUID) -> Agent:
    """
    Return the agent that should be reporting for a machine. One round trip, also for an unknown id.

    Raises:
        SchemaMismatch: the BMDB is older or newer than this code.
    """

    def ask() -> list[list[Any]]:
        return connection.run("reporting_agent", machine_id=machine_id, schema_version=migrations()[-1].version)

    def unit() -> Agent:
        try:
            rows = ask()
        except CommitUnknown:
            # Usual for the first use of a connection that broke while the function was frozen. It only reads.
            rows = ask()
        fits, *agent = rows[0]
        if not fits:
            raise mismatch(connection)
        return Agent(*agent)

    return _in_this_schema(connection, unit)


def accept_heartbeat(
    connection: Connection, heartbeat: Heartbeat, public_key: bytes, stale_seconds: float
) -> HeartbeatReply | None:
    """
    Record *heartbeat* and its reports, or nothing; return the answer for the agent.

    One round trip without reports, else one transaction. None: it is refused,
    because *public_key*, which verified its signature, is not (or no longer) on
    record for the machine; because it was signed more than *stale_seconds* from the
    database's time; or because it is no newer than the last one.
    ``reporting_agent`` shows which. If the connection breaks, the heartbeat is sent
    again; if it is refused then, the BMDB is asked whether it is on record.

    Raises:
        CommitUnknown: the connection broke twice. The heartbeat may be on record.
    """

    def unit() -> HeartbeatReply | None:
        try:
            return _accept(connection, heartbeat, public_key, stale_seconds)
        except CommitUnknown:
            # Waits for the lost statement to end. If it committed, this one is refused, and the heartbeat is found.
            reply = _accept(connection, heartbeat, public_key, stale_seconds)
            if reply is not None:
                return reply
            agent = reporting_agent(connection, heartbeat.machine_id)
            if (agent.public_key, agent.signed_at) == (public_key, heartbeat.signed_at):
                return HeartbeatReply(agent.time)  # the next heartbeat gets the installation request
            return None

    return _in_this_schema(connection, unit)


def _accept(
    connection: Connection, heartbeat: Heartbeat, public_key: bytes, stale_seconds: float
) -> HeartbeatReply | None:
    def accept() -> HeartbeatReply | None:
        rows = connection.run(
            "accept_heartbeat",
            machine_id=heartbeat.machine_id,
            public_key=public_key,
            signed_at=heartbeat.signed_at,
            stale_seconds=stale_seconds,
            schema_version=migrations()[-1].version,
        )
        if not rows:
            return None
        time, generation, request = rows[0]
        return HeartbeatReply(time, None if generation is None else (generation, request))

    if heartbeat.hardware is None and heartbeat.installation is None:
        return accept()
    try:
        return connection.transact(lambda: _accept_reports(connection, heartbeat, accept))
    except _GenerationRefused as refusal:
        return HeartbeatReply(refusal.time, refused=True)


def _accept_reports(
    connection: Connection, heartbeat: Heartbeat, accept: Callable[[], HeartbeatReply | None]
) -> HeartbeatReply | None:
    machine_id, hardware, installation = heartbeat.machine_id, heartbeat.hardware, heartbeat.installation
    if installation is not None:
        connection.run("lock_due_rows", machine_ids=[machine_id])
    reply = accept()
    if reply is None:
        return None
    if hardware is not None:
        connection.run("write_hardware_report", machine_id=machine_id, **asdict(hardware))
    if installation is not None:
        if not connection.run("write_installation_report", machine_id=machine_id, **asdict(installation)):
            raise _GenerationRefused(reply.time)
        connection.run("reschedule", machine_ids=[machine_id])
        if reply.request is not None and reply.request[0] == installation.generation:
            return HeartbeatReply(reply.time)
    return reply


def _in_this_schema(connection: Connection, unit: Callable[[], T]) -> T:
    """Return the result of *unit*; if a table or column is missing, raise that the schema has another version."""
    try:
        return unit()
    except StatementFailed as error:
        if error.sqlstate in _NO_SUCH_TABLE_OR_COLUMN:
            raise mismatch(connection) from error
        raise
