"""
Heartbeats that one instance of the agents' endpoint takes, as a ratio to the bare statement that it cannot do without.

    make bench-heartbeats                            # a table, and build/heartbeats.json
    python bench/heartbeats.py --machines 5000

One process, one connection, one heartbeat after the other, against a PostgreSQL of its own that waits for its disk at
every commit. *Remembered* calls the handler with signed requests of machines whose keys it knows, which is how nearly
all come; *first* with those that its process never heard of. *Bare* is ``INSERT … ON CONFLICT`` for the same rows over
the same connection, prepared, with nothing around it. They take turns, and each figure is the median of its turns. A
ratio of remembered to bare below the goal says that our own part of a heartbeat costs more than the database's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from base64 import b64encode
from dataclasses import asdict, dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from shepherd_core import runtime
from shepherd_core.pb.callback_pb2 import HeartbeatRequest

from functions.agent_api.app import lambda_handler
from simulator.lambda_environment import Context
from simulator.postgres import Postgres

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pg8000.native

GOAL = 0.5
OUTPUT = Path(__file__).parents[1] / "build" / "heartbeats.json"

_BARE = """
INSERT INTO machine_agent_heartbeat (machine_id, agent_heartbeat_at, agent_signed_at)
VALUES (:machine_id, clock_timestamp(), :signed_at)
ON CONFLICT (machine_id) DO UPDATE
SET agent_heartbeat_at = excluded.agent_heartbeat_at, agent_signed_at = excluded.agent_signed_at
"""
_CONTEXT = Context("a-request", "agent_api", float("inf"))


class Machine:
    """An agent that signs in advance."""

    def __init__(self, machine_id: str) -> None:
        self.machine_id = machine_id
        self._key = Ed25519PrivateKey.generate()
        self.public_key = self._key.public_key().public_bytes_raw()
        self._body = HeartbeatRequest(machine_id=machine_id).SerializeToString()

    def event(self, signed_at: int) -> dict[str, Any]:
        """Return what an HTTP API makes of a heartbeat."""
        signed = b"\n".join((b"shepherd-agent-v1", b"POST", b"/heartbeat", str(signed_at).encode(), self._body))
        return {
            "version": "2.0",
            "rawPath": "/heartbeat",
            "headers": {
                "content-type": "application/x-protobuf",
                "shepherd-time": str(signed_at),
                "shepherd-signature": b64encode(self._key.sign(signed)).decode(),
            },
            "requestContext": {"http": {"method": "POST", "path": "/heartbeat"}, "timeEpoch": signed_at},
            "body": b64encode(self._body).decode(),
            "isBase64Encoded": True,
        }


class Bench:
    """A fleet, and the two ways to record that it lives."""

    def __init__(self, machines: Sequence[Machine]) -> None:
        self._machines = machines
        self._signed_at = 0

    def first(self) -> float:
        """Return the heartbeats per second of a process that has just connected."""
        self._driver().close()
        runtime.build_agent_api.cache_clear()
        events = self._events()
        _call(events[0])
        return _rate(_call, events[1:])

    def remembered(self) -> float:
        """Return the heartbeats per second of machines that were heard before."""
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
        return runtime.build_agent_api().connection._connected()  # noqa: SLF001 - the same connection, without our part


def _call(event: dict[str, Any]) -> None:
    answer = lambda_handler(event, _CONTEXT)  # type: ignore[arg-type]  # all of the context that is looked at
    assert answer["statusCode"] == HTTPStatus.OK, answer


def _rate(do: Callable[[Any], object], things: Sequence[Any]) -> float:
    began = time.perf_counter()
    for thing in things:
        do(thing)
    return len(things) / (time.perf_counter() - began)


@dataclass(frozen=True)
class Figure:
    """One way; per second, and as a ratio to the bare statement."""

    way: str
    per_second: float
    ratio: float


def measure(machines: int, repeats: int) -> list[Figure]:
    """Return the figures of a fleet of so many *machines*."""
    with Postgres() as postgres:
        settings = postgres.new_database()
        os.environ.update(
            SHEPHERD_BMDB_HOST=settings.bmdb_host,
            SHEPHERD_BMDB_NAME=settings.bmdb_name,
            SHEPHERD_BMDB_USER=settings.bmdb_user,
        )
        connection = runtime.bmdb(settings)
        driver = connection._connected()  # noqa: SLF001 - plants what nothing of ours plants
        plant = f"INSERT INTO machines SELECT FROM generate_series(1, {machines}) RETURNING machine_id"
        fleet = [Machine(str(row[0])) for row in driver.run(plant)]
        start = driver.prepare("INSERT INTO machine_agent_started VALUES (:machine_id, clock_timestamp(), :public_key)")
        for machine in fleet:
            start.run(machine_id=machine.machine_id, public_key=machine.public_key)
        driver.run("ANALYZE")
        connection.close()
        bench = Bench(fleet)
        ways = {"bare": bench.bare, "first": bench.first, "remembered": bench.remembered}
        for way in ways.values():
            way()  # makes the rows, and warms up
        rounds = [{name: way() for name, way in ways.items()} for _ in range(repeats)]
        runtime.build_agent_api().connection.close()
    # The median of neighbours' ratios, because how fast a machine is changes over minutes.
    return [
        Figure(
            name,
            round(statistics.median(each[name] for each in rounds), 1),
            round(statistics.median(each[name] / each["bare"] for each in rounds), 3),
        )
        for name in ways
    ]


def main() -> None:
    """Print a table, and write the same as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machines", type=int, default=1000, metavar="COUNT", help="heartbeats in each turn (1000)")
    parser.add_argument("--repeats", type=int, default=15, metavar="COUNT", help="turns of each way (15)")
    options = parser.parse_args()
    figures = measure(options.machines, options.repeats)
    OUTPUT.parent.mkdir(exist_ok=True)
    result = {"goal": GOAL, "machines": options.machines, "figures": [asdict(figure) for figure in figures]}
    OUTPUT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(f"{'way':<11} {'per second':>10} {'ratio':>6}")
    for figure in figures:
        print(f"{figure.way:<11} {figure.per_second:>10.0f} {figure.ratio:>6.2f}")
    print(f"goal: remembered at {GOAL} or more; as JSON: {OUTPUT}")


if __name__ == "__main__":
    main()
