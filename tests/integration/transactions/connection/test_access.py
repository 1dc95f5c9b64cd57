import socket
import struct
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import boto3
import pg8000.native
import pytest
from shepherd_core.bmdb.connection import Connection
from shepherd_core.bmdb.wire.driver import TimeLimits
from shepherd_core.domain.errors import ConfigError, SecretMissing, SourceMissing
from shepherd_core.domain.errors.bmdb import BmdbUnavailable, BmdbUntrusted, CommitUnknown, StatementFailed
from shepherd_core.settings.functions.bmdb import BmdbSettings
from shepherd_core.wiring import adapters

from simulator.environment.certificate import Authority
from simulator.environment.postgres import Postgres
from tests.conftest import ManualClock
from tests.support.bmdb.tls_postgres import ADDRESS, PASSWORD, USER, TlsProxy, make_user

LONG = 20
"""Seconds after which a test stops waiting for something that must have ended long before."""


@dataclass
class Server:
    port: int
    authority: Authority

    def settings(self, **changed: object) -> BmdbSettings:
        facts = {"bmdb_host": ADDRESS, "bmdb_port": self.port, "bmdb_name": "postgres", "bmdb_user": USER}
        return BmdbSettings.model_validate({**facts, **changed})

    def connection(
        self,
        clock: ManualClock,
        password: str | None = PASSWORD,
        ca: Path | None = None,
        limits: TimeLimits | None = None,
        **changed: object,
    ) -> Connection:
        """Return a connection of the product that trusts the CA in *ca*, by default the server's own."""
        asked = None if password is None else lambda: password
        authorities = (ca or self.authority.path).read_bytes
        return Connection(self.settings(**changed), asked, clock, authorities, limits=limits or TimeLimits())


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def socket_path(postgres: Postgres) -> Path:
    """Return the Unix socket of the tests' PostgreSQL, which now wants a password of ``USER``."""
    path = Path(postgres.host) / ".s.PGSQL.5432"
    make_user(path)
    with pg8000.native.Connection("postgres", database="postgres", unix_sock=str(path), ssl_context=False) as admin:
        rules = Path(admin.run("SHOW hba_file")[0][0])
        rules.write_text(f"local all {USER} scram-sha-256\n" + rules.read_text())
        admin.run("SELECT pg_reload_conf()")
    end = time.monotonic() + LONG
    while True:
        try:
            pg8000.native.Connection(
                USER, database="postgres", unix_sock=str(path), ssl_context=False, password="wrong"
            ).close()
        except pg8000.native.Error:
            return path
        assert time.monotonic() < end


@pytest.fixture(scope="module")
def server(socket_path: Path, authority: Authority) -> Iterator[Server]:
    with TlsProxy(socket_path, authority.context(ADDRESS)) as proxy:
        yield Server(proxy.port, authority)


def told(error: BaseException) -> str:
    chain: list[BaseException] = []
    found: BaseException | None = error
    while found is not None:
        chain.append(found)
        found = found.__cause__ or found.__context__
    return "".join(traceback.format_exception(error)) + "".join(f"{each!r}{each!s}{vars(each)}" for each in chain)


def in_time(call: Callable[[], object]) -> object:
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(call).result(timeout=LONG)
    finally:
        pool.shutdown(wait=False)


def test_a_server_with_the_right_certificate_and_password_is_used(server: Server, clock: ManualClock) -> None:
    connection = server.connection(clock)
    assert connection.run("now")
    connection.close()


def test_a_server_says_that_it_wants_a_password(server: Server, clock: ManualClock) -> None:
    with pytest.raises(StatementFailed, match="password authentication failed"):
        server.connection(clock, None).run("now")
    assert clock.slept == []


LOCAL = "127.0.0.1"
NO_CERTIFICATE = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"


