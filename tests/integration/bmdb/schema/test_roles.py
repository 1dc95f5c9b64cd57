import re
from collections.abc import Iterator
from functools import partial

import pg8000.native
import pytest
from pg8000.exceptions import DatabaseError
from shepherd_core.bmdb.statements import statements
from shepherd_core.settings.functions.bmdb import OPERATOR, READER, BmdbSettings
from shepherd_core.settings.functions.specs import LOOPS, ROLES

from shepherdctl.people import Person
from tests.conftest import ManualClock
from tests.integration.bmdb.schema.reachable import definitions, reachable
from tests.support.bmdb.fleet import Fleet, administrator
from tests.support.command_line import every_command

_NOT_PERMITTED = "42501"


def commands_of(person: Person) -> list[str]:
    """Return the full names of a person's commands."""
    found = [each.callback.__wrapped__ for each in every_command().values() if each.person is person]
    return sorted(f"{each.__module__}.{each.__qualname__}" for each in found)


# What of shepherdctl only some commands run; the rest is everybody's.
_OF_COMMANDS = ("shepherdctl.commands.", "shepherdctl.deployment.", "shepherdctl.actions.", "shepherdctl.selection.")

# What builds the function, or for people their commands.
ROOTS = {
    **{loop: [f"shepherd_core.wiring.loops._{loop}"] for loop in LOOPS},
    "agent-api": ["shepherd_core.wiring.agent_endpoint.build"],
    READER: [
        *sorted(each for each in definitions("shepherdctl") if not each.startswith(_OF_COMMANDS)),
        *commands_of(Person.READER),
    ],
    OPERATOR: commands_of(Person.OPERATOR),
}

# What no function runs: the Migrator does.
OF_NO_FUNCTION = {
    "create_schema_migrations",
    "create_schema_lock",
    "fill_schema_lock",
    "take_schema_lock",
    "revocations",
    "record_migration",
}

GRANTED = """
SELECT c.relname, g.privilege_type, NULL
FROM pg_class c, aclexplode(c.relacl) g
WHERE g.grantee = (SELECT oid FROM pg_roles WHERE rolname = :user)
UNION ALL
SELECT c.relname, g.privilege_type, a.attname
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid, aclexplode(a.attacl) g
WHERE g.grantee = (SELECT oid FROM pg_roles WHERE rolname = :user)
"""


def user(role: str) -> str:
    return f"shepherd-{role}"


@pytest.fixture(scope="module")
def granted(shared_database: BmdbSettings) -> Iterator[pg8000.native.Connection]:
    with administrator(shared_database) as admin:
        yield admin


def plan(name: str) -> str:
    """Return SQL that plans a statement; PostgreSQL checks permissions before."""
    return f"EXPLAIN (GENERIC_PLAN) {pg8000.native.to_statement(statements()[name])[0]}"


def refused(admin: pg8000.native.Connection, role: str, text: str, before: str = "SELECT") -> str | None:
    """Return why the role may not run some SQL, after what the administrator does *before*; None: it may."""
    admin.run("BEGIN")
    try:
        admin.run(before)
        admin.run(f'SET LOCAL ROLE "{user(role)}"')
        admin.run(text)
    except DatabaseError as error:
        if error.args[0]["C"] != _NOT_PERMITTED:
            raise
        return str(error.args[0]["M"])
    finally:
        admin.run("ROLLBACK")
    return None


def test_every_role_has_its_functions_and_every_statement_a_function() -> None:
    """A statement that no function here reaches would not be checked for any role."""
    assert set(ROOTS) == set(ROLES)
    run = {name for roots in ROOTS.values() for name in reachable(roots)}
    assert set(statements()) - run == OF_NO_FUNCTION


@pytest.mark.parametrize("role", ROLES)
def test_a_role_may_run_every_statement_of_its_function(granted: pg8000.native.Connection, role: str) -> None:
    """What is missing in roles/grants.sql would fail in AWS, on the day on which the statement's branch is taken."""
    found = {name: refused(granted, role, plan(name)) for name in sorted(reachable(ROOTS[role]))}
    assert {name: reason for name, reason in found.items() if reason} == {}


def likely(table: str, privilege: str, column: str | None, text: str) -> tuple[bool, bool, int]:
    """Return how likely a statement needs a grant: those that do not are planned, which takes long."""
    verbs = {"SELECT": "(FROM|JOIN)", "INSERT": "INTO", "UPDATE": "(UPDATE|INTO)", "DELETE": "DELETE FROM"}
    return re.search(rf"\b{verbs.get(privilege, '')} {table}\b", text) is not None, str(column) in text, -len(text)


