"""
The roles of the functions: a database user for each, which may do what the statements of its function need.

``roles/grants.sql`` has the grants. Each run takes back what was granted and
grants it again, so that what a statement no longer needs is taken away. The
user of *connection* owns the schema. If it may not create roles, they must be
there: then it only grants.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import b64encode
from dataclasses import dataclass
from functools import partial
from importlib import resources
from secrets import token_bytes
from typing import TYPE_CHECKING

from shepherd_core.domain.errors.bmdb import RolesRefused, StatementFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shepherd_core.bmdb.connection import Connection
    from shepherd_core.domain.clock import Deadline

_NOT_PERMITTED = "42501"
_EXISTS = {"42710", "23505"}  # the second if a concurrent run made it just now
_NO_ROLE = "42704"
_ITERATIONS = 4096  # PostgreSQL's own default


@dataclass(frozen=True, slots=True)
class RoleLogin:
    """The user and password with which a role logs in."""

    user: str
    password: Callable[[], str] | None = None
    """Asked only if this user may create roles. None: the database asks for none, or an IAM token takes its place."""
    iam: bool = False
    connections: int | None = None
    """How many connections it may have at once; None: as it is."""


def make(connection: Connection, logins: Mapping[str, RoleLogin], deadline: Deadline | None = None) -> None:
    """
    Make the roles that are missing, set their passwords, and grant each what its function needs; nothing else.

    *logins* has a login for each role in ``roles/grants.sql``. May be run at any time,
    concurrently, and again after it was killed: passwords and grants of all roles
    change in one transaction. After *deadline* nothing is committed any more.

    Raises:
        RolesRefused: the user may neither make the roles nor find them, or may not change or grant them.
        ShepherdError: what a password raises.
        TimeLimitExceeded: the deadline passed. Call again.
    """
    may_create = all(_create(connection, login) for login in logins.values())
    changes = [change for login in logins.values() for change in _login_changes(login)] if may_create else []
    grants = _text("grants", **{role.replace("-", "_"): f'"{login.user}"' for role, login in logins.items()})

    def once() -> None:
        connection.run("take_schema_lock")
        revocations = connection.fetch(str, "revocations", users=[login.user for login in logins.values()])
        for change in [*changes, *revocations, grants]:
            connection.script(change)
        if deadline is not None:
            deadline.check()

    try:
        connection.transact(once, deadline)
    except StatementFailed as error:
        if error.sqlstate not in (_NOT_PERMITTED, _NO_ROLE):
            raise
        message = (
            f"the roles of the functions could not be made and granted ({error}): let the user that owns the schema "
            "create roles, or create them for it; docs/how-to/database says how"
        )
        raise RolesRefused(message) from error


def _create(connection: Connection, login: RoleLogin) -> bool:
    """Create a role if it is not there, and return whether this user may."""
    try:
        connection.transact(partial(connection.script, _text("create", user=login.user)))
    except StatementFailed as error:
        if error.sqlstate not in {*_EXISTS, _NOT_PERMITTED}:
            raise
        return error.sqlstate != _NOT_PERMITTED
    return True


def _login_changes(login: RoleLogin) -> list[str]:
    changes = []
    if login.connections is not None:
        changes.append(_text("limit", user=login.user, connections=str(login.connections)))
    if login.iam:
        changes.append(_text("iam", user=login.user))
    elif login.password is not None:
        changes.append(_text("password", user=login.user, verifier=_verifier(login.password())))
    return changes


def _verifier(password: str) -> str:
    """Return what PostgreSQL stores of a password (SCRAM-SHA-256), so that the password is not sent, nor logged."""
    salt = token_bytes(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, _ITERATIONS)
    client, server = (hmac.digest(salted, key, "sha256") for key in (b"Client Key", b"Server Key"))
    parts = (b64encode(each).decode() for each in (salt, hashlib.sha256(client).digest(), server))
    return "SCRAM-SHA-256${}:{}${}:{}".format(_ITERATIONS, *parts)


def _text(name: str, **values: str) -> str:
    """Return the SQL in a file with *values* put into its braces. None of them may hold a quote."""
    text = (resources.files(__package__) / "roles" / f"{name}.sql").read_text(encoding="utf-8")
    return re.sub(r"\{(\w+)\}", lambda match: values[match[1]], text)