@pytest.mark.parametrize(
    ("certificate", "changed", "refusal"),
    [
        (None, {"bmdb_host": LOCAL}, None),  # the connection does not leave the machine
        # Every customer of RDS has a certificate of the same CA, but not for the database's name.
        ("127.0.0.3", {}, (BmdbUntrusted, f"cannot prove that it is '{ADDRESS}': .*mismatch")),
        # An attacker could answer "no" in the server's place and would be sent the password.
        (None, {}, (BmdbUntrusted, "does not offer TLS")),
        # Tokens are for remote databases: 127.0.0.1 is a tunnel then, whose other end is unknown.
        (None, {"bmdb_host": LOCAL, "bmdb_auth": "iam"}, (BmdbUntrusted, "does not offer TLS")),
        # For an empty file, Python would use the CAs of the system, which was not asked for.
        (ADDRESS, {"ca": b""}, (ConfigError, "bmdb_ca_source contains")),
        (ADDRESS, {"ca": b"no certificate at all"}, (ConfigError, "bmdb_ca_source contains")),
        (ADDRESS, {"ca": NO_CERTIFICATE}, (ConfigError, "bmdb_ca_source contains")),
    ],
)
def test_a_server_is_used_if_it_proves_who_it_is(
    socket_path: Path,
    authority: Authority,
    clock: ManualClock,
    tmp_path: Path,
    certificate: str | None,
    changed: dict[str, Any],
    refusal: tuple[type[Exception], str] | None,
) -> None:
    if "ca" in changed:
        (tmp_path / "ca.pem").write_bytes(changed["ca"])
        changed = {"ca": tmp_path / "ca.pem"}
    context = None if certificate is None else authority.context(certificate)
    with TlsProxy(socket_path, context, changed.get("bmdb_host", ADDRESS)) as proxy:
        connection = Server(proxy.port, authority).connection(clock, **changed)
        with pytest.raises(refusal[0], match=refusal[1]) if refusal else nullcontext():
            assert connection.run("now")
        connection.close()
    assert clock.slept == []


@pytest.mark.parametrize("of_system", [False, True])
def test_a_certificate_of_another_ca_is_refused(
    server: Server, clock: ManualClock, tmp_path: Path, of_system: bool
) -> None:
    """Anybody can make a certificate with any name in it; no setting means the system's CAs, never no verification."""
    connection = server.connection(clock, ca=Authority(tmp_path).path)
    if of_system:
        connection = Connection(server.settings(), lambda: PASSWORD, clock)
    with pytest.raises(BmdbUntrusted, match=f"{ADDRESS}.*certificate") as caught:
        connection.run("now")
    assert not caught.value.retryable
    assert clock.slept == []
    assert PASSWORD not in told(caught.value)


def test_a_wrong_password_is_refused_and_not_disclosed(server: Server, clock: ManualClock) -> None:
    connection = server.connection(clock, "hunter2")
    with pytest.raises(StatementFailed) as caught:
        connection.run("now")
    assert f'password authentication failed for user "{USER}"' in str(caught.value)
    assert f"connecting to {ADDRESS}:{server.port}" in str(caught.value)
    assert caught.value.sqlstate == "28P01"
    assert clock.slept == []
    assert "hunter2" not in told(caught.value) + repr(connection) + repr(vars(connection))


@pytest.mark.parametrize(
    ("address", "tls", "said"),
    [(ADDRESS, True, "cannot connect to"), (LOCAL, False, "cannot connect to"), (ADDRESS, False, "timed out")],
    ids=["TLS", "no TLS", "asked for TLS"],
)
def test_a_silent_server_fails_at_the_connect_timeout(
    authority: Authority, clock: ManualClock, address: str, tls: bool, said: str
) -> None:
    """A server may accept the connection and hang; that must not use up the invocation's time."""
    with TlsProxy(None, authority.context(ADDRESS) if tls else None, address) as proxy:
        limits = TimeLimits(connect=0.1, statement=10 * LONG)
        connection = Server(proxy.port, authority).connection(clock, limits=limits, bmdb_host=address)
        with pytest.raises(BmdbUnavailable, match=f"the BMDB at {address}:{proxy.port}") as caught:
            in_time(lambda: connection.run("now"))
        assert said in str(caught.value)


def test_a_statement_whose_answer_never_comes_fails(
    socket_path: Path, authority: Authority, clock: ManualClock
) -> None:
    """A server that is gone cannot cancel a statement; the client has to stop waiting."""
    with TlsProxy(socket_path, authority.context(ADDRESS)) as proxy:
        connection = Server(proxy.port, authority).connection(clock, limits=TimeLimits(connect=1, statement=0.2))
        connection.run("now")
        proxy.stall()
        assert proxy.encrypted == 1
        with pytest.raises(CommitUnknown):
            in_time(lambda: connection.run("now"))


