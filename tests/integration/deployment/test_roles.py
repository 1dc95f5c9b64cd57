import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from http import HTTPStatus
from typing import Any
from uuid import UUID

import boto3
import pytest
from shepherd_core.agent.endpoint import AgentRequest
from shepherd_core.bmdb.connection import Connection
from shepherd_core.bmdb.schema.make_roles import RoleLogin, make
from shepherd_core.bmdb.schema.migrate import migrate
from shepherd_core.domain.clock import Deadline
from shepherd_core.domain.errors import TimeLimitExceeded
from shepherd_core.domain.errors.bmdb import RolesRefused, StatementFailed
from shepherd_core.settings.functions.services import MigratorSettings
from shepherd_core.settings.functions.specs import ROLES
from shepherd_core.wiring import adapters
from shepherd_core.wiring.adapters import CLOCK

from functions.migrator.app import lambda_handler
from simulator.environment.postgres import Postgres
from simulator.lambda_.environment import Context
from tests.integration.conftest import _VERSION
from tests.support.agents.signed_agent import endpoint
from tests.support.deployment import function_process
from tests.support.waiting import eventually

PARAMETER = "/shepherd/bmdb-password"
OWNERS = "password of the owner"
WRONG_PASSWORD, NOT_PERMITTED = "28P01", "42501"


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with Postgres(_VERSION, password="a-password") as server:
        server.run("ALTER SYSTEM SET fsync = off")
        yield server


