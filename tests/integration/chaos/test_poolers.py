import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from shepherd_core.bmdb.connection import Connection
from shepherd_core.bmdb.schema.migrate import migrate
from shepherd_core.bmdb.wire.driver import TimeLimits
from shepherd_core.domain.errors import ConfigError
from shepherd_core.domain.errors.bmdb import StatementFailed
from shepherd_core.settings.functions.bmdb import BmdbSettings

from simulator.temporary_folder import temporary_folder
from tests.support.bmdb.fleet import Fleet
from tests.support.waiting import eventually

PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
BY_NAME = "transaction pooling"
SETTINGS = "search_path", "statement_timeout", "idle_in_transaction_session_timeout", "plan_cache_mode", "jit"

pytestmark = pytest.mark.skipif(PGBOUNCER is None, reason="pgbouncer is not installed")


@pytest.fixture
def pooler(request: pytest.FixtureRequest, own_fleet: Fleet) -> Iterator[BmdbSettings]:
    """Yield the settings of the fleet's database behind a pgbouncer that has only its pool mode set."""
    assert PGBOUNCER is not None
    own = own_fleet.settings
    owner = Path(own.bmdb_host).stat().st_uid  # that of the server, which is not root either
    with temporary_folder("pooler-") as folder:
        shutil.chown(folder, owner)
        (folder / "pgbouncer.ini").write_text(
            f"[databases]\n{own.bmdb_name} = host={own.bmdb_host} user={own.bmdb_user}\n"
            f"[pgbouncer]\nauth_type = any\nlisten_addr =\nunix_socket_dir = {folder}\npool_mode = {request.param}\n"
        )
        environment = {**os.environ, "TMPDIR": str(folder)}
        with subprocess.Popen([PGBOUNCER, "-q", folder / "pgbouncer.ini"], user=owner, env=environment) as process:
            with socket.socket(socket.AF_UNIX) as probe:
                eventually(lambda: probe.connect_ex(str(folder / ".s.PGSQL.6432")) == 0)
            yield own.model_copy(update={"bmdb_host": str(folder), "bmdb_port": 6432})
            process.kill()


@pytest.fixture
def connect(pooler: BmdbSettings, own_fleet: Fleet) -> Iterator[Callable[[], Connection]]:
    yield lambda: own_fleet.connect(pooler, TimeLimits(statement=7))
    own_fleet.disconnect()


@pytest.mark.parametrize("pooler", ["session"], indirect=True)
def test_the_limits_hold_behind_session_pooling(connect: Callable[[], Connection]) -> None:
    """Also in the second connection to the same server process, which the pooler has reset."""
    for _ in range(2):
        connection = connect()
        migrate(connection)
        ask = ", ".join(f"current_setting('{name}')" for name in SETTINGS)
        driver = connection._connected()
        assert driver.run(f"SELECT {ask}") == [["public", "7s", "12s", "force_generic_plan", "off"]]
        connection.close()


@pytest.mark.parametrize("pooler", ["transaction", "statement"], indirect=True)
def test_a_deployment_behind_transaction_pooling_is_refused(connect: Callable[[], Connection]) -> None:
    with pytest.raises(ConfigError, match=BY_NAME):
        migrate(connect())


@pytest.mark.parametrize("pooler", ["transaction"], indirect=True)
def test_no_connection_runs_the_statement_of_another(connect: Callable[[], Connection]) -> None:
    """Each prepares its first statement in the one server process, and finds another when it is taken."""
    one, other = connect(), connect()
    one.run("now")
    other.run("read_only")

    def with_the_process_taken() -> None:
        other.run("server_process")
        with pytest.raises(StatementFailed, match=f"now: prepared statement .* does not exist.*{BY_NAME}"):
            one.run("now")

    other.transact(with_the_process_taken)


@pytest.mark.parametrize("pooler", ["transaction\nserver_round_robin = 1"], indirect=True)
def test_a_connection_whose_settings_are_lost_is_refused(connect: Callable[[], Connection]) -> None:
    """Each transaction gets the next of two server processes."""
    one, other = connect(), connect()
    one.run("now")
    one.transact(lambda: other.run("now"))
    with pytest.raises(ConfigError, match=BY_NAME):
        connect().run("now")