def test_a_statement_may_take_longer_than_a_connection(server: Server, clock: ManualClock) -> None:
    """The short limit is for connecting; a claim in a large fleet has the time of its own setting."""
    connection = server.connection(clock, limits=TimeLimits(connect=0.5))
    connection.script("SELECT pg_sleep(0.7)")
    connection.close()


def configure(monkeypatch: pytest.MonkeyPatch, port: int, ca: Path, **more: str) -> None:
    named = {"HOST": ADDRESS, "PORT": str(port), "USER": USER, "CA_SOURCE": str(ca), **more}
    for name, value in named.items():
        monkeypatch.setenv(f"SHEPHERD_BMDB_{name}", value)


@pytest.fixture
def ca(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    copy = tmp_path / "ca.pem"
    copy.write_bytes(server.authority.path.read_bytes())
    configure(monkeypatch, server.port, copy, NAME="postgres")
    adapters.secrets.cache_clear()
    return copy


def test_a_function_reads_password_and_ca_where_its_settings_say(
    ca: Path, aws: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The password is read from SSM; the CA is read once, so that a new connection does not wait for it."""
    boto3.client("ssm").put_parameter(Name="/shepherd/bmdb", Value=PASSWORD, Type="SecureString")
    monkeypatch.setenv("SHEPHERD_BMDB_PASSWORD_PARAMETER", "/shepherd/bmdb")
    connection = adapters.bmdb()
    connection.run("now")
    connection.close()
    ca.unlink()
    connection.run("now")
    connection.close()
    adapters.secrets.cache_clear()
    with pytest.raises(SourceMissing, match=str(ca)):
        adapters.bmdb().run("now")


@pytest.fixture
def tokens(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """Set the environment for a database with IAM authentication that refuses everybody; return the tokens sent."""
    shown: list[bytes] = []
    with socket.create_server((ADDRESS, 0)) as listener:

        def serve() -> None:
            with suppress(OSError):  # closed
                while True:
                    client, _ = listener.accept()
                    client.recv(8, socket.MSG_WAITALL)
                    client.sendall(b"S")
                    with authority.context(ADDRESS).wrap_socket(client, server_side=True) as encrypted:
                        encrypted.read()  # the startup message
                        encrypted.sendall(b"R" + struct.pack("!ii", 8, 3))  # AuthenticationCleartextPassword
                        shown.append(encrypted.read()[5:-1])
                        refusal = b"SFATAL\0VFATAL\0C28000\0MPAM authentication failed\0\0"
                        encrypted.sendall(b"E" + struct.pack("!i", 4 + len(refusal)) + refusal)
                        encrypted.read()

        thread = threading.Thread(target=serve)
        thread.start()
        configure(monkeypatch, listener.getsockname()[1], authority.path, AUTH="iam")
        yield shown
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_with_iam_every_connection_shows_a_token_of_its_own(tokens: list[bytes]) -> None:
    """A token opens connections for 15 minutes, and a function lives longer; it is for one user of one database."""
    connection = adapters.bmdb()
    for _ in range(2):
        with pytest.raises(StatementFailed, match="PAM authentication failed") as caught:
            connection.run("now")
        assert tokens[-1].decode() not in told(caught.value)
    assert len(tokens) == 2
    url = urlsplit("https://" + tokens[0].decode())
    query = parse_qs(url.query)
    assert url.hostname == ADDRESS
    assert url.port is not None
    assert query["DBUser"] == [USER]
    assert query["Action"] == ["connect"]
    assert query["X-Amz-Expires"] == ["900"]
    assert "/eu-central-1/rds-db/aws4_request" in query["X-Amz-Credential"][0]


def test_a_function_without_credentials_cannot_sign_a_token(
    tokens: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name)
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)  # which remembers credentials
    with pytest.raises(SecretMissing, match=f"no token for {USER}@{ADDRESS} could be signed .no credentials"):
        adapters.bmdb().run("now")
    assert tokens == []
