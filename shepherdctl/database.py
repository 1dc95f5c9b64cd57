"""The connection to the BMDB."""

from collections.abc import Iterator
from contextlib import closing, contextmanager

from shepherd_core.bmdb.connection import Connection
from shepherd_core.bmdb.schema import migrate as migrations
from shepherd_core.domain.errors import StatementFailed
from shepherd_core.settings.functions import BmdbSettings
from shepherd_core.wiring import adapters

_NO_SUCH_THING = {"42P01", "42703"}  # table, column


@contextmanager
def schema_named() -> Iterator[None]:
    """
    Let a statement that fails for want of a table or column fail for what is the reason: the schema's version.

    Nothing is asked of the schema as long as all goes well, so that operators can still look at machines, and pause
    them, while a deployment is half done.

    Raises:
        SchemaMismatch: the BMDB is older or newer than this code.
    """
    try:
        yield
    except StatementFailed as error:
        if error.sqlstate not in _NO_SUCH_THING:
            raise
        with closing(adapters.bmdb()) as connection:
            if migrations.schema_version(connection) == migrations.migrations()[-1].version:
                raise
            raise migrations.mismatch(connection) from error


@contextmanager
def bmdb(settings: BmdbSettings | None = None) -> Iterator[Connection]:
    """
    Connect to the BMDB that the environment, or *settings*, name.

    Raises:
        ConfigError: the settings are wrong.
        SchemaMismatch: as ``schema_named``.
        BmdbError: what a Connection raises.
    """
    with closing(adapters.bmdb(settings)) as connection, schema_named():
        yield connection
