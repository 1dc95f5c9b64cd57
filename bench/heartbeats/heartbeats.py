"""
A heartbeat's costs: its rate, the function's and the database's part of it, and its bytes on the wire.

The rate is that of one instance of the agent API, as a ratio to its indispensable statement alone. One process, one
connection, one heartbeat at a time, against a private PostgreSQL server that waits for its disk at every commit.
*Remembered* calls the handler with signed requests of machines whose keys it has cached, the usual case; *first* with
requests of machines that are new to its process. *Bare* is the prepared ``INSERT … ON CONFLICT`` alone, for the same
rows over the same connection. They take turns, and each figure is the median of its turns. If the ratio of remembered
to bare is below the goal, Shepherd's own part of a heartbeat costs more than the database's. The rest is described in
``costs.py`` and ``wire.py``.
"""

import os
import time
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from http import HTTPStatus
from typing import Any

import pg8000.native
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from shepherd_core.domain.pace import Pace
from shepherd_core.domain.pb.callback_pb2 import HeartbeatRequest
from shepherd_core.wiring import agent_endpoint, pace

from bench.heartbeats import costs, wire
from bench.results import Result, Table, in_turn, median
from functions.agent_api.app import lambda_handler
from simulator.environment.postgres import Postgres
from simulator.lambda_.environment import Context
from tests.support.bmdb.fleet import administrator

GOAL = 0.5
KEPT_BYTES, RESUMED_BYTES, WAL_BYTES = 700, 1_500, 120
INTERVAL = 300
"""The interval in the requests; it has as many bytes as any other."""

_BARE = """
INSERT INTO machine_agent_heartbeat (machine_id, agent_heartbeat_at, agent_signed_at)
VALUES (:machine_id, clock_timestamp(), :signed_at)
ON CONFLICT (machine_id) DO UPDATE
SET agent_heartbeat_at = excluded.agent_heartbeat_at, agent_signed_at = excluded.agent_signed_at
"""
_CONTEXT = Context("a-request", "agent_api", float("inf"))


