"""
Concurrent writers of facts: the second one waits for the first, and evaluates the facts that it left.

Afterwards the facts must go together, in both orders of any two writes to a machine.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from typing import TypeVar
from uuid import UUID

import pytest
from shepherd_core.bmdb.agents import installation, reports
from shepherd_core.bmdb.connection import Connection
from shepherd_core.bmdb.listings import decommissioning, provisioning
from shepherd_core.bmdb.listings.decommissioning import RemovalRequest
from shepherd_core.bmdb.machines import pauses
from shepherd_core.bmdb.recovery import remediation
from shepherd_core.bmdb.session import Session
from shepherd_core.bmdb.work import work
from shepherd_core.domain.clock import Deadline
from shepherd_core.domain.errors import ShepherdError
from shepherd_core.domain.errors.bmdb import SessionExpired, WorkConflict
from shepherd_core.domain.machine import Process
from shepherd_core.domain.pb.callback_pb2 import MetropolisInstallation
from shepherd_core.domain.remediation import RESTART_AGENT

from tests.chaos.sample import SEED, drawn
from tests.conftest import ManualClock
from tests.support.bmdb.fleet import HOUR, PROVIDER, Fleet, claimed
from tests.support.bmdb.work_ends import KEY, finish_recovery
from tests.support.waiting import WAIT_SECONDS, eventually

T = TypeVar("T")

DAY = 24 * HOUR
GRACE_SECONDS = 1800

# Must be empty.
STUCK = """
SELECT 'a heartbeat of no agent'
FROM machine_agent_heartbeat h
WHERE h.machine_id NOT IN (SELECT machine_id FROM machine_agent_started)
    AND NOT EXISTS (  -- the last one before the end of a quarantine stays
        SELECT 1 FROM work_history u
        WHERE u.machine_id = h.machine_id AND u.event = 'Unquarantined' AND u.timestamp > h.agent_heartbeat_at
    )