class Owner:
    """A database with an owner who is no superuser, and the environment of functions that use it."""

    def __init__(self, server: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server = server
        server.run(f"CREATE ROLE owner LOGIN CREATEROLE PASSWORD '{OWNERS}'")
        self.settings = server.new_database("template1").model_copy(
            update={"bmdb_user": "owner", "bmdb_roles": "here", "bmdb_password_parameter": PARAMETER}
        )
        server.run(f"ALTER DATABASE {self.settings.bmdb_name} OWNER TO owner")
        for name in ("host", "name", "user", "roles", "password_parameter"):
            monkeypatch.setenv(f"SHEPHERD_BMDB_{name.upper()}", str(getattr(self.settings, f"bmdb_{name}")))
        self.ssm = boto3.client("ssm")
        self.ssm.put_parameter(Name=PARAMETER, Value=OWNERS, Type="SecureString")

    def close(self) -> None:
        self.server.drop(self.settings)
        for role in (*(f"here-{role}" for role in ROLES), "owner", "rds_iam"):
            self.server.run(f'DROP ROLE IF EXISTS "{role}"')

    def migrate(self, *, again: bool = False) -> None:
        if not again:
            function_process.end()
        context: Any = Context("a-request", "migrator", CLOCK.monotonic() + 120)
        lambda_handler({"RequestType": "Update"}, context)

    def password(self, role: str) -> str:
        value: str = self.ssm.get_parameter(Name=f"{PARAMETER}-{role}", WithDecryption=True)["Parameter"]["Value"]
        return value

    def connection(self, role: str | None = None, password: str = OWNERS) -> Connection:
        settings = self.settings if role is None else self.settings.of_role(role)
        return Connection(settings, lambda: password, CLOCK)

    def log_in(self, role: str, password: str | None = None) -> Connection:
        connection = self.connection(role, self.password(role) if password is None else password)
        connection.run("applied_migrations")
        return connection

    def all_log_in(self, password: str | None = None) -> None:
        for role in ROLES:
            self.log_in(role, password).close()

    def refuses(self, role: str, password: str) -> bool:
        with pytest.raises(StatementFailed) as caught:
            self.log_in(role, password)
        return caught.value.sqlstate == WRONG_PASSWORD

    def parameters(self) -> list[str]:
        return [each["Name"] for each in self.ssm.describe_parameters()["Parameters"]]


def asked(connection: Connection, text: str) -> list[list[Any]]:
    connection.run("applied_migrations")  # which logs in
    found: list[list[Any]] = connection._connected().run(text)
    connection.close()
    return found


@pytest.fixture
def owner(server: Postgres, aws: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Owner]:
    found = Owner(server, monkeypatch)
    yield found
    function_process.end()
    found.close()


def test_the_migrators_roles_log_in_with_passwords_in_ssm(owner: Owner, caplog: pytest.LogCaptureFixture) -> None:
    """
    Each has its own, and no log has one: anyone who reads a function's log could log in as it.

    Functions and people are told by the type of their settings who they are. The next run keeps the passwords, but for
    one that an operator stored: that is its rotation.
    """
    with caplog.at_level(logging.DEBUG):
        owner.migrate()
    passwords = {role: owner.password(role) for role in ROLES}
    assert len(set(passwords.values())) == len(ROLES)
    owner.all_log_in()
    assert all(owner.refuses(role, "another") for role in ROLES)
    assert not [password for password in (*passwords.values(), OWNERS) if password in caplog.text]
    assert {each["Type"] for each in owner.ssm.describe_parameters()["Parameters"]} == {"SecureString"}
    for connection, user in (
        (adapters.bmdb(), "here-reader"),
        (adapters.bmdb(owner.settings.model_copy()), "here-reader"),
        (adapters.bmdb(MigratorSettings(**owner.settings.model_dump())), "owner"),
        (adapters.bmdb(role="updater"), "here-updater"),
    ):
        assert asked(connection, "SELECT current_user, current_setting('search_path')")[0][0] == user
    owner.ssm.put_parameter(Name=f"{PARAMETER}-updater", Value="chosen", Type="SecureString", Overwrite=True)
    owner.migrate(again=True)
    assert {role: owner.password(role) for role in ROLES} == {**passwords, "updater": "chosen"}
    owner.log_in("updater", "chosen").close()
    assert owner.refuses("updater", passwords["updater"])


def test_the_agent_api_cannot_take_the_last_connection(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Strangers and storms start as many functions as the account allows; the loops must still get in."""
    monkeypatch.setenv("SHEPHERD_AGENT_API_CONCURRENCY", "2")
    owner.migrate()
    taken = [owner.log_in("agent-api") for _ in range(2)]
    api = endpoint(Connection(owner.settings.of_role("agent-api"), lambda: owner.password("agent-api"), CLOCK, None, 1))
    request = AgentRequest("POST", "/heartbeat", {"shepherd-machine": str(UUID(int=1))}, b"", 0)
    refused = api.handle(request)
    assert (refused.status, refused.headers["retry-after"]) == (HTTPStatus.SERVICE_UNAVAILABLE, "10")
    owner.log_in("recoverer").close()
    taken.pop().close()
    eventually(lambda: api.handle(request).status is HTTPStatus.UNAUTHORIZED)
    api.close()
    taken.pop().close()
    monkeypatch.delenv("SHEPHERD_AGENT_API_CONCURRENCY")
    owner.migrate()
    limits = "SELECT rolname, rolconnlimit FROM pg_roles WHERE rolname LIKE 'here-%' AND rolconnlimit <> -1"
    assert asked(owner.connection(), limits) == [["here-agent-api", 50]]


def test_a_run_that_was_killed_is_finished_by_the_next(owner: Owner) -> None:
    """It may leave passwords in SSM that no role has, and roles without a password or grant."""
    done = 2
    for role in ROLES[:done]:
        owner.ssm.put_parameter(Name=f"{PARAMETER}-{role}", Value=f"of {role}", Type="SecureString")
        owner.server.run(f'CREATE ROLE "here-{role}" LOGIN ADMIN owner')
    owner.migrate()
    owner.all_log_in()
    assert [owner.password(role) for role in ROLES[:done]] == [f"of {role}" for role in ROLES[:done]]


def test_runs_at_the_same_time_agree(owner: Owner) -> None:
    """Two stacks may share a database, and a deployment may be repeated while the first one still runs."""
    with closing(owner.connection()) as connection:
        migrate(connection)

    def run(_: int) -> None:
        with closing(owner.connection()) as connection:
            adapters.make_roles(connection)

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(run, range(3)))  # raises what one of them raised
    owner.all_log_in()


def test_what_is_not_granted_any_more_is_taken_back(owner: Owner) -> None:
    """And what somebody granted beside the file; but nothing of an extension's tables, which are not our owner's."""
    owner.migrate()
    other = Connection(owner.server.settings(owner.settings.bmdb_name), owner.server.password, CLOCK)
    for grant in (
        'GRANT SELECT ON work_history TO "here-agent-api"',
        'GRANT UPDATE (agent_public_key) ON machine_agent_started TO "here-agent-api"',
        'GRANT SELECT (reason) ON pauses TO "here-agent-api"',  # the only grant on this table
        "GRANT CREATE ON SCHEMA public TO PUBLIC",
        "CREATE TABLE of_another (x int)",
    ):
        other.transact(partial(other.script, grant))
    other.close()
    owner.migrate()
    api = owner.log_in("agent-api")
    for attack in (
        "SELECT 1 FROM work_history",
        "UPDATE machine_agent_started SET agent_public_key = ''",
        "SELECT reason FROM pauses",
        "CREATE TABLE mine (x int)",
    ):
        with pytest.raises(StatementFailed) as caught:
            api.transact(partial(api.script, attack))
        assert caught.value.sqlstate == NOT_PERMITTED
    api.close()


def test_grants_change_as_a_whole(owner: Owner) -> None:
    owner.migrate()
    logins = {role: RoleLogin(f"here-{role}", lambda: "another") for role in ROLES}

    class Late(Deadline):
        def check(self) -> None:
            owner.log_in("agent-api").close()  # everything is done, and not committed
            raise TimeLimitExceeded

    with pytest.raises(TimeLimitExceeded), closing(owner.connection()) as connection:
        make(connection, logins, Late(CLOCK, 60))
    owner.log_in("agent-api").close()


def test_an_owner_without_createrole_grants_to_existing_roles(owner: Owner) -> None:
    """Their logins are then the business of those who made them."""
    owner.server.run("ALTER ROLE owner NOCREATEROLE")
    with pytest.raises(RolesRefused, match=r"here-provisioner.*does not exist.*docs/how-to/database"):
        owner.migrate()
    for role in ROLES:
        owner.server.run(f"CREATE ROLE \"here-{role}\" LOGIN PASSWORD 'made by hand'")
    owner.migrate()
    owner.all_log_in("made by hand")
    assert owner.parameters() == [PARAMETER]
    owner.server.run('ALTER ROLE owner CREATEROLE; ALTER ROLE "here-updater" SUPERUSER')
    with pytest.raises(RolesRefused, match="permission denied"):
        owner.migrate()


def test_with_iam_the_roles_may_log_in_with_tokens(owner: Owner) -> None:
    """RDS takes a token from members of rds_iam; no password is made."""
    owner.server.run("CREATE ROLE rds_iam ADMIN owner")
    connection = owner.connection()
    migrate(connection)
    make(connection, {role: RoleLogin(f"here-{role}", iam=True) for role in ROLES})
    members = (
        "SELECT m.rolname FROM pg_auth_members a JOIN pg_roles m ON m.oid = a.member "
        "WHERE a.roleid = 'rds_iam'::regrole AND m.rolname <> 'owner' ORDER BY 1"
    )
    assert asked(connection, members) == sorted([f"here-{role}"] for role in ROLES)
    assert owner.parameters() == [PARAMETER]


def test_without_roles_everybody_logs_in_as_the_owner(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """For those who have one user of a database, and may not make another."""
    monkeypatch.delenv("SHEPHERD_BMDB_ROLES")
    owner.migrate()
    assert owner.parameters() == [PARAMETER]
    assert asked(adapters.bmdb(), "SELECT current_user") == [["owner"]]
