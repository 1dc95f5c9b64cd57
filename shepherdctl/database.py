"""The connection to the BMDB."""

from collections.abc import Iterator
from contextlib import closing, contextmanager

from shepherd_core.bmdb.connection import Connection
from shepherd_core.bmdb.schema import migrate as migrations
from shepherd_core.bmdb.wire.driver import TimeLimits
from shepherd_core.domain.errors.bmdb import StatementFailed
from shepherd_core.settings.functions.bmdb import BmdbSettings
from shepherd_core.wiring import adapters

_UNDEFINED = {"42P01", "42703"}  # table, column


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
    with closing(adapters.bmdb(settings, role=role, limits=limits)) as connection, explain_schema_mismatch(settings):
        yield connection
