"""
Reports of agents: heartbeats, and with them hardware and the outcome of installations.

They need no session. A session keeps others away from a machine during work, and
keeps work that began too long ago from being committed. Heartbeats are recorded by
one statement, which itself checks that each comes from the agent on record and is
newer than the last one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from shepherd_core.bmdb.schema.migrate import migrations, mismatch
from shepherd_core.domain.errors.bmdb import CommitUnknown, StatementFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from uuid import UUID

    from shepherd_core.bmdb.connection import Connection

T = TypeVar("T")

_SUMS = ("hardware_threads", "memory_bytes", "disks", "disk_bytes")
_NO_SUCH_TABLE_OR_COLUMN = ("42P01", "42703")
_LOCKED = "55P03"


@dataclass(frozen=True, slots=True)
class Agent:
    """The agent that should be reporting for a machine."""

    time: int
    """The database's time, in milliseconds since the Unix epoch."""
    public_key: bytes | None
    """None: the machine has no started agent, or there is no such machine."""
    response_key: bytes | None
    """By which it recognizes the answers that a relay brings; None: it believes no relay."""
    provider: str | None
    location: str | None
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


@dataclass(frozen=True, slots=True)
class HeartbeatOutcome:
    """The outcome of recording a heartbeat of the agent on record."""

    time: int
    """The database's time, in milliseconds since the Unix epoch."""
    request: tuple[int, bytes] | None = None
    """Generation and serialized OSInstallationRequest of a requested installation that has not been reported."""
    refused: bool = False
    """Nothing was recorded: the generation of the installation report is too low, or was never requested."""
    locked: bool = False
    """Nothing was recorded: another transaction holds a row of the machine for longer than the connection waits."""


class _GenerationsRefused(Exception):
    """Rolls the transaction back; never leaves this module."""

    def __init__(self, outcomes: dict[UUID, HeartbeatOutcome]) -> None:
        self.outcomes = outcomes


def reporting_agents(connection: Connection, machine_ids: Iterable[UUID]) -> dict[UUID, Agent]:
    """
    Return the agents that should be reporting for these machines, also for unknown ids. One round trip.

    Raises:
        SchemaMismatch: the BMDB is older or newer than this code.
    """
    wanted = list(machine_ids)

    def ask() -> list[list[Any]]:
        return connection.run("reporting_agents", machine_ids=wanted, schema_version=migrations()[-1].version)

    def unit() -> dict[UUID, Agent]:
        try:
            rows = ask()
        except CommitUnknown:
            # Usual for the first use of a connection that broke while the function was frozen. It only reads.
            rows = ask()
        if not all(fits for _, fits, *_ in rows):
            raise mismatch(connection)
        return {machine_id: Agent(*agent) for machine_id, _, *agent in rows}

    return _in_this_schema(connection, unit)


def accept_heartbeats(
    connection: Connection, heartbeats: Sequence[Heartbeat], stale_seconds: float
) -> dict[UUID, HeartbeatOutcome]:
    """
    Record each of *heartbeats* and its reports, or nothing of it; return the answers for the agents.

    Each is of another machine. Those without reports take one round trip together,
    those with reports one transaction. A machine without an answer is refused,
    because the heartbeat's public key is not (or no longer) on record for it;
    because it was signed more than *stale_seconds* from the database's time; or
    because it is no newer than the last one. ``reporting_agents`` shows which. If
    the connection breaks, the heartbeats are sent again; for those that are refused
    then, the BMDB is asked whether they are on record.

    Raises:
        CommitUnknown: the connection broke twice. The heartbeats may be on record.
    """

    def unit() -> dict[UUID, HeartbeatOutcome]:
        try:
            return _accept_all(connection, heartbeats, stale_seconds)
        except CommitUnknown:
            # Waits for the lost statement to end. What it committed is refused now, and found on record.
            outcomes = _accept_all(connection, heartbeats, stale_seconds)
            refused = {each.machine_id: each for each in heartbeats if each.machine_id not in outcomes}
            for machine_id, agent in (reporting_agents(connection, refused) if refused else {}).items():
                heartbeat = refused[machine_id]
                if (agent.public_key, agent.signed_at) == (heartbeat.public_key, heartbeat.signed_at):
                    outcomes[machine_id] = HeartbeatOutcome(agent.time)  # the next one gets the installation request
            return outcomes

    return _in_this_schema(connection, unit)