UNION ALL
SELECT format('%s of a decommissioned machine', what)
FROM machine_tombstone x
JOIN (
    SELECT machine_id, 'the agent' AS what FROM machine_agent_started
    UNION ALL SELECT machine_id, 'a heartbeat' FROM machine_agent_heartbeat
    UNION ALL SELECT machine_id, 'a wanted installation' FROM machine_os_installation_request
    UNION ALL SELECT machine_id, 'a pause' FROM pauses
    UNION ALL SELECT machine_id, 'a backoff' FROM work_backoff
) AS y ON y.machine_id = x.machine_id
"""


class Joining(Connection):
    """A connection whose transactions become parts of one that is under way."""

    def transact(self, unit: Callable[[], T], deadline: Deadline | None = None) -> T:
        return unit() if self._in_transaction else super().transact(unit, deadline)


class Case:
    def __init__(self, fleet: Fleet, clock: ManualClock) -> None:
        self.fleet = fleet
        self.clock = clock
        self._now = clock.time_of_day()
        self._session = fleet.open_session(DAY)
        self._lock = fleet.open_session(DAY)
        assert provisioning.take_lock(self._lock, PROVIDER) is not None
        self.machine_id: UUID
        self.held: work.Work
        """What the working session holds."""
        self.pause: UUID
        self.seen: installation.Installation
        """The request that the operator saw."""

    def _agent(self) -> None:
        self.fleet.change(
            f"UPDATE machine_agent_started SET agent_public_key = '\\x{KEY.hex()}' "
            f"WHERE machine_id = '{self.machine_id}'"
        )

    def _hold_up(self) -> None:
        """Let everything delay it that a writer may end."""
        connection = self.fleet.connection
        self.pause = pauses.pause(connection, owner="me", reason="?", machine_id=self.machine_id)
        provisioning.set_aside(self._lock, self.machine_id, "not listed")
        self.fleet.sql(
            "INSERT INTO work_backoff VALUES (:id, 'ShepherdAgentStart', clock_timestamp() + '1 hour', '?', 3600)",
            id=self.machine_id,
        )
        self.fleet.request_installation(self.machine_id, 1)
        self.seen = installation.load(connection, self.machine_id)

    def given_up(self) -> None:
        self.machine_id = self.fleet.unhealthy_machine(reported_ago=2 * HOUR)
        self._agent()
        remediation.quarantine(self._session, dict.fromkeys(claimed(self._session, Process.RECOVERY), "?"))
        self._hold_up()

    def unheard(self) -> None:
        self.machine_id = self.fleet.started_machine(started_ago=2 * HOUR)
        self._agent()
        self._hold_up()

    def given_up_unheard(self) -> None:
        self.unheard()
        self.fleet.change(f"INSERT INTO machine_quarantine VALUES ('{self.machine_id}', now(), '?', 'steps-used-up')")

    def recovering(self) -> None:
        self.machine_id = self.fleet.unhealthy_machine(reported_ago=2 * HOUR)
        self._agent()
        (self.held,) = claimed(self._session, Process.RECOVERY)
        self._hold_up()

    def awaited(self) -> None:
        """Let it be claimed for an agent start, after a recovery from which it did not come back."""
        self.machine_id = self.fleet.unhealthy_machine(reported_ago=2 * HOUR)
        held = claimed(self._session, Process.RECOVERY)
        finish_recovery(self._session, held, 0, GRACE_SECONDS, kind=RESTART_AGENT)
        (self.held,) = claimed(self._session, Process.AGENT_START)
        self._hold_up()

    def working(self, connection: Connection) -> Session:
        return self._over(self._session, connection)

    def locking(self, connection: Connection) -> Session:
        return self._over(self._lock, connection)

    def _over(self, session: Session, connection: Connection) -> Session:
        return Session(connection, self.clock, session.session_id, DAY, self.clock.monotonic())

    def heard(self, number: int, generation: int | None = None) -> reports.Heartbeat:
        """Return the heartbeat with this number, and with a report of success if an installation is requested."""
        success = (
            None
            if generation is None
            else reports.ReportedInstallation(raw=b"", generation=generation, result="Success")
        )
        signed_at = self._now + number
        return reports.Heartbeat(machine_id=self.machine_id, public_key=KEY, signed_at=signed_at, installation=success)


def _release(case: Case, connection: Connection) -> None:
    session = case.locking(connection)
    decommissioning.request_release(session, PROVIDER, case.machine_id, ORDER)
    decommissioning.accept_release(session, case.machine_id)
    decommissioning.remove_released(session, PROVIDER, case.machine_id)


ORDER = RemovalRequest("me", "?", HOUR)
WANTED = MetropolisInstallation(image_url="https://images.example.com/x", image_sha256=bytes(32))
DEEDS: dict[str, Callable[[Case, Connection], object]] = {
    "resume": lambda case, over: pauses.resume(over, case.pause),
    "take_back": lambda case, over: provisioning.take_back(case.locking(over), case.machine_id),
    "unquarantine": lambda case, over: remediation.unquarantine(over, case.machine_id, reason="?"),
    "retry": lambda case, over: remediation.retry(over, case.machine_id, reason="?"),
    "install": lambda case, over: installation.request(over, case.machine_id, WANTED, case.seen),
    "report": lambda case, over: reports.accept_heartbeat(over, case.heard(2, generation=1)),
    "heartbeat": lambda case, over: reports.accept_heartbeat(over, case.heard(1)),
    "forget": lambda case, over: decommissioning.forget(case.locking(over), PROVIDER, case.machine_id, ORDER),
    "release": _release,
    "finish_recovery": lambda case, over: finish_recovery(case.working(over), [case.held], 120, GRACE_SECONDS, 600),
    "finish_agent_start": lambda case, over: work.finish_agent_start(
        case.working(over), {case.held: work.AgentStarted(KEY, None)}
    ),
    "fail": lambda case, over: work.fail(case.working(over), {case.held: work.Failure(ShepherdError("?"), 60)}),
    "cancel": lambda case, over: work.cancel(case.working(over), [case.held]),
    "quarantine": lambda case, over: remediation.quarantine(case.working(over), {case.held: "?"}),
    "close": lambda case, over: case.working(over).close(),
}
_OPERATORS = ("resume", "take_back", "retry", "install", "forget")
_ENDS = {"fail", "cancel", "close", "finish_recovery", "finish_agent_start", "quarantine"}
_COMMON = ("fail", "cancel", "close")
WRITERS = {
    "given_up": (*_OPERATORS, "unquarantine", "report", "heartbeat"),
    "given_up_unheard": ("resume", "unquarantine", "report", "heartbeat", "forget"),
    "unheard": ("resume", "install", "report", "heartbeat", "forget", "release"),
    "recovering": (*_OPERATORS, *_COMMON, "finish_recovery", "quarantine", "report", "heartbeat"),
    "awaited": (*_OPERATORS, *_COMMON, "finish_agent_start"),
}


def beside(case: Case, first: str, second: str) -> tuple[object, object]:
    """Let *first* do all but its commit until *second* waits or has ended; return their results or refusals."""
    joining, other = Joining(case.fleet.settings, None, case.clock), case.fleet.connect()
    other.run("now")

    def tolerant(deed: str, connection: Connection) -> object:
        try:
            return DEEDS[deed](case, connection)
        except (WorkConflict, SessionExpired) as refusal:
            return refusal

    with closing(joining), ThreadPoolExecutor(1) as pool:

        def unit() -> tuple[object, Future[object]]:
            one = tolerant(first, joining)
            two = pool.submit(tolerant, second, other)
            eventually(lambda: two.done() or case.fleet.blocked())
            return one, two

        one, two = joining.transact(unit)
        return one, two.result(WAIT_SECONDS)


@pytest.mark.parametrize(("state", "first"), [(state, first) for state in WRITERS for first in WRITERS[state]])
def test_the_second_writer_sees_the_change_of_the_first(
    fleet: Fleet, clock: ManualClock, state: str, first: str
) -> None:
    """A statement that waits for a row still sees all other rows as they were before it waited."""
    for second in drawn((each for each in WRITERS[state] if each != first and not {first, each} <= _ENDS), first):
        case = Case(fleet, clock)
        getattr(case, state)()
        beside(case, first, second)
        assert fleet.sql(STUCK) == [], f"{second} came second, seed {SEED}"
        fleet.disconnect()
        fleet.empty()


@pytest.mark.parametrize(
    ("state", "deed"), [(state, deed) for state in WRITERS for deed in WRITERS[state] if deed != "close"]
)
def test_a_writer_changes_no_other_machine(fleet: Fleet, clock: ManualClock, state: str, deed: str) -> None:
    """A statement that lost its condition would end the quarantines or delete the agents of the whole fleet."""
    case = Case(fleet, clock)
    getattr(case, state)()
    other = case.machine_id
    getattr(case, state)()
    before = fleet.rows_of(other)
    with suppress(WorkConflict):
        DEEDS[deed](case, fleet.connect())
    assert fleet.rows_of(other) == before


@pytest.mark.parametrize("state", ["given_up", "unheard"])
@pytest.mark.parametrize("order", [("heartbeat", "forget"), ("forget", "heartbeat")], ids=" beside ".join)
def test_either_a_machine_is_forgotten_or_it_has_reported(
    fleet: Fleet, clock: ManualClock, state: str, order: tuple[str, str]
) -> None:
    """The first one wins completely: a machine that reports stays, and a forgotten one has no heartbeat left."""
    case = Case(fleet, clock)
    getattr(case, state)()
    outcomes = dict(zip(order, beside(case, *order), strict=True))
    decommissioned = bool(fleet.sql("SELECT 1 FROM machine_tombstone"))
    assert (outcomes["heartbeat"] is None) == decommissioned == (outcomes["forget"] is None) == (order[0] == "forget")
    heard = bool(fleet.sql("SELECT 1 FROM machine_agent_heartbeat WHERE agent_signed_at > 0"))
    assert heard is not decommissioned
