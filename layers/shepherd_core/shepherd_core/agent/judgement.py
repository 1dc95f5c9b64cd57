"""
The judgement of heartbeats: who is believed, what is recorded, and what each is answered.

A heartbeat gets the same judgement alone and in a batch. A wrong machine, key,
signature or time gets the same answer after the same work, so that the answer
does not reveal which machines exist; the log has the reason.

``SignedBody.is_by`` verifies the signature, which covers domain, method, path,
time and body. The statement ``accept_heartbeats`` refuses a heartbeat that is
stale, not later than the last one, or signed by another key.

Keys are cached, so that heartbeats usually cost one round trip, however many
there are. A cached key is not trusted: the statement that records a heartbeat
compares it with the key on record. If the statement refuses it, or the cached
key does not fit the signature, the BMDB is asked, as for an unknown machine.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import TYPE_CHECKING

from nacl.signing import SigningKey

from shepherd_core import telemetry
from shepherd_core.agent.heartbeats import HeartbeatRefused
from shepherd_core.agent.received_request import AgentResponse
from shepherd_core.bmdb.agents import reports
from shepherd_core.domain.errors.bmdb import BmdbError
from shepherd_core.domain.pb.callback_pb2 import HeartbeatResponse

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from shepherd_core.agent.heartbeats import SignedBody
    from shepherd_core.agent.received_request import ReceivedRequest
    from shepherd_core.bmdb.connection import Connection
    from shepherd_core.settings.relays import Relays

_CACHED_KEYS = 100_000
"""Machines whose key is cached; about 30 MB."""
MOST_OF_A_MACHINE = 3
"""How many heartbeats of one machine are judged in one request; more are refused."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a request and of an agent."""

    report_seconds: float
    """The least time between two reports of an agent, as far as this instance of the function knows; 0: none."""
    hardware_seconds: float
    """The same between two hardware reports."""
    batch_bytes: int
    """The size of a batch."""
    interval_seconds: int
    """The seconds between two heartbeats, as agents are told; 0: they are told nothing."""
    path_prefix: str | None = None
    """What paths must begin with; None: anything."""
    body_bytes: int = 65_536
    """The largest body. A report of a server with hundreds of devices has a quarter of that."""
    stale_seconds: float = 300
    """By how much the time of a signature may differ from the database's clock, as in Kerberos."""


@dataclass(slots=True)
class _Known:
    """The cached facts about the agent of a machine. Times are in milliseconds since the Unix epoch."""

    key: bytes
    response_key: bytes | None
    relay: str
    """The relay that it should report through, as HOST:PORT; empty: none."""
    reported_at: int = 0
    hardware_at: int = 0


@dataclass(slots=True)
class _Entry:
    """A heartbeat that is being judged."""

    signed: SignedBody
    heartbeat: reports.Heartbeat | None = None
    answer: AgentResponse | None = None
    response_key: bytes | None = None


