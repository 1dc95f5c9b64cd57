"""The connection to the BMDB."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import Any, Self, TypeVar

from shepherd_core.bmdb.connection import Connection
from shepherd_core.bmdb.schema import migrate as migrations
from shepherd_core.bmdb.statements import changes
from shepherd_core.bmdb.wire import server
from shepherd_core.bmdb.wire.driver import TimeLimits
from shepherd_core.domain.clock import Deadline
from shepherd_core.domain.errors.bmdb import CommitUnknown, StatementFailed
from shepherd_core.settings.functions.bmdb import BmdbSettings
from shepherd_core.wiring import adapters

from shepherdctl import interrupts
from shepherdctl.output.printing import counted

T = TypeVar("T")

_UNDEFINED = {"42P01", "42703"}  # table, column


class Changes:
    """The changes that a command makes in the block of this, and what it says of them if it is interrupted."""

    def __init__(self) -> None:
        """Begin with none."""
        self._block = ExitStack()
        self._made = 0

    def __enter__(self) -> Self:
        interrupts.tell(None)
        return self

    def __exit__(self, *error: object) -> None:
        self._block.close()
        if self._made and error == (None, None, None):
            interrupts.tell(interrupts.DONE)

    def make(self, once: Callable[[], T], connection: Connection) -> T:
        """
        Return the result of *once*, which commits a change of the BMDB.

        A signal cancels it at the server, so that it has committed or never will. After the last change of a command it
        is too late for that: the command prints its result.

        Raises:
            Interrupted: a signal came, and this change was not made.
            ClockDiffers: before the first change; the BMDB's clock differs from ours.
        """
        if not self._made:
            interrupts.tell("nothing was changed")
            server.check_clock(connection, round(server.now(connection).timestamp() * 1000))
            self._block.enter_context(interrupts.completed(connection.cancel))
        interrupts.stop_if_asked()
        try:
            result = once()
        except CommitUnknown:
            raise
        except Exception:
            interrupts.stop_if_asked()  # it may be the cancellation
            raise
        self._made += 1
        committed = counted(self._made, "transaction")
        interrupts.tell(f"{committed} committed, which nothing takes back; the same command does the rest")
        return result


class CommandConnection(Connection):
    """The connection of a command, whose transactions, and statements outside of them, are its *changes*."""

    def __init__(self, changes: Changes, *args: Any) -> None:
        """As ``Connection``."""
        super().__init__(*args)
        self._changes = changes

    def run(self, name: str, /, **parameters: Any) -> list[list[Any]]:
        """Run the statement *name*, as ``Connection.run``."""
        run = partial(super().run, name, **parameters)
        if self._in_transaction:
            interrupts.stop_if_asked()
        elif changes(name):
            return self._changes.make(run, self)
        return run()

    def transact(self, unit: Callable[[], T], deadline: Deadline | None = None) -> T:
        """Run *unit* in one transaction, as ``Connection.transact``."""
        return self._changes.make(partial(super().transact, unit, deadline), self)


@contextmanager
def explain_schema_mismatch(settings: BmdbSettings | None = None) -> Iterator[None]:
    """
    Replace the error about a missing table or column with one that names the cause: the schema's version.

    *settings* are as for ``bmdb``. The version is not checked beforehand, so that operators can still look at machines,
    and pause them, during a deployment.

    Raises:
        SchemaMismatch: this code cannot use the BMDB's schema.
    """
    try:
        yield
    except StatementFailed as error:
        if error.sqlstate not in _UNDEFINED:
            raise
        with closing(adapters.bmdb(settings)) as connection:
            if migrations.is_usable(connection):
                raise
            raise migrations.mismatch(connection) from error


@contextmanager
def bmdb(
    settings: BmdbSettings | None = None, *, role: str | None = None, limits: TimeLimits = adapters.LIMITS
) -> Iterator[Connection]:
    """
    Connect to the BMDB with *role*, else as a reader, by the environment; or by *settings*, which may be a function's.

    Raises:
        ConfigError: the settings are wrong.
        SchemaMismatch: as ``explain_schema_mismatch``.
        BmdbError: as ``Connection``.
    """
    with Changes() as changes:
        connection = adapters.bmdb(settings, role=role, limits=limits, kind=partial(CommandConnection, changes))
        with closing(connection), explain_schema_mismatch(settings):
            yield connection
