"""
The driver: a connection to the server, the values that it reads and writes, and what its errors mean.

The only module that imports pg8000.
"""

from __future__ import annotations

import struct
import traceback
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime
from secrets import token_hex
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID, SafeUUID

import pg8000.native
from pg8000.converters import array_out
from pg8000.exceptions import DatabaseError, InterfaceError
from pg8000.native import literal

from shepherd_core.bmdb.statements import statements
from shepherd_core.bmdb.wire import transport
from shepherd_core.domain.errors import ConfigError
from shepherd_core.domain.errors.bmdb import (
    BmdbError,
    BmdbUnavailable,
    BmdbUntrusted,
    SerializationConflict,
    StatementFailed,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from shepherd_core.settings.functions.bmdb import BmdbSettings

Driver: TypeAlias = pg8000.native.Connection
Prepared: TypeAlias = pg8000.native.PreparedStatement

FAULTS = (InterfaceError, DatabaseError, OSError)
"""The errors of the driver."""

_CONFLICTS = {"40001", "40P01", "55P03"}  # serialization failure, deadlock, lock not available in time
_TIMESTAMPTZ, _NUMERIC, _UUID = 1184, 1700, 2950  # the numbers of the types in every PostgreSQL
_UNAVAILABLE_CLASSES = ("08", "53", "57P")  # connection, resources (too many connections), shutdown
_CANCEL_REQUEST = 80877102  # its code in the protocol
_NO_SUCH_STATEMENT = "26000"
POOLED = (
    "the pooler in front of the BMDB gives each transaction another connection to the server (transaction pooling): "
    "let it keep one for each client (session pooling), or use the database's own address"
)
"""The message about a pooler that Shepherd cannot use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimits:
    """How long a connection to the BMDB waits, in seconds, and which plans it makes."""

    connect: float = 5
    """For the connection: in a region, a database that has not answered by then is not there."""
    statement: float = 30
    """For one statement; a claim in a fleet of 100,000 machines takes less than one. 0: no limit."""
    lock: float = 0
    """For one lock, behind which others queue meanwhile. 0: as long as the statement."""
    scans: bool = True
    """A plan may read a whole table that has an index, as one does that was made while the table was empty."""


class _NamedStatements(pg8000.native.Connection):  # type: ignore[misc]  # it has no types
    """
    A connection whose prepared statements have names of its own.

    The driver numbers them. Behind a pooler that passes this connection on to another server process, the statement of
    this number would be another client's, and run.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._names = token_hex(8).encode()
        super().__init__(*args, **kwargs)

    def _own(self, name: bytes) -> bytes:
        return name if name == b"\0" else self._names + name  # the first: none, for a statement that runs once

    def send_PARSE(self, name: bytes, *args: Any) -> None:  # noqa: N802 - the driver's name, as the next two
        super().send_PARSE(self._own(name), *args)

    def send_DESCRIBE_STATEMENT(self, name: bytes) -> None:  # noqa: N802
        super().send_DESCRIBE_STATEMENT(self._own(name))

    def send_BIND(self, name: bytes, params: Any) -> None:  # noqa: N802
        super().send_BIND(self._own(name), params)


def connect(
    settings: BmdbSettings, password: str | None, authorities: Callable[[], bytes] | None, limits: TimeLimits
) -> Driver:
    """
    Return a new connection; *password* None: the server asks for none. For *authorities* see ``transport.dial``.

    Raises:
        BmdbUnavailable: the database cannot be reached, or is not available now.
        StatementFailed: the server refused, for example the password.
        BmdbUntrusted: see ``transport.dial``.
        ConfigError: the same, or a pooler does not keep what the connection was told.
    """
    where = f"{settings.bmdb_host}:{settings.bmdb_port}"
    try:
        sock = transport.dial(settings, authorities, limits.connect)
    except OSError as error:
        raise BmdbUnavailable(f"cannot connect to the BMDB at {where}: {error}") from error
    try:
        driver = _NamedStatements(
            settings.bmdb_user,
            database=settings.bmdb_name,
            password=password or "",  # None breaks the driver if the server asks
            sock=sock,  # which it closes if the server refuses
            ssl_context=False,  # transport.dial has encrypted the socket if needed
            application_name="shepherd",
        )
        try:
            _set(driver, limits)
        except Exception:  # the driver's objects know each other: the socket would be open until garbage is collected
            with suppress(*FAULTS):
                driver.close()
            raise
    except ConfigError:
        raise
    except Exception as error:  # on a malformed answer the driver raises errors of many kinds
        let_go(error)
        refusal = _refusal(error)
        if refusal is not None:
            raise meaning(refusal, f"connecting to {where}") from error
        raise BmdbUnavailable(f"cannot connect to the BMDB at {where}: {type(error).__name__}: {error}") from error
    # The server cancels statements that take too long. This limit is for a server or network that cannot.
    sock.settimeout(limits.statement + limits.connect if limits.statement else None)
    driver.register_in_adapter(_TIMESTAMPTZ, _moment)
    driver.register_in_adapter(_UUID, _uuid)
    driver.register_in_adapter(_NUMERIC, int)  # sums of bigint, which may be longer
    driver.register_out_adapter(list, _array)
    return driver


def _set(driver: Driver, limits: TimeLimits) -> None:
    """
    Set what holds for the connection, in one round trip after the login: poolers refuse it in the startup packet.

    Raises:
        ConfigError: a pooler is in between, and does not keep it.
    """
    # If a client is cut off inside a transaction, the server would keep its locks for hours. After the time for idle
    # transactions the client has stopped waiting, too.
    seconds = {":statement": limits.statement, ":lock": limits.lock, ":idle": limits.statement + limits.connect}
    text = statements()["set_up_connection"].replace(":scans", literal(limits.scans))
    for name, value in seconds.items():
        text = text.replace(name, literal(f"{int(value * 1000)}ms"))
    (told,) = driver.run(text)
    logged_in_to = driver._backend_key_data[:4]  # noqa: SLF001 - it is shown nowhere else
    if told[0].to_bytes(4, "big") != logged_in_to and driver.run(statements()["server_process"]) != [told[:2]]:
        raise ConfigError([f"SHEPHERD_BMDB_HOST: {POOLED}"])


def cancel(driver: Driver, settings: BmdbSettings, authorities: Callable[[], bytes] | None, limits: TimeLimits) -> None:
    """Ask the server to end the statement that *driver* waits for. It may have been carried out nevertheless."""
    key = driver._backend_key_data  # noqa: SLF001 - it is shown nowhere else
    with suppress(OSError, BmdbUntrusted), closing(transport.dial(settings, authorities, limits.connect)) as sock:
        sock.sendall(struct.pack("!ii", 8 + len(key), _CANCEL_REQUEST) + key)
        sock.recv(1)  # the server closes the connection when it has passed it on


def meaning(error: Exception, what: str) -> BmdbError:
    """Return our error for one of the driver's; BmdbUnavailable: the connection must not be used any more."""
    if not isinstance(error, DatabaseError):
        return BmdbUnavailable(f"the connection to the BMDB broke ({what}: {error})")
    facts = error.args[0] if error.args and isinstance(error.args[0], dict) else {}
    sqlstate, message = str(facts.get("C", "")), str(facts.get("M", "no reason given"))
    if sqlstate in _CONFLICTS:
        return SerializationConflict(f"{what}: {message}")
    # The schema changed under a warm connection, or the server became a replica: a new connection works again.
    stale = sqlstate == "25006" or (sqlstate == "0A000" and "cached plan" in message)
    if stale or (sqlstate.startswith(_UNAVAILABLE_CLASSES) and sqlstate != StatementFailed.DISK_FULL):
        return BmdbUnavailable(f"{what}: {message} ({sqlstate})")
    if sqlstate == _NO_SUCH_STATEMENT:  # they belong to the server process that prepared them
        message = f"{message}; {POOLED}"
    return StatementFailed(f"{what}: {message} ({sqlstate})", sqlstate)


def let_go(error: BaseException | None) -> None:
    """Clear the frames of the driver's *error*: while it is remembered, the file in them keeps a closed socket open."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__


def is_refusal(error: BmdbError) -> bool:
    """Return whether *error* comes from the server, so that it did not carry out what it was sent."""
    return isinstance(error.__cause__, DatabaseError)


def _moment(text: str) -> datetime | str:
    """Return a timestamp as datetime, or infinity as text. The driver's own conversion takes ten times as long."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return text


def _uuid(text: str) -> UUID:
    """Return an id. The constructor takes twice as long, and a listing has a hundred thousand of them."""
    made: UUID = object.__new__(UUID)
    object.__setattr__(made, "int", int(text.replace("-", ""), 16))
    object.__setattr__(made, "is_safe", SafeUUID.unknown)
    return made


def _array(values: list[Any]) -> str:
    """Return an array literal for PostgreSQL. The driver's own conversion reads each character of a text four times."""
    if not values or not all(isinstance(value, str) for value in values):
        literal: str = array_out(values)
        return literal
    return "{" + ",".join('"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"' for value in values) + "}"


def _refusal(error: BaseException | None) -> DatabaseError | None:
    """Return the server's error, which the driver hides if it fails to close the connection after a refusal."""
    while error is not None and not isinstance(error, DatabaseError):
        error = error.__context__
    return error
