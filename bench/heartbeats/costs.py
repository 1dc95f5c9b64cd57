"""
The cost of a heartbeat for the function and for the database.

The function runs in a process of its own, and all its heartbeats are of machines whose keys it has cached. Its waiting
is the time for the database, round trip and commit included. WAL is counted in two rounds: the first begins with a
checkpoint, after which PostgreSQL writes each page as a whole when it changes it for the first time.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

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


def measure(driver: pg8000.native.Connection, fleet: Sequence[SigningAgent]) -> tuple[Costs, dict[str, Any]]:
    """Return the figures of *fleet*'s heartbeats, and the last answer."""
    rounds = []
    for checkpoint in (True, False):
        if checkpoint:
            driver.run("CHECKPOINT")
        before = driver.run(_CHANGES)[0]
        answer = _function(driver, fleet)
        after = driver.run(_CHANGES)[0]
        rounds.append((answer["wal_bytes"], [b - a for a, b in zip(before, after, strict=True)]))
    each = len(fleet) * 2  # once to cache the keys, once measured
    changes = [sum(figures) for figures in zip(*(one[1] for one in rounds), strict=True)]
    return Costs(
        cpu_ms=answer["cpu_ms"],
        wait_ms=answer["wall_ms"] - answer["cpu_ms"],
        memory_mb=answer["memory_mb"],
        answer_bytes=len(answer["body"]) / 2,
        wal_bytes=rounds[1][0] / each,
        wal_bytes_after_checkpoint=rounds[0][0] / each,
        rows=changes[0] / (each * len(rounds)),
        hot_share=changes[2] / max(1, changes[1]),
    ), answer


def _function(driver: pg8000.native.Connection, fleet: Sequence[SigningAgent]) -> dict[str, Any]:
    """Return the figures of the function for two heartbeats of each machine, of which the second is measured."""
    lines = [json.dumps(machine.next_event()) for _ in range(2) for machine in fleet]
    begin = _position(driver)
    done = subprocess.run(
        [sys.executable, "-m", "bench.heartbeats.function", str(len(fleet))],
        input="\n".join(lines),
        capture_output=True,
        check=True,
        text=True,
        cwd=_ROOT,
    )
    return {**json.loads(done.stdout.splitlines()[-1]), "wal_bytes": _position(driver) - begin}


def _position(driver: pg8000.native.Connection) -> int:
    return int(driver.run("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")[0][0])
