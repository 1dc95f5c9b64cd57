"""Round trips of the real control loop, with a loop that only takes time."""

import time
from collections.abc import Mapping
from uuid import UUID

from shepherd_core.bmdb.connection import Connection
from shepherd_core.bmdb.session import Session
from shepherd_core.bmdb.work import work
from shepherd_core.bmdb.work.work import Work
from shepherd_core.domain.backoff import Backoff
from shepherd_core.domain.clock import Deadline, SystemClock
from shepherd_core.domain.machine import Process
from shepherd_core.loops import runner
from shepherd_core.loops.base import Loop, Task
from shepherd_core.telemetry import Metric

from bench.fleet import PROVIDER, BenchFleet, RoundTripCounter
from bench.results import Result, Table, median
from simulator.environment.postgres import Postgres

_FACTS = work.AgentStarted(b"x" * 32, "key")


class NoOp(Loop[work.AgentStarted]):
    """A loop whose work only takes time."""

    name = "noop"
    process = Process.AGENT_START
    backoff = Backoff(60, 60, 1)

    def __init__(self, seconds: float) -> None:
        """Each machine takes *seconds* longer than the one before it."""
        self._seconds = seconds
        self._count = 0

    def work_on(self, task: Task) -> work.AgentStarted:  # noqa: ARG002 - there is no machine
        """Sleep."""
        self._count += 1
        time.sleep(0.05 + self._seconds * self._count)
        return _FACTS

    def finish(self, session: Session, done: Mapping[Work, work.AgentStarted]) -> set[UUID]:
        """Commit them as started agents."""
        return work.finish_agent_start(session, done)


def measure(result: Result, *, quick: bool) -> None:
    """Count the round trips of an invocation of the real control loop, from claim to finish, ten machines at a time."""
    rows = []
    with Postgres() as postgres:
        for name, seconds, wanted in (("together", 0.0, 0.3), ("singly", 0.03, 1.2)):
            fleet = BenchFleet(postgres, 1_000, due=50 if quick else 200)
            fleet.make_due()
            connection = fleet.connect()
            _trips(fleet, connection, NoOp(seconds), due=10)  # prepares the statements
            trips = [_trips(fleet, connection, NoOp(seconds), due=10) for _ in range(fleet.due // 10 - 1)]
            idle = _trips(fleet, connection, NoOp(seconds), due=0)
            # An invocation without machines also opens, makes the claim that finds nothing, and closes.
            figure = (median(trips) - idle) / 10
            rows.append([name, idle, median(trips), figure])
            result.at_most(f"round trips per machine, claim to finish, when results come {name}", wanted, figure)
            connection.close()
    result.tables.append(
        Table(
            "Round trips of the control loop, ten machines at a time",
            ["results come", "invocation with nothing due", "with ten", "per machine"],
            rows,
        )
    )


def _trips(fleet: BenchFleet, connection: Connection, loop: NoOp, *, due: int) -> int:
    """Return the round trips of one invocation with *due* machines due."""
    fleet.admin.run("UPDATE machine_due SET not_before = now() + interval '1 day' WHERE not_before IS NOT NULL")
    fleet.admin.run(
        "UPDATE machine_due SET not_before = now() WHERE process = 'ShepherdAgentStart' AND machine_id IN ("
        "SELECT machine_id FROM machine_due WHERE process = 'ShepherdAgentStart' AND not_before IS NOT NULL "
        f"LIMIT {due})"
    )
    waits = RoundTripCounter(connection)
    clock = SystemClock()
    limits = runner.RunLimits(concurrency=10, machine_seconds=20, session_seconds=60)
    counts = runner.run(loop, PROVIDER, connection, clock, limits, deadline=Deadline(clock, 60), runtime_info="bench")
    if counts[Metric.FINISHED] != due:
        raise RuntimeError(f"{due} machines were due, but the counts are {counts}")
    return waits.count
