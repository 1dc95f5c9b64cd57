"""
The adapters of a function, built from its settings: the BMDB, secrets, documents, SSH.

Libraries that not every function needs are imported when they are used first.
"""

from __future__ import annotations

import ssl
import threading
from functools import cache, partial
from secrets import token_urlsafe
from typing import TYPE_CHECKING

from shepherd_core.adapters.aws.secrets import SsmSecretStore
from shepherd_core.bmdb.connection import ATTEMPTS, Connection
from shepherd_core.bmdb.schema.migrate import LOCK_SECONDS
from shepherd_core.bmdb.wire.driver import TimeLimits
from shepherd_core.domain.clock import SystemClock
from shepherd_core.domain.errors import ConfigError, SourceMissing
from shepherd_core.settings.functions.bmdb import READER, BmdbSettings
from shepherd_core.settings.functions.services import MigratorSettings
from shepherd_core.wiring.settings import bucket_owner, load

if TYPE_CHECKING:
    from collections.abc import Callable

    from shepherd_core.adapters.ssh.connection import SshConnection
    from shepherd_core.adapters.ssh.dialer import SshDialer
    from shepherd_core.domain.clock import Deadline
    from shepherd_core.settings.functions.shared import SshSettings

CLOCK = SystemClock()
"""The clock of every function."""

LIMITS = TimeLimits()
MIGRATION_LIMITS = TimeLimits(statement=240, lock=LOCK_SECONDS)
"""The Migrator's time without the half minute for its answer: no statement of its may outlive it."""


@cache
def secrets() -> SsmSecretStore:
    """Return the store that caches secrets between invocations."""
    return SsmSecretStore()


def uncached() -> SsmSecretStore:
    """Return a store for the Migrator: an operator, or another Migrator, may just have changed something."""
    return SsmSecretStore(max_age_seconds=0)


def read(source: str) -> bytes:
    """Return the document at *source*, as ``adapters.documents.read``."""
    from shepherd_core.adapters import documents  # noqa: PLC0415 - see the module's docstring

    return documents.read(source, bucket_owner=bucket_owner())


def certificate(source: str) -> bytes:
    """
    Return the one PEM certificate at *source* as DER.

    Raises:
        ConfigError: *source* holds something else.
        SourceError: as ``read``.
    """
    try:
        return ssl.PEM_cert_to_DER_cert(read(source).decode("ascii").strip())
    except ValueError as error:
        raise ConfigError([f"{source} does not hold one PEM certificate: {error}"]) from error


def installation_keys(parameter: str) -> tuple[bytes, ...]:
    """
    Return the public keys that installations may be signed with, from the SSM *parameter*; none if it does not exist.

    Raises:
        ConfigError: it holds something else.
        SecretError: it cannot be read.
    """
    from shepherd_core.adapters import ssh_keys  # noqa: PLC0415 - see the module's docstring

    return ssh_keys.public_keys(secrets().find(parameter) or "")


def installation_signer() -> Callable[[bytes], bytes]:
    """
    Return the function that signs installations with the operator's key.

    Raises:
        ConfigError: there is no such key, or it is something else.
        SourceError: it cannot be read.
    """
    from shepherd_core.adapters import ssh_keys  # noqa: PLC0415 - see the module's docstring
    from shepherd_core.settings.deployment import OperatorSettings  # noqa: PLC0415

    source = load(OperatorSettings)[0].installation_key_source
    try:
        return ssh_keys.signer(read(source).decode(errors="replace"))
    except SourceMissing as error:
        remedy = "docs/how-to/install#the-installation-key says how to make it"
        raise ConfigError([f"SHEPHERD_INSTALLATION_KEY_SOURCE: {error}. {remedy}"]) from error


def bmdb(
    settings: BmdbSettings | None = None,
    attempts: int = ATTEMPTS,
    role: str | None = None,
    limits: TimeLimits = LIMITS,
    kind: Callable[..., Connection] = Connection,
) -> Connection:
    """
    Return a connection to the BMDB of *settings*, or of this process's own. It connects when it is first used.

    It logs in with *role*, else with the role of the function that *settings* are for,
    else as a reader.

    Raises:
        ConfigError: the settings are wrong.
    """
    settings = settings or load(BmdbSettings)[0]
    if settings.bmdb_roles is not None and not isinstance(settings, MigratorSettings):
        own = READER if type(settings) is BmdbSettings else settings.table.replace("_", "-")
        settings = settings.of_role(role or own)
    source = settings.bmdb_ca_source
    authorities = None if source is None else cache(partial(read, source))
    return kind(settings, _password(settings), CLOCK, authorities, attempts, limits)


