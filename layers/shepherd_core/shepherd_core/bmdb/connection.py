"""
A connection to the BMDB: statements, transactions and their retries.

Connects when it is first needed, keeps the connection between invocations, and
drops it as soon as it looks broken. Not thread-safe: one thread uses the
database.
"""

from __future__ import annotations

import json
import random
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_type_hints

from shepherd_core.bmdb.statements import statements
from shepherd_core.bmdb.wire import driver
from shepherd_core.domain.clock import TOLERANCE_SECONDS
from shepherd_core.domain.errors import ConfigError
from shepherd_core.domain.errors.bmdb import BmdbError, BmdbUnavailable, CommitUnknown, SerializationConflict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from shepherd_core.bmdb.wire.driver import Driver, Prepared
    from shepherd_core.domain.clock import Clock, Deadline
    from shepherd_core.settings.functions.bmdb import BmdbSettings

R = TypeVar("R")
T = TypeVar("T")

ATTEMPTS = 5
"""Number of tries of a transaction. Each pause is jittered, and may last twice as long as the one before."""

_FIRST_PAUSE_SECONDS = 0.05
_PLAN_SECONDS = 300
"""After which statements are planned anew. A plan that was made for an empty table reads the whole of a large one; the
server alone would keep it until the table is analyzed."""
_LIMITS = driver.TimeLimits()


def sanitize_for_db(text: str) -> str:
    """Return *text*, which comes from outside, as the database stores every parameter: UTF-8 without NUL."""
    return text.encode(errors="replace").decode().replace("\0", "?")


def read(row: type[R], name: str, columns: tuple[str, ...], rows: Iterable[list[Any]]) -> Iterator[R]:
    """
    Yield each of *rows*, which the statement *name* returned with these columns, as a *row*.

    Raises:
        TypeError: the columns are not the fields.
    """
    if not is_dataclass(row):
        (_,) = columns
        yield from (each[0] for each in rows)
        return
    enums, in_order = _plan(row, name, columns)
    for each in rows:
        for place, enum in enums:
            each[place] = each[place] and enum(each[place])
        yield row(*each) if in_order else row(**dict(zip(columns, each, strict=True)))


@cache
def _plan(row: Any, name: str, columns: tuple[str, ...]) -> tuple[list[tuple[int, type[StrEnum]]], bool]:
    """Return which columns are enums, and whether all are in the order of the fields. Raises as ``read``."""
    known = {each.name: each.default for each in fields(row)}
    missing = {field for field, default in known.items() if default is MISSING} - set(columns)
    if different := missing | (set(columns) - known.keys()):
        raise TypeError(f"{name} and {row.__name__} differ in {', '.join(sorted(different))}")
    types = get_type_hints(row)
    enums = [(place, enum) for place, column in enumerate(columns) if (enum := _enum(types[column]))]
    return enums, columns == tuple(known)[: len(columns)]


def _enum(hint: Any) -> type[StrEnum] | None:
    """Return the enum of texts that *hint* is, alone or beside None."""
    return next(
        (each for each in (hint, *get_args(hint)) if isinstance(each, type) and issubclass(each, StrEnum)), None
    )


def as_rows(rows: Iterable[Mapping[str, object]]) -> str:
    """Return *rows*, values by column, as ``jsonb_to_recordset`` reads them; bytes as hexadecimal digits."""
    stored = [{name: _storable(value) for name, value in row.items()} for row in rows]
    return json.dumps(stored, default=lambda value: value.hex() if isinstance(value, bytes) else str(value))


def _storable(value: Any) -> Any:
    if isinstance(value, str):
        return sanitize_for_db(value)
    return [_storable(each) for each in value] if isinstance(value, list) else value


