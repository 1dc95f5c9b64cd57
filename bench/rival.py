"""
No-op tasks in a queue for Python on the same server, pgqueuer. Runs in .venv-bench.

    rival.py HOST DATABASE TASKS WORKERS BATCH        # prints tasks per second

Each worker is a process with its own connection pool, and stops when there are no more tasks. They begin together, and
the time ends with the last task.
"""

import asyncio
import logging
import multiprocessing
import sys
import time
from typing import Any

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode

_CONTEXT = multiprocessing.get_context("fork")


class Pgqueuer:
    """Fetches *batch* tasks with one statement, and records their results in batches too."""

    def __init__(self, host: str, database: str, batch: int) -> None:
        self._where = {"host": host, "database": database, "user": "postgres"}
        self._batch = batch
        self.last = 0.0

    async def install(self, tasks: int) -> None:
        """Create the tables and the tasks."""
        connection = await asyncpg.connect(**self._where)
        queries = Queries(AsyncpgDriver(connection))
        await queries.install()
        await queries.enqueue(["noop"] * tasks, [None] * tasks, [0] * tasks)
        await connection.close()

    async def work(self, begin: Any) -> None:
        """Work until there are no more tasks."""
        connection = await asyncpg.connect(**self._where)
        queuer = PgQueuer(AsyncpgDriver(connection))

        @queuer.entrypoint("noop")
        async def noop(_: object) -> None:
            self.last = time.perf_counter()

        await asyncio.to_thread(begin)
        await queuer.run(batch_size=self._batch, mode=QueueExecutionMode.drain)
        await connection.close()


def main(host: str, database: str, *counts: int) -> None:
    """Print the tasks per second."""
    tasks, workers, batch = counts
    logging.disable()
    asyncio.run(Pgqueuer(host, database, batch).install(tasks))
    barrier = _CONTEXT.Barrier(workers)
    answers = _CONTEXT.SimpleQueue()

    def worker() -> None:
        rival = Pgqueuer(host, database, batch)
        began = []

        def begin() -> None:
            barrier.wait(timeout=60)
            began.append(time.perf_counter())

        try:
            asyncio.run(rival.work(begin))
        finally:
            answers.put((began[0] if began else float("inf"), rival.last))

    processes = [_CONTEXT.Process(target=worker) for _ in range(workers)]
    for process in processes:
        process.start()
    found = [answers.get() for _ in processes]
    for process in processes:
        process.join()
    print(tasks / (max(last for _, last in found) - min(began for began, _ in found)))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6]))
