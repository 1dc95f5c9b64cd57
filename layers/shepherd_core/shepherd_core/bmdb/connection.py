"""
A connection to the BMDB: the only module that imports pg8000.

Connects when it is first needed, keeps the connection between invocations,
drops it as soon as it looks broken, and turns every error of the driver into
one of ours. Not thread-safe: one thread uses the database.
"""

from __future__ import annotations

import random
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import pg8000.native
from pg8000.converters import array_out
from pg8000.exceptions import DatabaseError, InterfaceError

from shepherd_core.bmdb import transport
from shepherd_core.bmdb.statements import statements
from shepherd_core.domain.errors.bmdb import (
    BmdbError,
    BmdbUnavailable,
    CommitUnknown,
    SerializationConflict,
    StatementFailed,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from shepherd_core.domain.clock import Clock
    from shepherd_core.settings.functions.bmdb import BmdbSettings

T = TypeVar("T")

ATTEMPTS = 5
"""
Number of tries of a transaction. Each pause is jittered, and may last twice as long as the one before.
"""

_FIRST_PAUSE_SECONDS = 0.05
_CONFLICTS = {"40001", "40P01"}  # serialization failure, deadlock
_TIMESTAMPTZ = 1184  # the number of the type in every PostgreSQL
_UNAVAILABLE_CLASSES = ("08", "53", "57P")  # connection, resources (too many connections, disk full), shutdown


def sanitize_for_db(text: str) -> str:
    """Return *text*, which comes from outside, as the database can store it: UTF-8 without NUL."""
    return text.encode(errors="replace").decode().replace("\0", "?")


class Connection:
    """One connection to the BMDB, opened on demand."""

    def __init__(
        self,
        settings: BmdbSettings,
        password: Callable[[], str] | None,
        clock: Clock,
        authorities: Callable[[], bytes] | None = None,
        attempts: int = ATTEMPTS,
        lock_seconds: float = 0,
    ) -> None:
        """
        Both callables are called for every new connection.

        *password* returns the password or token; None: the server asks for none.
        *authorities* is as in ``transport.dial``. Whatever may be retried is tried
        *attempts* times in all. A statement waits *lock_seconds* for a row that others
        hold, and then fails; 0: no less than for anything else.
        """
        self._settings = settings
        self._password = password
        self._authorities = authorities
        self._clock = clock
        self._attempts = attempts
        self._lock_seconds = lock_seconds
        self._driver: pg8000.native.Connection | None = None
        self._prepared: dict[str, pg8000.native.PreparedStatement] = {}
        self._in_transaction = False

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
                if isinstance(error.__cause__, DatabaseError):
                    raise  # the server said that it did not carry it out
                message = f"the connection to the BMDB broke while {name} was running"
                raise CommitUnknown(message) from error

        return self._persist(once)

    def transact(self, unit: Callable[[], T]) -> T:
        """
        Run *unit*, which calls ``run``, in one transaction, and return its result.

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
                if isinstance(error.__cause__, DatabaseError):
                    raise
                raise CommitUnknown from error
            return result

        return self._persist(once)

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

    def records(self, name: str, /, **parameters: Any) -> list[dict[str, Any]]:
        """Run the statement *name* as ``run`` does, and return each row as a dict by column name."""
        rows = self.run(name, **parameters)
        names = [column["name"] for column in self._prepared[name].columns]
        return [dict(zip(names, row, strict=True)) for row in rows]

    def roll_back(self) -> None:
        """Roll back the transaction; if not even that works, drop the connection."""
        with suppress(BmdbError):
            self._simple("ROLLBACK")

    def close(self) -> None:
        """Drop the connection; the next use opens a new one."""
        driver, self._driver, self._prepared = self._driver, None, {}
        if driver is not None:
            with suppress(InterfaceError, DatabaseError, OSError):
                driver.close()

    def _persist(self, once: Callable[[], T]) -> T:
        """Call *once* until it succeeds, fails for good, or has been tried often enough."""
        for attempt in range(1, self._attempts):
            try:
                return once()
            except (SerializationConflict, BmdbUnavailable):
                longest = _FIRST_PAUSE_SECONDS * 2**attempt
                self._clock.sleep(random.uniform(longest / 4, longest))  # noqa: S311 - jitter, not cryptography
        return once()

    def _send(self, name: str, parameters: dict[str, Any]) -> list[list[Any]]:
        try:
            prepared = self._prepared.get(name)
            if prepared is None:
                prepared = self._prepared[name] = self._connected().prepare(statements()[name])
            return prepared.run(**parameters) or []
        except (InterfaceError, DatabaseError, OSError) as error:
            raise self._translated(error, name) from error

    def _simple(self, text: str) -> None:
        try:
            self._connected().run(text)
        except (InterfaceError, DatabaseError, OSError) as error:
            raise self._translated(error, text.split(maxsplit=1)[0]) from error

    def _translated(self, error: Exception, what: str) -> BmdbError:
        """Return our error for the driver's, and drop the connection unless the server answered over it."""
        if not isinstance(error, DatabaseError):
            self.close()
            return BmdbUnavailable(f"the connection to the BMDB broke ({what}: {error})")
        facts = error.args[0] if error.args and isinstance(error.args[0], dict) else {}
        sqlstate, message = str(facts.get("C", "")), str(facts.get("M", "no reason given"))
        if sqlstate in _CONFLICTS:
            return SerializationConflict(f"{what}: {message}")
        # The schema changed under a warm connection, or the server became a replica: a new connection works again.
        stale = sqlstate == "25006" or (sqlstate == "0A000" and "cached plan" in message)
        if stale or sqlstate.startswith(_UNAVAILABLE_CLASSES):
            self.close()
            return BmdbUnavailable(f"{what}: {message} ({sqlstate})")
        return StatementFailed(f"{what}: {message} ({sqlstate})", sqlstate)

    def _connected(self) -> pg8000.native.Connection:
        if self._driver is None:
            self._driver = self._open()
        return self._driver

    def _open(self) -> pg8000.native.Connection:
        settings = self._settings
        where = f"{settings.bmdb_host}:{settings.bmdb_port}"
        longest = settings.bmdb_statement_timeout_seconds + settings.bmdb_connect_timeout_seconds
        password = "" if self._password is None else self._password()  # None breaks the driver if the server asks
        try:
            sock = transport.dial(settings, self._authorities)
        except OSError as error:
            message = f"cannot connect to the BMDB at {where}: {error}"
            raise BmdbUnavailable(message) from error
        try:
            driver = pg8000.native.Connection(
                settings.bmdb_user,
                database=settings.bmdb_name,
                password=password,
                sock=sock,
                ssl_context=False,  # transport.dial has encrypted the socket if needed
                application_name="shepherd",
                startup_params={
                    # Not a schema of the user's name, which comes first by default: the Migrator makes the tables here.
                    "search_path": "public",
                    "DateStyle": "ISO",  # the only style that ``_moment`` can read
                    "statement_timeout": _milliseconds(settings.bmdb_statement_timeout_seconds),
                    "lock_timeout": _milliseconds(self._lock_seconds),
                    # If a client is cut off inside a transaction, the server would keep its locks for hours. After this
                    # time the client has stopped waiting, too.
                    "idle_in_transaction_session_timeout": _milliseconds(longest),
                    # Our statements read few rows for any parameters, so a new plan for each execution gains nothing.
                    "plan_cache_mode": "force_generic_plan",
                },
            )
        except Exception as error:  # on a malformed answer the driver raises errors of many kinds
            sock.close()
            refusal = _refusal(error)
            if refusal is not None:
                raise self._translated(refusal, f"connecting to {where}") from error
            message = f"cannot connect to the BMDB at {where}: {type(error).__name__}: {error}"
            raise BmdbUnavailable(message) from error
        # The server cancels statements that take too long. This limit is for a server or network that cannot.
        sock.settimeout(longest)
        driver.register_in_adapter(_TIMESTAMPTZ, _moment)
        driver.register_out_adapter(list, _array)
        return driver


def _moment(text: str) -> datetime | str:
    """Return a timestamp as datetime, or infinity as text. The driver's own conversion takes ten times as long."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return text


def _array(values: list[Any]) -> str:
    """Return an array literal for PostgreSQL. The driver's own conversion reads each character of a text four times."""
    if not values or not all(isinstance(value, str) for value in values):
        literal: str = array_out(values)
        return literal
    return "{" + ",".join('"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"' for value in values) + "}"


def _milliseconds(seconds: float) -> str:
    return str(int(seconds * 1000))


def _refusal(error: BaseException | None) -> DatabaseError | None:
    """Return the server's error, which the driver hides if it fails to close the connection after a refusal."""
    while error is not None and not isinstance(error, DatabaseError):
        error = error.__context__
    return error
