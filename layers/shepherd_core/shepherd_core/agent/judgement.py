"""
The judgement of heartbeats: who is believed, and what is recorded.

A wrong machine, key, signature or time gets the same answer after the same work,
so that the answer does not reveal which machines exist; the log has the reason.

``SignedBody.is_by`` verifies the signature, which covers domain, method, path,
time and body. The statement ``accept_heartbeat`` refuses a heartbeat that is
stale, not later than the last one, or signed by another key.

Keys are cached, so that a heartbeat usually costs one round trip. A cached key is
not trusted: the statement that records a heartbeat compares it with the key on
record. If the statement refuses it, or the cached key does not fit the signature,
the BMDB is asked, as for an unknown machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

from nacl.signing import SigningKey

from shepherd_core.agent.heartbeats import HeartbeatRefused
from shepherd_core.bmdb.agents import reports
from shepherd_core.domain.clock import TOLERANCE_SECONDS

if TYPE_CHECKING:
    from uuid import UUID

    from shepherd_core.agent.heartbeats import SignedBody
    from shepherd_core.bmdb.connection import Connection


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a request and of an agent."""

    report_seconds: float
    """The least time between two reports of an agent, as far as this instance of the function knows; 0: none."""
    hardware_seconds: float
    """The same between two hardware reports."""
    interval_seconds: int
    """The seconds between two heartbeats, as agents are told; 0: they are told nothing."""
    path_prefix: str | None = None
    """The beginning that paths must have; None: any."""
    body_bytes: int = 65_536
    """The largest body. A report of a server with hundreds of devices has a quarter of that."""
    cached_keys: int = 100_000
    """
    Machines whose key is cached; about 30 MB.

    Of more, the last one gives way: all report in turn, so that the one unused for longest would be the next.
    """


@dataclass(slots=True)
class _Known:
    """The cached facts about the agent of a machine. Times are in milliseconds since the Unix epoch."""

    key: bytes
    reported_at: int = 0
    hardware_at: int = 0


class Judgement:
    """Judges heartbeats. Belongs to the thread that owns *connection*: one call at a time."""

    def __init__(self, connection: Connection, limits: Limits) -> None:
        self._connection = connection
        self._limits = limits
        self._known: dict[UUID, _Known] = {}
        # Used if a machine has no key, so that the work is the same. Its private half is discarded.
        self._dummy_key = SigningKey.generate().verify_key.encode()

    def judge(self, machine_id: UUID, signed: SignedBody, now: int) -> reports.HeartbeatOutcome:
        """
        Record the heartbeat in *signed*, which arrived at *now*, and return what to answer.

        One round trip if the key is cached. May run twice: the second time it is a replay, and refused.

        Raises:
            HeartbeatRefused: it is not by the agent of the machine, not valid, or came too early.
            BmdbError: it cannot be recorded now.
            SecretError, SourceError: a secret or document for the connection to the BMDB cannot be read.
        """
        known = self._known.get(machine_id)
        heartbeat = None
        if signed.is_by(known.key if known else self._dummy_key) and known:
            heartbeat = signed.heartbeat(machine_id, known.key, self._limits.interval_seconds)
            outcome = self._accept(known, heartbeat, now)
            if outcome is not None:
                return outcome
        agent = reports.reporting_agent(self._connection, machine_id)
        key = agent.public_key
        if not signed.is_by(key or self._dummy_key) or not key:
            raise _unauthorized("the signature is not by its agent" if key else "it has no agent", agent)
        if heartbeat is None:  # else the cached key, which was tried above, would fail again
            known = _Known(key)
            heartbeat = signed.heartbeat(machine_id, key, self._limits.interval_seconds)
            outcome = self._accept(known, heartbeat, now)
            if outcome is not None:
                return outcome
        raise _unauthorized(self._why_not_accepted(heartbeat, agent), agent)

    def _accept(self, known: _Known, heartbeat: reports.Heartbeat, now: int) -> reports.HeartbeatOutcome | None:
        """Record a heartbeat whose signature fits, and cache the key; None: it was not accepted."""
        self._check_pace(known, heartbeat, now)
        outcome = reports.accept_heartbeat(self._connection, heartbeat)
        if outcome is None:
            return None
        known.reported_at = now
        known.hardware_at = now if heartbeat.hardware is not None else known.hardware_at
        if heartbeat.machine_id not in self._known and len(self._known) >= self._limits.cached_keys:
            self._known.popitem()
        self._known[heartbeat.machine_id] = known
        if outcome.refused:
            text = "the generation of the installation report goes backwards, or was never asked for"
            raise HeartbeatRefused(HTTPStatus.BAD_REQUEST, text, time=outcome.time)
        return outcome

    def _check_pace(self, known: _Known, heartbeat: reports.Heartbeat, now: int) -> None:
        """Refuse an agent that reports too often: a machine in wrong hands could fill the database."""
        times = [(known.reported_at, self._limits.report_seconds, "reports")]
        if heartbeat.hardware is not None:
            times.append((known.hardware_at, self._limits.hardware_seconds, "hardware reports"))
        for last, seconds, what in times:
            if 0 <= now - last < seconds * 1000:
                raise HeartbeatRefused(HTTPStatus.TOO_MANY_REQUESTS, f"{what} come more often than every {seconds:g} s")

    def _why_not_accepted(self, heartbeat: reports.Heartbeat, agent: reports.Agent) -> str:
        """Return why a heartbeat with a valid signature was not recorded."""
        if not heartbeat.signed_at:
            return "it has no signing time"
        early = agent.time - heartbeat.signed_at
        if abs(early) > TOLERANCE_SECONDS * 1000:
            return f"it was signed {abs(early) / 1000:.0f} s {'ago' if early > 0 else 'ahead'}"
        if agent.signed_at is not None and heartbeat.signed_at <= agent.signed_at:
            return "it is not later than the last one"
        return "its agent was replaced"


def _unauthorized(why: str, agent: reports.Agent) -> HeartbeatRefused:
    return HeartbeatRefused(HTTPStatus.UNAUTHORIZED, "not authorized", why, agent.time)
