"""
The predecessor's algorithm, as far as it is known, implemented as well as possible.

One machine at a time: a SERIALIZABLE transaction that checks the session, selects one eligible machine, and writes
work and history; and another one that checks the session and ends the work. No row is locked; if two transactions
conflict, one of them must be repeated. It uses our tables, without machine_due, and the indexes that it had.

It is tuned: every statement is prepared, the statistics are fresh, the query stops at the first machine, and a
transaction is repeated after a random pause of up to half a second, which with 16 workers and 100,000 machines gave
twice as many machines per second as pauses of up to 20 ms.
"""

import random
import time
from collections.abc import Callable
from typing import Any, TypeVar

from pg8000.exceptions import DatabaseError
from shepherd_core.settings.functions.bmdb import BmdbSettings

from bench.fleet import PROVIDER
from bench.workers import Done, Meter
from tests.support.bmdb.fleet import administrator

T = TypeVar("T")

_CONFLICTS = {"40001", "40P01", "23505"}
PAUSE_SECONDS = 0.5

ELIGIBLE = """
SELECT p.machine_id, p.provider_id
FROM machines m
JOIN machine_provided p ON p.machine_id = m.machine_id
LEFT JOIN work w
    ON w.machine_id = m.machine_id AND w.process IN ('ShepherdAccess', 'ShepherdAgentStart', 'ShepherdRecovery')
LEFT JOIN work_backoff b
    ON b.machine_id = m.machine_id AND b.process = 'ShepherdAgentStart' AND b.until > now()
LEFT JOIN machine_agent_started a ON a.machine_id = m.machine_id
LEFT JOIN machine_os_installation_request q ON q.machine_id = m.machine_id
LEFT JOIN machine_os_installation_report r ON r.machine_id = m.machine_id
WHERE p.provider = :provider
    AND a.machine_id IS NULL
    AND (q.machine_id IS NULL OR q.generation IS DISTINCT FROM r.generation)
    AND w.machine_id IS NULL
    AND b.machine_id IS NULL
LIMIT 1
"""

_STATEMENTS = {
    "check": "SELECT 1 FROM sessions WHERE session_id = :session_id AND deadline > now()",
    "eligible": ELIGIBLE,
    "work": "INSERT INTO work (machine_id, process, session_id) "
    "VALUES (:machine_id, 'ShepherdAgentStart', :session_id)",
    "history": "INSERT INTO work_history (machine_id, process, event, session_id) "
    "VALUES (:machine_id, 'ShepherdAgentStart', :event, :session_id)",
    "fact": "INSERT INTO machine_agent_started VALUES (:machine_id, now(), :public_key)",
    "end_work": "DELETE FROM work WHERE machine_id = :machine_id AND process = 'ShepherdAgentStart' "
    "AND session_id = :session_id",
    "clear_backoff": "DELETE FROM work_backoff WHERE machine_id = :machine_id AND process = 'ShepherdAgentStart'",
}


class Predecessor:
    """One worker, with its own connection and session."""

    def __init__(self, settings: BmdbSettings, pause_seconds: float = PAUSE_SECONDS) -> None:
        """*pause_seconds*: the longest pause after a conflict."""
        self._pause_seconds = pause_seconds
        self._driver = administrator(settings)
        self._run = {name: self._driver.prepare(text).run for name, text in _STATEMENTS.items()}
        self._session_id = self._driver.run(
            "INSERT INTO sessions (component_name, runtime_info, interval_seconds, deadline) "
            "VALUES ('bench', 'predecessor', 3600, now() + interval '1 hour') RETURNING session_id"
        )[0][0]
        self._meter = Meter(self._driver)

    def drain(self, seconds: float, at_most: float = float("inf")) -> Done:
        """Start and end the work of machines, *at_most* this many, until none is eligible or *seconds* have passed."""
        self._meter.begin()
        began = last = time.perf_counter()
        end = began + seconds
        count = 0
        while count < at_most and (machine_id := self._transact(self._start, end)) is not None:
            if self._transact(lambda machine_id=machine_id: self._finish(machine_id), end) is None:
                break
            count += 1
            last = time.perf_counter()
        return Done(count, (last if time.perf_counter() < end else end) - began, self._meter.spent())

    def query(self) -> float:
        """Return the seconds of the query for one eligible machine."""
        began = time.perf_counter()
        self._run["eligible"](provider=PROVIDER)
        return time.perf_counter() - began

    def _start(self) -> Any:
        rows = self._run["eligible"](provider=PROVIDER)
        if not rows:
            return None
        machine_id = rows[0][0]
        self._run["work"](machine_id=machine_id, session_id=self._session_id)
        self._run["history"](machine_id=machine_id, session_id=self._session_id, event="Started")
        return machine_id

    def _finish(self, machine_id: Any) -> Any:
        self._run["fact"](machine_id=machine_id, public_key=b"x" * 32)
        self._run["end_work"](machine_id=machine_id, session_id=self._session_id)
        self._run["clear_backoff"](machine_id=machine_id)
        self._run["history"](machine_id=machine_id, session_id=self._session_id, event="Finished")
        return machine_id

    def _transact(self, unit: Callable[[], T], end: float) -> T | None:
        """Return the result of *unit*, repeated after conflicts; None if *end* has passed."""
        while time.perf_counter() < end:
            try:
                self._driver.run("BEGIN ISOLATION LEVEL SERIALIZABLE")
                if not self._run["check"](session_id=self._session_id):
                    raise RuntimeError("session expired")
                result = unit()
                self._driver.run("COMMIT")
            except DatabaseError as error:
                self._driver.run("ROLLBACK")
                if error.args[0].get("C") not in _CONFLICTS:
                    raise
                time.sleep(random.uniform(0, self._pause_seconds))
            else:
                return result
        return None