def _password(settings: BmdbSettings) -> Callable[[], str] | None:
    if settings.bmdb_auth == "iam":
        from shepherd_core.adapters.aws.database_token import DatabaseTokens  # noqa: PLC0415 - see the module's docstring

        return DatabaseTokens(settings).make
    parameter = settings.bmdb_password_parameter
    return None if parameter is None else partial(secrets().get, parameter)


def migrator() -> Connection:
    """
    Return a connection to the BMDB as the user that owns the schema.

    Raises:
        ConfigError: the settings are wrong.
    """
    return bmdb(load(MigratorSettings)[0], limits=MIGRATION_LIMITS)


def make_roles(connection: Connection, deadline: Deadline | None = None) -> list[str]:
    """
    Make the roles of the functions if the settings want them, as ``make_roles.make``, and return their names.

    A role's password is in SSM; one that is missing there is generated, if the owner
    may create roles.

    Raises:
        ConfigError: the settings are wrong.
        SecretError: a password cannot be read or created. Call again.
        RolesRefused, BmdbError, TimeLimitExceeded: as ``make_roles.make``.
    """
    from shepherd_core.bmdb.schema.make_roles import RoleLogin, make  # noqa: PLC0415 - only the Migrator needs them
    from shepherd_core.settings.deployment import DeploymentSettings  # noqa: PLC0415
    from shepherd_core.settings.functions.specs import ROLES  # noqa: PLC0415

    (settings,), (deployment,) = load(MigratorSettings), load(DeploymentSettings)
    if settings.bmdb_roles is None:
        return []
    store = uncached()
    logins = {}
    for role in ROLES:
        own = settings.of_role(role)
        parameter = own.bmdb_password_parameter if own.bmdb_auth == "password" else None
        password = None if parameter is None else partial(store.create_once, parameter, partial(token_urlsafe, 32))
        connections = deployment.agent_api_connections if role == "agent-api" else None
        logins[role] = RoleLogin(own.bmdb_user, password, iam=own.bmdb_auth == "iam", connections=connections)
    make(connection, logins, deadline)
    return [login.user for login in logins.values()]


class LazyDialer:
    """A ``takeover.Dialer`` that reads its key at first use: not for a dry run, nor if nothing is due."""

    def __init__(self, settings: SshSettings, connect_seconds: float) -> None:
        """Make the dialer of the Initializer, or of the Recoverer, which uses it to look."""
        self._settings = settings
        self._connect_seconds = connect_seconds
        self._key = ""
        self._dialer: SshDialer | None = None
        self._lock = threading.Lock()

    def dialer(self) -> SshDialer:
        """
        Return the dialer that connects, with the key that is stored now, as far as the cache of secrets knows.

        Raises:
            SecretError: the key cannot be read.
            ConfigError: the secret is not a key.
        """
        settings = self._settings
        with self._lock:
            key = secrets().get(settings.ssh_key_parameter)
            if self._dialer is None or key != self._key:
                from shepherd_core.adapters import ssh_keys  # noqa: PLC0415 - see the module's docstring
                from shepherd_core.adapters.ssh.dialer import SshDialer  # noqa: PLC0415

                self._dialer = SshDialer(
                    key,
                    settings.ssh_user,
                    settings.ssh_port,
                    self._connect_seconds,
                    partial(secrets().find, ssh_keys.previous_parameter(settings.ssh_key_parameter)),
                )
                self._key = key
            return self._dialer

    def wait(self, deadline: Deadline) -> None:
        """Get the key, and wait until machines can be dialed. Raises as ``dialer`` and ``SshDialer.wait``."""
        self.dialer().wait(deadline)

    def dial(self, address: str, pinned_host_key: str | None, deadline: Deadline) -> SshConnection:
        """See ``takeover.Dialer``."""
        return (self._dialer or self.dialer()).dial(address, pinned_host_key, deadline)