@pytest.mark.parametrize("role", ROLES)
def test_a_role_has_no_superfluous_grant(granted: pg8000.native.Connection, role: str) -> None:
    """An attacker in the function has these grants: without each of them, some statement must be refused."""
    texts = [plan(name) for name in reachable(ROOTS[role])]
    grants = granted.run(GRANTED, user=user(role))
    assert grants
    superfluous = []
    for table, privilege, column in grants:
        columns = f" ({column})" if column else ""
        naming = [text for text in texts if re.search(rf"\b{table}\b", text)]
        for text in sorted(naming, key=partial(likely, table, privilege, column), reverse=True):
            if refused(granted, role, text, f'REVOKE {privilege}{columns} ON {table} FROM "{user(role)}"'):
                break
        else:
            superfluous.append(f"{privilege}{columns} ON {table}")
    assert superfluous == []


def test_no_role_owns_or_makes_anything(granted: pg8000.native.Connection) -> None:
    """Nor is one a member of another, whose rights it would have too; readers may see old transactions."""
    powers = "r.rolsuper OR r.rolcreaterole OR r.rolcreatedb OR r.rolreplication OR r.rolbypassrls"
    mighty = f"""
    SELECT r.rolname FROM pg_roles r WHERE r.rolname = ANY(:users) AND (
        {powers}
        OR EXISTS (SELECT 1 FROM pg_class WHERE relowner = r.oid)
    )
    """
    users = [user(role) for role in ROLES]
    assert granted.run(mighty, users=users) == []
    memberships = """
    SELECT m.rolname, g.rolname
    FROM pg_auth_members JOIN pg_roles m ON m.oid = member JOIN pg_roles g ON g.oid = roleid
    WHERE m.rolname = ANY(:users) AND g.rolname <> 'rds_iam' -- a deployment with IAM may share the server
    """
    assert granted.run(memberships, users=users) == [[user(READER), "pg_read_all_stats"]]
    for role in ROLES:
        assert refused(granted, role, "CREATE TABLE mine (x int)") == "permission denied for schema public"


def test_a_reader_changes_nothing(granted: pg8000.native.Connection) -> None:
    assert {privilege for _, privilege, _ in granted.run(GRANTED, user=user(READER))} == {"SELECT"}


ATTACKS = {
    "order an installation": "INSERT INTO machine_os_installation_request (machine_id, generation, "
    "os_installation_request_raw) SELECT machine_id, 1, '' FROM machine_provided",
    "name its own key as an agent's": "UPDATE machine_agent_started SET agent_public_key = '\\x'",
    "give one machine's agent to another": "UPDATE machine_agent_started SET machine_id = gen_random_uuid()",
    "start an agent of its own": "INSERT INTO machine_agent_started SELECT machine_id, now(), '' FROM machine_provided",
    "send Shepherd elsewhere": "UPDATE machine_provided SET provider_ip_address = '192.0.2.66'",
    "have machines lose their agents": "DELETE FROM machine_agent_started",
    "have machines rebooted at once": "UPDATE recovery_policy SET heartbeat_timeout_seconds = 0.001",
    "lift a pause": "DELETE FROM pauses",
    "end a quarantine": "DELETE FROM machine_quarantine",
    "have more machines rebooted": "DELETE FROM machine_rebooted",
    "pin another host key": "UPDATE machine_host_key SET host_key = 'mine'",
    "read host keys": "SELECT host_key FROM machine_host_key",
    "erase the history": "DELETE FROM work_history",
    "read the history": "SELECT 1 FROM work_history",
    "take work over": "UPDATE sessions SET deadline = 'infinity'",
    "forget machines": "DELETE FROM machines",
    "drop the schema": "DROP TABLE work_history",
    "change the schema": "ALTER TABLE work DROP COLUMN process",
    "take rights": "GRANT UPDATE ON pauses TO PUBLIC",
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_the_agent_api_can_record_reports_and_nothing_else(granted: pg8000.native.Connection, attack: str) -> None:
    """It is the function that takes strangers' bytes."""
    reason = refused(granted, "agent-api", ATTACKS[attack])
    assert reason is not None
    assert reason.startswith(("permission denied", "must be owner"))


def test_the_connection_looks_for_tables_where_the_migrator_makes_them(own_fleet: Fleet, clock: ManualClock) -> None:
    """By default, a schema that is named like the user comes first: anyone who can make one could put tables there."""
    own_fleet.sql("CREATE SCHEMA postgres")
    own_fleet.sql("CREATE TABLE postgres.pauses (provider text)")
    connection = own_fleet.connect()
    assert connection.run("pauses_in_force") == []
    assert own_fleet.settings.bmdb_user == "postgres"
    connection.close()
