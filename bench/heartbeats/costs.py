"""
The cost of a heartbeat for the function and for the database, alone and in batches of a relay.

The function runs in a process of its own, and all its heartbeats are of machines whose keys it has cached. Its waiting
is the time for the database, round trip and commit included. WAL is counted in two rounds: the first begins with a
checkpoint, after which PostgreSQL writes each page as a whole when it changes it for the first time.
"""

from __future__ import annotations

import json
import subprocess
import sys
from base64 import b64decode, b64encode
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shepherd_core.domain.pb.callback_pb2 import HeartbeatBatch, SignedHeartbeat

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pg8000.native

    from bench.heartbeats.heartbeats import SigningAgent

_ROOT = Path(__file__).parents[2]
_CHANGES = """
SELECT coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del), 0)::bigint, coalesce(sum(n_tup_upd), 0)::bigint,
    coalesce(sum(n_tup_hot_upd), 0)::bigint
FROM pg_stat_user_tables
"""


@dataclass(frozen=True, kw_only=True)
class Costs:
    """The figures of one heartbeat."""

    cpu_ms: float
    """Of the function."""
    wait_ms: float
    """For the database."""
    memory_mb: float
    """The peak memory of the function's process, without Lambda's runtime."""
    answer_bytes: float
    wal_bytes: float
    wal_bytes_after_checkpoint: float
    rows: float
    hot_share: float


def measure(
    driver: pg8000.native.Connection, fleet: Sequence[SigningAgent], batch: int
) -> tuple[Costs, dict[str, Any]]:
    """Return the figures of *fleet*'s heartbeats in batches of *batch* (1: each alone), and the last answer."""
    rounds = []
    for checkpoint in (True, False):
        if checkpoint:
            driver.run("CHECKPOINT")
        before = driver.run(_CHANGES)[0]
        answer = _function(driver, fleet, batch)
        after = driver.run(_CHANGES)[0]
        rounds.append((answer["wal_bytes"], [b - a for a, b in zip(before, after, strict=True)]))
    each = len(fleet) * 2  # once to cache the keys, once measured
    changes = [sum(figures) for figures in zip(*(one[1] for one in rounds), strict=True)]
    return Costs(
        cpu_ms=answer["cpu_ms"] / batch,
        wait_ms=(answer["wall_ms"] - answer["cpu_ms"]) / batch,
        memory_mb=answer["memory_mb"],
        answer_bytes=len(answer["body"]) / 2 / batch,
        wal_bytes=rounds[1][0] / each,
        wal_bytes_after_checkpoint=rounds[0][0] / each,
        rows=changes[0] / (each * len(rounds)),
        hot_share=changes[2] / max(1, changes[1]),
    ), answer


def _function(driver: pg8000.native.Connection, fleet: Sequence[SigningAgent], batch: int) -> dict[str, Any]:
    """Return the figures of the function for two heartbeats of each machine, of which the second is measured."""
    lines = []
    warm = 0
    for _ in range(2):
        events = _events(fleet, batch)
        warm = warm or len(events)
        lines += [json.dumps(event) for event in events]
    begin = _position(driver)
    done = subprocess.run(
        [sys.executable, "-m", "bench.heartbeats.function", str(warm)],
        input="\n".join(lines),
        capture_output=True,
        check=True,
        text=True,
        cwd=_ROOT,
    )
    return {**json.loads(done.stdout.splitlines()[-1]), "wal_bytes": _position(driver) - begin}


def _position(driver: pg8000.native.Connection) -> int:
    return int(driver.run("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")[0][0])


def _events(fleet: Sequence[SigningAgent], batch: int) -> list[dict[str, Any]]:
    if batch == 1:
        return [machine.next_event() for machine in fleet]
    return [_batch([machine.next_event() for machine in fleet[at : at + batch]]) for at in range(0, len(fleet), batch)]


def _batch(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the event of the batch that a relay makes of the heartbeats in *events*."""
    message = HeartbeatBatch(
        heartbeat=(
            SignedHeartbeat(
                machine_id=event["headers"]["shepherd-machine"],
                time=int(event["headers"]["shepherd-time"]),
                signature=b64decode(event["headers"]["shepherd-signature"]),
                body=b64decode(event["body"]),
            )
            for event in events
        )
    )
    first = events[0]
    http = {**first["requestContext"]["http"], "path": "/heartbeats"}
    return {
        **first,
        "rawPath": "/heartbeats",
        "headers": {"content-type": "application/x-protobuf"},
        "requestContext": {**first["requestContext"], "http": http},
        "body": b64encode(message.SerializeToString()).decode(),
    }
