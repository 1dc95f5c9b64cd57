"""
No-op tasks in queues for Python on the same server: procrastinate and pgqueuer. Runs in .venv-bench.

    queues.py procrastinate HOST DATABASE TASKS WORKERS BATCH        # prints tasks per second

Each worker is a process with its own connection pool, and stops when there are no more tasks. They begin together, and
the time ends with the last task.
"""

# ruff: noqa: PLC0415 - only the queue that is measured is imported

import asyncio
import logging
import multiprocessing
import sys
import time
from typing import Any

_CONTEXT = multiprocessing.get_context("fork")


class Procrastinate:
    """Fetches one task at a time; *batch* tasks run at the same time in each worker."""

    def __init__(self, host: str, database: str, batch: int) -> None:
        import procrastinate

        self._batch = batch
        self._app = procrastinate.App(
            connector=procrastinate.PsycopgConnector(conninfo=f"host={host} dbname={database} user=postgres")
        )
        self.last = 0.0

        @self._app.task(name="noop")
        async def noop() -> None:
            self.last = time.perf_counter()

        self._noop = noop

    async def install(self, tasks: int) -> None:
        """Create the tables and the tasks."""
        async with self._app.open_async():
            await self._app.schema_manager.apply_schema_async()
            await self._noop.batch_defer_async(*({} for _ in range(tasks)))

    async def work(self, begin: Any) -> None:
        """Work until there are no more tasks."""
        async with self._app.open_async():
            await asyncio.to_thread(begin)
            await self._app.run_worker_async(
                wait=False, concurrency=self._batch, install_signal_handlers=False, listen_notify=False
            )


class Pgqueuer:
    """Fetches *batch* tasks with one statement, and records their results in batches too."""

    def __init__(self, host: str, database: str, batch: int) -> None:
        self._where = {"host": host, "database": database, "user": "postgres"}
        self._batch = batch
        self.last = 0.0

    async def install(self, tasks: int) -> None:
        """Create the tables and the tasks."""
        import asyncpg
        from pgqueuer.db import AsyncpgDriver
        from pgqueuer.queries import Queries

        connection = await asyncpg.connect(**self._where)
        queries = Queries(AsyncpgDriver(connection))
        await queries.install()
        await queries.enqueue(["noop"] * tasks, [None] * tasks, [0] * tasks)
        await connection.close()

    async def work(self, begin: Any) -> None:
        """Work until there are no more tasks."""
        import asyncpg
        from pgqueuer import PgQueuer
        from pgqueuer.db import AsyncpgDriver
        from pgqueuer.types import QueueExecutionMode

        connection = await asyncpg.connect(**self._where)
        queuer = PgQueuer(AsyncpgDriver(connection))

        @queuer.entrypoint("noop")
        async def noop(_: object) -> None:
            self.last = time.perf_counter()

        await asyncio.to_thread(begin)
        await queuer.run(batch_size=self._batch, mode=QueueExecutionMode.drain)
        await connection.close()


def main(name: str, host: str, database: str, *counts: int) -> None:
    """Print the tasks per second."""
    tasks, workers, batch = counts
    logging.disable()
    kind = {"procrastinate": Procrastinate, "pgqueuer": Pgqueuer}[name]
    asyncio.run(kind(host, database, batch).install(tasks))
    barrier = _CONTEXT.Barrier(workers)
    answers = _CONTEXT.SimpleQueue()

    def worker() -> None:
        rival = kind(host, database, batch)
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
    main(sys.argv[1], sys.argv[2], sys.argv[3], *map(int, sys.argv[4:7]))
