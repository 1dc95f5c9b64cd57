import shutil
import subprocess
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pg8000.native
import pytest
from shepherd_core.bmdb.connection import Connection
from shepherd_core.bmdb.machines import pauses
from shepherd_core.bmdb.session import Session
from shepherd_core.bmdb.work import work
from shepherd_core.domain.clock import Deadline
from shepherd_core.domain.errors.bmdb import SessionExpired
from shepherd_core.domain.machine import Process
from shepherd_core.loops.provisioner import Provisioner, RateLimits
from shepherd_core.rules.provisioning import PlanLimits
from shepherd_core.settings.functions.bmdb import BmdbSettings

from simulator.environment.postgres import Postgres
from simulator.temporary_folder import temporary_folder
from tests.conftest import ManualClock
from tests.support.agents.signed_agent import SignedAgent, endpoint
from tests.support.bmdb.fleet import HOUR, Fleet, claimed, ids
from tests.support.bmdb.recovery import OneMachine
from tests.support.providers.fake_provider import Cloud
from tests.support.waiting import eventually

LIMIT = 6


class Standby:
    """A standby that follows *primary* until the way between them breaks."""

    def __init__(self, primary: Postgres, folder: Path) -> None:
        self._primary, self._folder = primary, folder
        self._data = folder / "data"
        self._user = primary.socket.owner()
        shutil.chown(folder, self._user)
        self._call("pg_basebackup", "-h", primary.host, "-U", "postgres", "-D", self._data, "-R", "-c", "fast")
        options = f"-c unix_socket_directories={folder} -c listen_addresses="
        self._call("pg_ctl", "-w", "-D", self._data, "-l", folder / "log", "-o", options, "start")

    def close(self) -> None:
        self._call("pg_ctl", "-w", "-m", "immediate", "-D", self._data, "stop")

    def lose_sight(self) -> None:
        """Break the way to the primary, once everything is here that is there."""
        (last,) = _ask(self._primary.socket, "SELECT pg_current_wal_lsn()::text")
        eventually(lambda: self._told(f"SELECT pg_last_wal_replay_lsn() >= '{last}'"))
        self._told("ALTER SYSTEM SET primary_conninfo = ''")
        self._told("SELECT pg_reload_conf()")
        eventually(lambda: not self._told("SELECT count(*) FROM pg_stat_wal_receiver"))

    def take_over(self, settings: BmdbSettings) -> BmdbSettings:
        assert self._told("SELECT pg_promote()")
        return settings.model_copy(update={"bmdb_host": str(self._folder)})

    def _told(self, statement: str) -> object:
        return (*_ask(self._folder / ".s.PGSQL.5432", statement), None)[0]

    def _call(self, program: str, *arguments: str | Path) -> None:
        with (self._folder / "output").open("ab") as file:  # not a pipe: the server would keep it open
            command = [self._primary.programs / program, *arguments]
            done = subprocess.run(command, check=False, stdout=file, stderr=file, user=self._user, cwd="/")
        assert done.returncode == 0, (self._folder / "output").read_text()


def _ask(socket: Path, statement: str) -> list[object]:
    with pg8000.native.Connection("postgres", database="postgres", unix_sock=str(socket), ssl_context=False) as admin:
        return [value for row in admin.run(statement) or [] for value in row]


@pytest.fixture
def primary() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


@pytest.fixture
def standby(primary: Postgres) -> Iterator[Standby]:
    with temporary_folder("bmdb-") as folder:
        standby = Standby(primary, folder)
        yield standby
        standby.close()


def provision(connection: Connection, cloud: Cloud, clock: ManualClock, limit: int = LIMIT) -> None:
    limits = PlanLimits(max_machines=limit, chunk=20, drift_limit=3, assimilate=False, abandon_seconds=HOUR)
    rates = RateLimits(session_seconds=60, creation_seconds=0, penalty_seconds=HOUR)
    Provisioner(cloud, connection, clock, limits, rates).run(Deadline(clock, 600), "a test")


def test_a_failover_that_loses_commits_repeats_what_it_forgot(
    primary: Postgres, standby: Standby, clock: ManualClock
) -> None:
    """Nothing is exceeded but the budget of recovery, by the steps that were lost; operators' last words are gone."""
    fleet, cloud = Fleet(primary.new_database(), clock), Cloud(2 * LIMIT)
    provision(fleet.connection, cloud, clock, LIMIT - 2)
    recovery = OneMachine(fleet, clock)
    agent = SignedAgent(fleet)
    assert endpoint(fleet.connection).handle(agent.request()).status == HTTPStatus.OK
    fleet.provided_machine()
    standby.lose_sight()

    # What the standby will not know: two creations, a reboot, an agent start, a pause, a session.
    provision(fleet.connection, cloud, clock)
    recovery.run()
    assert recovery.provider.reboots == {recovery.provider_id(recovery.machine): 1}
    session = fleet.open_session()
    (held,) = [each for each in claimed(session, Process.AGENT_START) if each.machine_id != recovery.machine]
    work.finish_agent_start(session, {held: work.AgentStarted(bytes(32), "ssh-ed25519 AAAA")})
    pauses.pause(fleet.connection, owner="ana", reason="repair", machine_id=agent.machine_id)
    unknown = SignedAgent(fleet, held.machine_id)

    late = Fleet(standby.take_over(fleet.settings), clock)
    with pytest.raises(SessionExpired):
        Session(late.connection, clock, session.session_id, 60, clock.monotonic()).renew()
    assert pauses.pauses_in_force(late.connection) == []
    answers = [endpoint(late.connection).handle(each.request()).status for each in (agent, unknown)]
    assert answers == [HTTPStatus.OK, HTTPStatus.UNAUTHORIZED]
    next_session = late.open_session()
    assert held.machine_id in ids(claimed(next_session, Process.AGENT_START))
    next_session.close()
    recovery.fleet = late
    recovery.run()
    assert recovery.provider.reboots == {recovery.provider_id(recovery.machine): 2}, "nobody knows of the first"
    for _ in range(3):
        provision(late.connection, cloud, clock)
        late.pass_time(HOUR)
    assert len(cloud.machines) == LIMIT
    assert late.sql("SELECT count(*) FROM machine_provided WHERE provider = 'cloud'") == [[LIMIT - 2]]
    for each in (fleet, late):
        each.close()