def _accept_all(
    connection: Connection, heartbeats: Sequence[Heartbeat], stale_seconds: float
) -> dict[UUID, HeartbeatOutcome]:
    plain = [each for each in heartbeats if each.hardware is None and each.installation is None]
    reporting = [each for each in heartbeats if each.hardware is not None or each.installation is not None]
    outcomes = _past_locks(partial(_accept, connection, plain, stale_seconds)) if plain else {}
    while reporting:
        record = partial(_accept_reports, connection, reporting, stale_seconds)
        try:
            return outcomes | _past_locks(partial(_transacted, connection, record))
        except _GenerationsRefused as refusal:
            # Again without those that are refused: the transaction that had them all was rolled back.
            outcomes |= refusal.outcomes
            reporting = [each for each in reporting if each.machine_id not in refusal.outcomes]
    return outcomes


def _transacted(connection: Connection, record: Callable[..., T], *, skip_locked: bool) -> T:
    return connection.transact(partial(record, skip_locked=skip_locked))


def _past_locks(record: Callable[..., T]) -> T:
    """Return the result of *record*; if it waited for locked rows in vain, that of a second call that skips them."""
    try:
        return record(skip_locked=False)
    except StatementFailed as error:
        if error.sqlstate != _LOCKED:
            raise
        return record(skip_locked=True)


def _accept(
    connection: Connection, heartbeats: Sequence[Heartbeat], stale_seconds: float, *, skip_locked: bool
) -> dict[UUID, HeartbeatOutcome]:
    rows = connection.run(
        "accept_heartbeats",
        machine_ids=[each.machine_id for each in heartbeats],
        public_keys=[each.public_key.hex() for each in heartbeats],
        signed_at=[each.signed_at for each in heartbeats],
        report_intervals=[each.report_interval_seconds for each in heartbeats],
        failed_attempts=[each.failed_attempts for each in heartbeats],
        stale_seconds=stale_seconds,
        skip_locked=skip_locked,
        schema_version=migrations()[-1].version,
    )
    return {
        machine_id: HeartbeatOutcome(
            time or 0, None if generation is None else (generation, request), locked=time is None
        )
        for machine_id, time, generation, request in rows
    }


def _accept_reports(
    connection: Connection, heartbeats: Sequence[Heartbeat], stale_seconds: float, *, skip_locked: bool
) -> dict[UUID, HeartbeatOutcome]:
    installing = [each.machine_id for each in heartbeats if each.installation is not None]
    outcomes: dict[UUID, HeartbeatOutcome] = {}
    if installing and skip_locked:
        rows = connection.run("machines_with_locked_due_rows", machine_ids=installing)
        outcomes = {machine_id: HeartbeatOutcome(0, locked=True) for (machine_id,) in rows}
        heartbeats = [each for each in heartbeats if each.machine_id not in outcomes]
    elif installing:
        connection.run("lock_due_rows", machine_ids=installing)
    outcomes |= _accept(connection, heartbeats, stale_seconds, skip_locked=skip_locked)
    accepted = [each for each in heartbeats if each.machine_id in outcomes and not outcomes[each.machine_id].locked]
    hardware = {each.machine_id: each.hardware for each in accepted if each.hardware}
    if hardware:
        connection.run(
            "write_hardware_reports",
            machine_ids=list(hardware),
            raws=[report.raw.hex() for report in hardware.values()],
            **{name: [getattr(report, name) for report in hardware.values()] for name in _SUMS},
        )
    installed = {each.machine_id: each.installation for each in accepted if each.installation}
    if installed:
        rows = connection.run(
            "write_installation_reports",
            machine_ids=list(installed),
            generations=[report.generation for report in installed.values()],
            results=[report.result for report in installed.values()],
            raws=[report.raw.hex() for report in installed.values()],
        )
        refused = installed.keys() - {machine_id for (machine_id,) in rows}
        if refused:
            raise _GenerationsRefused({each: HeartbeatOutcome(outcomes[each].time, refused=True) for each in refused})
        connection.run("reschedule", machine_ids=list(installed))
    for machine_id, report in installed.items():
        outcome = outcomes[machine_id]
        if outcome.request is not None and outcome.request[0] == report.generation:
            outcomes[machine_id] = HeartbeatOutcome(outcome.time)
    return outcomes


def _in_this_schema(connection: Connection, unit: Callable[[], T]) -> T:
    """Return the result of *unit*; if a table or column is missing, raise that the schema has another version."""
    try:
        return unit()
    except StatementFailed as error:
        if error.sqlstate in _NO_SUCH_TABLE_OR_COLUMN:
            raise mismatch(connection) from error
        raise