class SigningAgent:
    """An agent that signs in advance."""

    def __init__(self, machine_id: str) -> None:
        self.machine_id = machine_id
        self._key = Ed25519PrivateKey.generate()
        self.public_key = self._key.public_key().public_bytes_raw()
        self._body = HeartbeatRequest(machine_id=machine_id, report_interval_seconds=INTERVAL).SerializeToString()
        self._signed_at = 0

    def next_event(self) -> dict[str, Any]:
        """Return the event of a heartbeat that is later than all before, and not too often."""
        self._signed_at = max(self._signed_at + 1, time.time_ns() // 1_000_000)
        return self.event(self._signed_at)

    def event(self, signed_at: int) -> dict[str, Any]:
        """Return the event of a heartbeat, as from an HTTP API."""
        signed = b"\n".join((b"shepherd-agent-v1", b"POST", b"/heartbeat", str(signed_at).encode(), self._body))
        return {
            "version": "2.0",
            "rawPath": "/heartbeat",
            "headers": {
                "content-type": "application/x-protobuf",
                "shepherd-machine": self.machine_id,
                "shepherd-time": str(signed_at),
                "shepherd-signature": b64encode(self._key.sign(signed)).decode(),
            },
            "requestContext": {
                "http": {"method": "POST", "path": "/heartbeat", "sourceIp": "192.0.2.13"},
                "timeEpoch": signed_at,
            },
            "body": b64encode(self._body).decode(),
            "isBase64Encoded": True,
        }


class Bench:
    """A fleet, and the ways to record its heartbeats."""

    def __init__(self, machines: Sequence[SigningAgent]) -> None:
        self._machines = machines
        self._signed_at = 0

    def first(self) -> float:
        """Return the heartbeats per second of a process that has just connected."""
        self._driver().close()
        agent_endpoint.build.cache_clear()
        events = self._events()
        _call(events[0])
        return _rate(_call, events[1:])

    def remembered(self) -> float:
        """Return the heartbeats per second of machines whose keys are cached."""
        return _rate(_call, self._events())

    def bare(self) -> float:
        """Return the upserts per second."""
        bare = self._driver().prepare(_BARE)
        signed_at = self._next()
        machine_ids = [machine.machine_id for machine in self._machines]
        return _rate(lambda machine_id: bare.run(machine_id=machine_id, signed_at=signed_at), machine_ids)

    def _events(self) -> list[dict[str, Any]]:
        signed_at = self._next()
        return [machine.event(signed_at) for machine in self._machines]

    def _next(self) -> int:
        self._signed_at = max(self._signed_at + 1, time.time_ns() // 1_000_000)
        return self._signed_at

    def _driver(self) -> pg8000.native.Connection:
        return agent_endpoint.build().connection._connected()  # noqa: SLF001 - the same connection, without Shepherd's code


def _call(event: dict[str, Any]) -> None:
    answer = lambda_handler(event, _CONTEXT)  # type: ignore[arg-type]  # the part of the context that is used
    assert answer["statusCode"] == HTTPStatus.OK, answer


def _rate(do: Callable[[Any], object], things: Sequence[Any]) -> float:
    began = time.perf_counter()
    for thing in things:
        do(thing)
    return len(things) / (time.perf_counter() - began)


def measure(*, quick: bool) -> Result:
    """Return the figures."""
    machines, repeats = (20, 1) if quick else (500, 5)
    with Postgres() as postgres:
        settings = postgres.new_database()
        pace.current = Pace(report_seconds=0)
        os.environ.update(
            SHEPHERD_BMDB_HOST=settings.bmdb_host,
            SHEPHERD_BMDB_NAME=settings.bmdb_name,
            SHEPHERD_BMDB_USER=settings.bmdb_user,
        )
        driver = administrator(settings)
        plant = f"INSERT INTO machines SELECT FROM generate_series(1, {machines}) RETURNING machine_id"
        fleet = [SigningAgent(str(row[0])) for row in driver.run(plant)]
        start = driver.prepare("INSERT INTO machine_agent_started VALUES (:machine_id, clock_timestamp(), :public_key)")
        for machine in fleet:
            start.run(machine_id=machine.machine_id, public_key=machine.public_key)
        driver.run("ANALYZE")
        bench = Bench(fleet)
        ways = {"bare": bench.bare, "first": bench.first, "remembered": bench.remembered}
        for way in ways.values():
            way()  # creates the rows and warms up
        figures = in_turn(repeats, ways)
        agent_endpoint.build().connection.close()
        cost, answer = costs.measure(driver, fleet)
        driver.close()
    # The median of the ratios of neighbours, because the speed of a computer changes over minutes.
    ratios = {
        name: median([one / bare for one, bare in zip(rates, figures["bare"], strict=True)])
        for name, rates in figures.items()
    }
    result = Result()
    result.tables.append(
        Table(
            f"Heartbeats of {machines:,} machines, one after the other",
            ["way", "per second", "ratio"],
            [[name, median(rates), ratios[name]] for name, rates in figures.items()],
        )
    )
    _add_costs(result, cost)
    body = bytes.fromhex(answer["body"])
    _add_bytes(result, wire.measure(body, answer["headers"], INTERVAL, 2 if quick else 10))
    result.at_least("remembered: times the bare upsert", GOAL, ratios["remembered"])
    return result


def _add_costs(result: Result, cost: costs.Costs) -> None:
    rows = [[name.replace("_", " "), figure] for name, figure in asdict(cost).items()]
    result.tables.append(Table("Costs of one heartbeat", ["what", "figure"], rows))
    result.at_most("bytes of WAL of a heartbeat", WAL_BYTES, cost.wal_bytes)


def _add_bytes(result: Result, found: Mapping[str, Mapping[str, tuple[float, float]]]) -> None:
    """Add the bytes on the wire by connection and added headers."""
    rows = [
        [connection, way, sent, received, sent + received]
        for connection, ways in found.items()
        for way, (sent, received) in ways.items()
    ]
    columns = ["connection", "answer's headers", "bytes sent", "received", "both"]
    result.tables.append(Table("Bytes of a heartbeat on the wire", columns, rows))
    for way in wire.HEADERS:
        result.at_most(f"bytes of a heartbeat, kept connection, {way}", KEPT_BYTES, sum(found["kept"][way]))
        result.at_most(f"the same, resumed, {way}", RESUMED_BYTES, sum(found["resumed"][way]))
