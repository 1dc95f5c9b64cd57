"""The server's clock jumps and is corrected: while it differs from that of the functions, nothing is written."""

from collections.abc import Callable
from contextlib import closing
from email.message import Message
from typing import cast

import pytest
from shepherd_core.agent.endpoint import AgentApi, AgentRequest
from shepherd_core.bmdb.machines import pauses
from shepherd_core.domain.clock import TOLERANCE_SECONDS, Clock, SystemClock
from shepherd_core.domain.errors.bmdb import ClockDiffers
from shepherd_core.domain.machine import Process
from shepherd_core.domain.pb.callback_pb2 import HeartbeatRequest

from agent.shepherd_agent.ed25519 import PrivateKey
from agent.shepherd_agent.reports.endpoint import Answer, Endpoint, NotDelivered
from agent.shepherd_agent.reports.reporter import Reporter
from shepherdctl.database import Changes, CommandConnection
from tests.conftest import ManualClock
from tests.support.agents.signed_agent import endpoint
from tests.support.bmdb.fleet import HOUR, Fleet, claimed, ids
from tests.support.bmdb.recovery import MINUTE, RecoveryEnvironment

DAY = 24 * HOUR
JUMPS = {"ahead by hours": 2 * HOUR, "ahead by a day": DAY, "back by hours": -2 * HOUR, "back by a day": -DAY}
jumps = pytest.mark.parametrize("seconds", JUMPS.values(), ids=JUMPS)


class InProcess:
    def __init__(self, api: AgentApi) -> None:
        self._api = api

    def path(self, method: str) -> str:
        return f"/{method}"

    def post(self, method: str, message: bytes, headers: Callable[[], dict[str, str]]) -> Answer:
        named = {name.lower(): value for name, value in headers().items()}
        answer = self._api.handle(AgentRequest("POST", self.path(method), named, message, 0))
        told = Message()
        for name, value in answer.headers.items():
            told[name] = value
        return Answer(answer.status, answer.status.phrase, told, answer.body)


class Agent:
    """A real agent's reporter, whose clock is right unless it has one of its *own*."""

    def __init__(self, fleet: Fleet, clock: ManualClock, own: Clock | None = None) -> None:
        key = PrivateKey(bytes(32))
        self.machine_id = fleet.reporting_machine()
        fleet.sql(
            "UPDATE machine_agent_started SET agent_public_key = decode(:key, 'hex') WHERE machine_id = :id",
            key=key.public.hex(),
            id=self.machine_id,
        )
        way = cast("Endpoint", InProcess(endpoint(fleet.connection)))
        self._message = HeartbeatRequest(machine_id=str(self.machine_id)).SerializeToString()
        self._reporter = Reporter(way, key, str(self.machine_id), (own or clock).time_of_day)
        self._clock, self._behind = clock, clock.behind

    def reports(self, attempts: int = 1) -> bool:
        # A jump is told as one of everybody else, so what the agent remembers moves as well.
        self._reporter._clock._last -= round((self._clock.behind - self._behind) * 1000)
        self._behind = self._clock.behind
        for _ in range(attempts):
            try:
                self._reporter.send("heartbeat", self._message)
            except NotDelivered:
                continue
            return True
        return False


@jumps
@pytest.mark.parametrize("own", [None, SystemClock()], ids=["right", "as wrong as the server's"])
def test_heartbeats_are_taken_once_the_clock_is_right(
    fleet: Fleet, clock: ManualClock, own: Clock | None, seconds: float
) -> None:
    """The time of a heartbeat must increase, so that one from the future would lock its agent out until then."""
    agent = Agent(fleet, clock, own)
    assert agent.reports()
    fleet.move_clock(seconds)
    assert not agent.reports(attempts=3)
    fleet.move_clock(-seconds)
    assert agent.reports(attempts=2 if own else 1)  # the first answer corrects a clock that is wrong


@jumps
def test_nothing_is_written_while_the_clocks_differ(fleet: Fleet, clock: ManualClock, seconds: float) -> None:
    """Not even expired work is ended: by the right time it may not have expired."""
    agent = Agent(fleet, clock)
    fleet.provided_machine()
    held = claimed(fleet.open_session(), Process.AGENT_START)
    fleet.sql("UPDATE recovery_policy SET grace_seconds = 1")
    fleet.sql(
        "INSERT INTO ticks SELECT gen_random_uuid(), 'updater', 'static', '', at, at, 'Succeeded', NULL, '{}' "
        "FROM (SELECT now() - interval '13 days 23 hours' AS at) AS x"
    )
    fleet.move_clock(seconds)
    before = fleet.content()
    with pytest.raises(ClockDiffers, match=f"{abs(seconds)} s {'ahead of' if seconds > 0 else 'behind'}"):
        fleet.open_session()
    assert not agent.reports(attempts=3)
    assert fleet.content() == before
    fleet.move_clock(-seconds)
    fleet.open_session()
    assert fleet.sql("SELECT machine_id FROM work") == [[machine_id] for machine_id in ids(held)]


@jumps
def test_a_command_changes_nothing_while_the_clocks_differ(fleet: Fleet, clock: ManualClock, seconds: float) -> None:
    """A pause for an hour, made by a clock that is two hours behind, would be over when it is corrected."""
    fleet.move_clock(seconds)
    with Changes() as changes:
        connection = CommandConnection(changes, fleet.settings, None, clock)
        with closing(connection), pytest.raises(ClockDiffers):
            pauses.pause(connection, owner="me", reason="why", seconds=HOUR)
    assert fleet.sql("SELECT FROM pauses") == []


@pytest.mark.parametrize("seconds", [TOLERANCE_SECONDS - 5, 5 - TOLERANCE_SECONDS])
def test_clocks_may_differ_within_the_tolerance(fleet: Fleet, clock: ManualClock, seconds: float) -> None:
    agent = Agent(fleet, clock)
    fleet.move_clock(seconds)
    fleet.open_session()
    assert agent.reports(attempts=2)


@jumps
def test_a_dead_machine_is_recovered_in_its_usual_time(fleet: Fleet, clock: ManualClock, seconds: float) -> None:
    """It dies while the clock is wrong; those that report are left alone."""
    env = RecoveryEnvironment(fleet, clock)
    env.after_outage = True  # all ticks are its own
    agents = [Agent(fleet, clock) for _ in range(4)]
    dead = Agent(fleet, clock)

    def minute() -> None:
        fleet.pass_time(MINUTE)
        for agent in agents:
            agent.reports(attempts=2)
        try:
            env.run()
        except ClockDiffers:
            assert clock.behind

    for _ in range(5):
        dead.reports()
        minute()
    fleet.move_clock(seconds)
    dead.reports(attempts=2)
    for _ in range(5):
        minute()
    fleet.move_clock(-seconds)
    for _ in range(8):
        minute()
    assert {name for name, times in env.provider.reboots.items() if times} == {env.provider_id(dead.machine_id)}