class Judgement:
    """Judges heartbeats. Belongs to the thread that owns *connection*: one call at a time."""

    def __init__(self, connection: Connection, limits: Limits, relays: Relays) -> None:
        self._connection = connection
        self._limits = limits
        self._relays = relays
        self._known: dict[UUID, _Known] = {}
        # Used if a machine has no key, so that the work is the same. Its private half is discarded.
        self._dummy_key = SigningKey.generate().verify_key.encode()

    def judge(self, bodies: Sequence[SignedBody], received: ReceivedRequest) -> list[AgentResponse]:
        """
        Record the heartbeats in *bodies* and return the answer to each, also if the BMDB is down.

        Plain ones cost one round trip together if their keys are cached, and write no
        log. Those of one machine are judged one after the other. May run twice: the
        second time they are replays, and refused.

        Raises:
            SecretError, SourceError: a secret or document for the connection to the BMDB cannot be read.
        """
        entries = [_Entry(body) for body in bodies]
        rounds: list[dict[UUID, _Entry]] = [{} for _ in range(MOST_OF_A_MACHINE)]
        for entry in entries:
            machine_id = None
            try:
                machine_id = entry.signed.machine_id()
                _next_round(rounds, machine_id)[machine_id] = entry
            except HeartbeatRefused as refusal:
                entry.answer = received.refuse(refusal, machine_id)
        try:
            for each in filter(None, rounds):
                self._judge_once(each, received)
        except BmdbError as error:
            open_entries = [each for judged in rounds for each, entry in judged.items() if entry.answer is None]
            telemetry.error(
                "request failed: the BMDB cannot be used",
                machine_id=next(iter(open_entries), None),
                machines=len(open_entries),
                cause=error,
            )
        locked = [
            entry.signed.machine
            for entry in entries
            if entry.answer and entry.answer.status == HTTPStatus.SERVICE_UNAVAILABLE
        ]
        if locked:
            telemetry.warning("heartbeats not recorded: rows are locked", machines=len(locked), machine_id=locked[0])
        return [replace(entry.answer or received.unavailable(), response_key=entry.response_key) for entry in entries]

    def _judge_once(self, entries: Mapping[UUID, _Entry], received: ReceivedRequest) -> None:
        """Judge one heartbeat of each machine."""
        tried = self._with_cached_keys(entries)
        self._accept(entries, tried, received)
        left = {machine_id: entry for machine_id, entry in entries.items() if entry.answer is None}
        if not left:
            return
        agents = reports.reporting_agents(self._connection, left)
        new = {}
        for machine_id, entry in left.items():
            key = agents[machine_id].public_key
            entry.response_key = None
            if entry.signed.is_by(key or self._dummy_key) and key:
                entry.response_key = agents[machine_id].response_key
                # The cached key was tried above; it would fail again.
                if machine_id not in tried or tried[machine_id].key != key:
                    new[machine_id] = _Known(key, entry.response_key, self._relay(agents[machine_id]))
            else:
                why = "the signature is not by its agent" if key else "it has no agent"
                entry.answer = received.refuse(_unauthorized(why, agents[machine_id]), machine_id)
        self._accept(left, new, received)
        for machine_id, entry in left.items():
            if entry.answer is None and entry.heartbeat is not None:
                why = self._why_not_accepted(entry.heartbeat, agents[machine_id])
                entry.answer = received.refuse(_unauthorized(why, agents[machine_id]), machine_id)
            elif machine_id in new and new[machine_id].reported_at:
                if len(self._known) >= _CACHED_KEYS:
                    self._known.clear()
                self._known[machine_id] = new[machine_id]

    def _with_cached_keys(self, entries: Mapping[UUID, _Entry]) -> dict[UUID, _Known]:
        """Return the agents whose cached keys fit."""
        fitting = {}
        for machine_id, entry in entries.items():
            known = self._known.get(machine_id)
            if entry.signed.is_by(known.key if known else self._dummy_key) and known:
                fitting[machine_id] = known
                entry.response_key = known.response_key
        return fitting

    def _accept(self, entries: Mapping[UUID, _Entry], agents: Mapping[UUID, _Known], received: ReceivedRequest) -> None:
        """Record the heartbeats of *agents*, whose keys fit; answer those that are recorded or are not valid."""
        now, interval = received.received_at, self._limits.interval_seconds
        heartbeats = []
        for machine_id, agent in agents.items():
            entry = entries[machine_id]
            try:
                entry.heartbeat = heartbeat = entry.signed.heartbeat(machine_id, agent.key, interval)
                self._check_pace(agent, heartbeat, now)
                heartbeats.append(heartbeat)
            except HeartbeatRefused as refusal:
                entry.answer = received.refuse(refusal, machine_id)
        if not heartbeats:
            return
        outcomes = reports.accept_heartbeats(self._connection, heartbeats, self._limits.stale_seconds)
        for heartbeat in heartbeats:
            outcome = outcomes.get(heartbeat.machine_id)
            if outcome is None:
                continue
            agent, entry = agents[heartbeat.machine_id], entries[heartbeat.machine_id]
            if outcome.locked:
                entry.answer = received.unavailable()
                continue
            agent.reported_at = now
            agent.hardware_at = now if heartbeat.hardware is not None else agent.hardware_at
            if outcome.refused:
                text = "the generation of the installation report goes backwards, or was never asked for"
                backwards = HeartbeatRefused(HTTPStatus.BAD_REQUEST, text, time=outcome.time)
                entry.answer = received.refuse(backwards, heartbeat.machine_id)
            else:
                endpoint = received.told(heartbeat.machine_id)
                response = _response(outcome, endpoint, interval, agent.relay, relayed=received.relayed)
                entry.answer = AgentResponse(HTTPStatus.OK, outcome.time, response)

    def _relay(self, agent: reports.Agent) -> str:
        """Return the relay that an agent should report through; empty: none, or it would not recognize our answers."""
        return self._relays.of(agent.provider, agent.location) if agent.response_key else ""

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
        if abs(early) > self._limits.stale_seconds * 1000:
            return f"it was signed {abs(early) / 1000:.0f} s {'ago' if early > 0 else 'ahead'}"
        if agent.signed_at is not None and heartbeat.signed_at <= agent.signed_at:
            return "it is not later than the last one"
        return "its agent was replaced"


def _next_round(rounds: Sequence[dict[UUID, _Entry]], machine_id: UUID) -> dict[UUID, _Entry]:
    """Return the first of *rounds* that has no heartbeat of the machine."""
    for each in rounds:
        if machine_id not in each:
            return each
    text = f"there are more than {len(rounds)} heartbeats of one machine in the batch"
    raise HeartbeatRefused(HTTPStatus.TOO_MANY_REQUESTS, text)


def _unauthorized(why: str, agent: reports.Agent) -> HeartbeatRefused:
    return HeartbeatRefused(HTTPStatus.UNAUTHORIZED, "not authorized", why, agent.time)


def _response(outcome: reports.HeartbeatOutcome, endpoint: str, interval: int, relay: str, *, relayed: bool) -> bytes:
    """Return the HeartbeatResponse."""
    response = HeartbeatResponse(endpoint=endpoint, report_interval_seconds=interval)
    if outcome.request is None:
        response.relay = relay
    elif not relayed:
        # May contain secrets, which no relay brings. The response names no relay, so the next heartbeat comes directly.
        generation, raw = outcome.request
        response.installation_request.MergeFromString(raw)
        response.installation_request.generation = generation
    return response.SerializeToString()
