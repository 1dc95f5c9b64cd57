"""
Reports of agents: heartbeats, and with them hardware and the outcome of installations.

They need no session. A session keeps others away from a machine during work, and
keeps work that began too long ago from being committed. A heartbeat is recorded by
one statement, which itself checks that it comes from the agent on record and is
newer than the last one.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

from shepherd_core.bmdb.schema.migrate import mismatch, this_code
from shepherd_core.bmdb.wire.server import check_clock
from shepherd_core.domain.errors.bmdb import CommitUnknown, StatementFailed
from shepherd_core.domain.record import record

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from shepherd_core.bmdb.connection import Connection

T = TypeVar("T")

_NO_SUCH_TABLE_OR_COLUMN = ("42P01", "42703")


@record
class Agent:
    """The agent that should be reporting for a machine."""

    fits: bool
    """This code can use the schema."""
    time: int
    """The database's time, in milliseconds since the Unix epoch."""
    public_key: bytes | None
    """None: the machine has no started agent, or there is no such machine."""
    signed_at: int | None
    """The time in the last heartbeat that was accepted from it, in milliseconds; None: there was none yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedHardware:
    """The hardware of a machine; each sum is 0 to ``2**63 - 1``."""

    raw: bytes
    """The AgentHardwareReport, serialized."""
    hardware_threads: int
    memory_bytes: int
    disks: int
    disk_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedInstallation:
    """The outcome of an installation."""

    raw: bytes
    """The OSInstallationReport, serialized."""
    generation: int
    result: Literal["Success", "Error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """A heartbeat whose signature was verified, and the reports that came with it."""

    machine_id: UUID
    public_key: bytes
    """The key that verified the signature."""
    signed_at: int
    """The agent's time when it signed: milliseconds since the Unix epoch."""
    report_interval_seconds: int = 0
    """The longest interval at which the agent may report from now on, 0 to 3600; 0: it follows none."""
    failed_attempts: int = 0
    """How many requests of the agent failed since the last heartbeat that was accepted."""
    hardware: ReportedHardware | None = None
    installation: ReportedInstallation | None = None


@record
class HeartbeatOutcome:
    """The outcome of recording a heartbeat of the agent on record."""

    time: int
    """The database's time, in milliseconds since the Unix epoch."""
    generation: int | None = None
    """Of a requested installation that has not been reported."""
    request: bytes | None = None
    """Its OSInstallationRequest, serialized."""
    refused: bool = False
    """Nothing was recorded: the generation of the installation report is too low, or was never requested."""


class _GenerationRefused(Exception):
    """Rolls the transaction back; never leaves this module."""

    def __init__(self, time: int) -> None:
        self.time = time


def reporting_agent(connection: Connection, machine_id: UUID) -> Agent:
    """
    Return the agent that should be reporting for a machine, also for an unknown id. One round trip.

    Raises:
        SchemaMismatch: this code cannot use the BMDB's schema.
        ClockDiffers: the BMDB's clock differs from ours.
    """

    def ask() -> Agent:
        return connection.fetch(Agent, "reporting_agent", machine_id=machine_id, **this_code()._asdict())[0]

    def unit() -> Agent:
        try:
            agent = ask()
        except CommitUnknown:
            # Usual for the first use of a connection that broke while the function was frozen. It only reads.
            agent = ask()
        if not agent.fits:
            raise mismatch(connection)
        check_clock(connection, agent.time)
        return agent

    return _in_this_schema(connection, unit)


def accept_heartbeat(connection: Connection, heartbeat: Heartbeat) -> HeartbeatOutcome | None:
    """
    Record *heartbeat* and its reports, or nothing of it; return the answer for the agent.

    Without reports it takes one round trip, with reports a transaction. None: it is
    refused, because its public key is not (or no longer) on record for the machine;
    because the time of its signature differs too much from the database's, or that
    from ours; or because it is no newer than the last one. ``reporting_agent`` shows
    which. If the
    connection breaks, it is sent again; if it is refused then, the BMDB is asked
    whether it is on record.

    Raises:
        CommitUnknown: the connection broke twice. The heartbeat may be on record.
    """

    def unit() -> HeartbeatOutcome | None:
        try:
            return _accept(connection, heartbeat)
        except CommitUnknown:
            # Waits for the lost statement to end. What it committed is refused now, and found on record.
            outcome = _accept(connection, heartbeat)
            if outcome is None:
                agent = reporting_agent(connection, heartbeat.machine_id)
                if (agent.public_key, agent.signed_at) == (heartbeat.public_key, heartbeat.signed_at):
                    return HeartbeatOutcome(agent.time)  # the next one gets the installation request
            return outcome

    return _in_this_schema(connection, unit)


def _accept(connection: Connection, heartbeat: Heartbeat) -> HeartbeatOutcome | None:
    def unit() -> HeartbeatOutcome | None:
        return _record(connection, heartbeat)

    if heartbeat.installation is not None:
        try:
            return connection.transact(unit)
        except _GenerationRefused as refusal:
            return HeartbeatOutcome(refusal.time, refused=True)
    return unit() if heartbeat.hardware is None else connection.transact(unit)


def _record(connection: Connection, heartbeat: Heartbeat) -> HeartbeatOutcome | None:
    machine_id, hardware, installation = heartbeat.machine_id, heartbeat.hardware, heartbeat.installation
    outcomes = connection.fetch(
        HeartbeatOutcome,
        "accept_heartbeat",
        machine_id=machine_id,
        public_key=heartbeat.public_key.hex(),
        signed_at=heartbeat.signed_at,
        report_interval=heartbeat.report_interval_seconds,
        failed_attempts=heartbeat.failed_attempts,
        **this_code()._asdict(),
        **connection.clock,
    )
    if not outcomes:
        return None
    (outcome,) = outcomes
    if hardware is not None:
        connection.run(
            "write_hardware_report", machine_id=machine_id, **{**asdict(hardware), "raw": hardware.raw.hex()}
        )
    if installation is not None:
        report = {**asdict(installation), "raw": installation.raw.hex()}
        if not connection.run("write_installation_report", machine_id=machine_id, **report):
            raise _GenerationRefused(outcome.time)
        if installation.generation == outcome.generation:
            return HeartbeatOutcome(outcome.time)
    return outcome


def _in_this_schema(connection: Connection, unit: Callable[[], T]) -> T:
    """Return the result of *unit*; if a table or column is missing, raise that the schema has another version."""
    try:
        return unit()
    except StatementFailed as error:
        if error.sqlstate in _NO_SUCH_TABLE_OR_COLUMN:
            raise mismatch(connection) from error
        raise