class Connection:
    """One connection to the BMDB, opened on demand."""

    def __init__(
        self,
        settings: BmdbSettings,
        password: Callable[[], str] | None,
        clock: Clock,
        authorities: Callable[[], bytes] | None = None,
        attempts: int = ATTEMPTS,
        limits: driver.TimeLimits = _LIMITS,
    ) -> None:
        """
        Both callables are called for every new connection.

        *password* returns the password or token; None: the server asks for none.
        *authorities* is as in ``transport.dial``. Whatever may be retried is tried
        *attempts* times in all.
        """
        self._settings = settings
        self._password = password
        self._authorities = authorities
        self._clock = clock
        self._attempts = attempts
        self._limits = limits
        self._driver: Driver | None = None
        self._planned_at = 0.0
        self._prepared: dict[str, Prepared] = {}
        self._in_transaction = False

    @property
    def clock(self) -> dict[str, Any]:
        """Return the parameters by which a statement compares the server's clock with ours."""
        return {"time": self._clock.time_of_day(), "tolerance_seconds": TOLERANCE_SECONDS}

    def run(self, name: str, /, **parameters: Any) -> list[list[Any]]:
        """
        Run the statement *name* and return its rows.

        Outside of ``transact`` the statement commits by itself. It is retried after a
        serialization failure or deadlock, while the server is unavailable, and if the
        connection turns out to be broken before anything was sent. It is not retried
        in any other case.

        Raises:
            BmdbUnavailable: the database cannot be reached, or inside ``transact``: the connection broke.
            CommitUnknown: the connection broke after the statement was sent; it may have been carried out.
            SerializationConflict: still in conflict after all attempts.
            StatementFailed: the database refused it.
        """
        if self._in_transaction:
            return self._send(name, parameters)

        def once() -> list[list[Any]]:
            self._connected()
            try:
                return self._send(name, parameters)
            except BmdbUnavailable as error:
                if driver.is_refusal(error):
                    raise
                raise CommitUnknown(f"the connection to the BMDB broke while {name} was running") from error

        return self._persist(once)

    def transact(self, unit: Callable[[], T], deadline: Deadline | None = None) -> T:
        """
        Run *unit*, which calls ``run``, in one transaction, and return its result.

        A conflict is retried until shortly before *deadline*; None: as often as everything else.

        *unit* may run several times (after serialization failures, or if the connection
        is lost before the commit), so it must only read and write the BMDB. If it
        raises, the transaction is rolled back.

        Raises:
            CommitUnknown: the connection broke while committing.
            BmdbUnavailable, SerializationConflict: still so after all attempts.
        """

        def once() -> T:
            self._simple("BEGIN")
            self._in_transaction = True
            try:
                result = unit()
            except BaseException:
                self._in_transaction = False
                self.roll_back()
                raise
            self._in_transaction = False
            try:
                self._simple("COMMIT")
            except BmdbUnavailable as error:
                if driver.is_refusal(error):
                    raise
                raise CommitUnknown from error
            return result

        return self._persist(once, deadline)

    def dry_run(self, unit: Callable[[], T]) -> T:
        """Run *unit* in a transaction, roll it back, and return its result."""
        self._simple("BEGIN")
        self._in_transaction = True
        try:
            return unit()
        finally:
            self._in_transaction = False
            self.roll_back()

    def script(self, text: str) -> None:
        """Run statements without parameters that have no name: migrations. Only inside ``transact``."""
        self._simple(text)

    def fetch(self, row: type[R], name: str, /, **parameters: Any) -> list[R]:
        """
        Run the statement *name* as ``run`` does, and return each row as a *row*.

        That is a ``record``, whose fields have the names of the columns, or for a statement with one column its type.
        """
        rows = self.run(name, **parameters)
        made = list(read(row, name, tuple(column["name"] for column in self._prepared[name].columns), rows))
        rows.clear()  # the driver keeps the list until the statement runs again
        return made

    def require_own_process(self) -> None:
        """
        Check that no other connection gets the server process of this one, as behind a pooler of transactions.

        A pooler that is busy may hide it; then statements fail later, with the same reason.

        Raises:
            ConfigError: another one got it.
        """
        other = Connection(self._settings, self._password, self._clock, self._authorities, self._attempts, self._limits)
        try:
            if other.run("server_process") == self.run("server_process"):
                raise ConfigError([f"SHEPHERD_BMDB_HOST: {driver.POOLED}"])
        finally:
            other.close()

    def cancel(self) -> None:
        """Ask the server to end the statement that runs now. May be called while another call waits for its answer."""
        if self._driver is not None:
            driver.cancel(self._driver, self._settings, self._authorities, self._limits)

    def roll_back(self) -> None:
        """Roll back the transaction; if not even that works, drop the connection."""
        with suppress(BmdbError):
            self._simple("ROLLBACK")

    def close(self) -> None:
        """Drop the connection; the next use opens a new one."""
        old, self._driver, self._prepared = self._driver, None, {}
        if old is not None:
            with suppress(*driver.FAULTS):
                old.close()

    def _persist(self, once: Callable[[], T], deadline: Deadline | None = None) -> T:
        """Call *once* until it succeeds, fails for good, or has been tried often or (conflicts) long enough."""
        for attempt in count(1):
            longest = _FIRST_PAUSE_SECONDS * 2 ** min(attempt, ATTEMPTS)
            try:
                self._forget_old_plans()
                return once()
            except (SerializationConflict, BmdbUnavailable) as error:
                if deadline is not None and isinstance(error, SerializationConflict):
                    ended = deadline.remaining() < 2 * longest
                else:
                    ended = attempt >= self._attempts
                if ended:
                    raise
            self._clock.sleep(random.uniform(longest / 4, longest))  # noqa: S311 - jitter, not cryptography
        raise AssertionError  # it counts on

    def _forget_old_plans(self) -> None:
        now = self._clock.monotonic()
        if self._driver is not None and now - self._planned_at > _PLAN_SECONDS:
            self._simple("DISCARD PLANS")
            self._planned_at = now

    def _send(self, name: str, parameters: dict[str, Any]) -> list[list[Any]]:
        try:
            prepared = self._prepared.get(name)
            if prepared is None:
                prepared = self._prepared[name] = self._connected().prepare(statements()[name])
            return prepared.run(**{key: _storable(value) for key, value in parameters.items()}) or []
        except driver.FAULTS as error:
            raise self._failed(error, name) from error

    def _simple(self, text: str) -> None:
        try:
            self._connected().run(text)
        except driver.FAULTS as error:
            raise self._failed(error, text.split(maxsplit=1)[0]) from error

    def _failed(self, error: Exception, what: str) -> BmdbError:
        """Return our error for the driver's, and drop the connection unless it still works."""
        meaning = driver.meaning(error, what)
        if isinstance(meaning, BmdbUnavailable):
            self.close()
            driver.let_go(error)
        return meaning

    def _connected(self) -> Driver:
        if self._driver is None:
            self._driver, self._planned_at = self._open(), self._clock.monotonic()
        return self._driver

    def _open(self) -> Driver:
        password = None if self._password is None else self._password()
        return driver.connect(self._settings, password, self._authorities, self._limits)
