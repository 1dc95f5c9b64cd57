import http.client
import os
import socket
import sys
from contextlib import closing, suppress
from http.cookiejar import Cookie
from pathlib import Path

import pytest

from shepherdctl.console import connection_owner, server
from shepherdctl.console.guard import Access
from tests.support.bmdb.fleet import Fleet
from tests.support.command_line import CommandLine
from tests.support.console import Visitor, said, serving

PAGES = ("/", "/fails", "/machines", "/machines.csv", "/machines.json", "/machines/x", "/work", "/nothing")


@pytest.mark.parametrize("path", PAGES)
def test_no_page_comes_without_the_token(access: Access, path: str) -> None:
    visitor = Visitor(access, enters=False)
    response = visitor.get(path)
    assert response.status_code == 401
    assert "Open the address that “shepherdctl console” printed" in said(response.text)
    visitor.session.cookies.set(access.cookie, "of-another", domain="127.0.0.1", path="/")
    assert visitor.get(path, X_Forwarded_For="127.0.0.1").status_code == 401


@pytest.mark.parametrize("token", ["", "x", "é", "%00", "a" * 32])
def test_a_wrong_token_opens_nothing(access: Access, token: str) -> None:
    """Also one of a console that ran before; the page says what to do."""
    visitor = Visitor(access, enters=False)
    response = visitor.get(f"/?token={token}")
    assert (response.status_code, list(visitor.session.cookies)) == (401, [])
    assert "Each start of “shepherdctl console” makes a new one" in said(response.text)


def test_its_secrets_go_to_the_console_alone(access: Access) -> None:
    (cookie,) = Visitor(access).session.cookies
    assert isinstance(cookie, Cookie)
    assert (cookie.name, cookie.path, cookie.value) == (access.cookie, "/", access.session)
    assert (cookie.has_nonstandard_attr("HttpOnly"), cookie.get_nonstandard_attr("SameSite")) == (True, "strict")
    assert access.token != access.session
    assert [secret for secret in (access.token, access.session) if secret in repr(access)] == []


OWN = ["127.0.0.1:{}", "localhost:{}"]
# A page whose name is made to point to this computer would be of the same origin (DNS rebinding).
FOREIGN = ["evil.example", "127.0.0.1", "evil.example:{}", "[::1]:{}", ""]
OTHER_PAGES = ["http://evil.example", "null", "https://127.0.0.1:{}", "http://127.0.0.1:1"]


@pytest.mark.parametrize(
    ("headers", "statuses"),
    [
        *(({"Host": own, "Origin": f"http://{own}"}, {200}) for own in OWN),
        *(({"Host": host}, {400, 421}) for host in FOREIGN),
        *(({"Origin": origin}, {403}) for origin in OTHER_PAGES),
    ],
)
def test_only_the_consoles_own_names_are_answered(access: Access, headers: dict[str, str], statuses: set[int]) -> None:
    given = {name: value.format(access.port) for name, value in headers.items()}
    response = Visitor(access, enters=False).get("/", Cookie=f"{access.cookie}={access.session}", **given)
    assert response.status_code in statuses
    assert ("machines" in response.text) is (statuses == {200})


@pytest.mark.parametrize("path", [*PAGES, "/static/console.css"])
@pytest.mark.parametrize("enters", [True, False], ids=["with token", "without"])
def test_every_response_forbids_scripts_of_others(access: Access, path: str, enters: bool) -> None:
    headers = Visitor(access, enters=enters).get(path).headers
    policy = dict(each.split(" ", 1) for each in headers["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["form-action"] == "'self'"
    names = ("X-Content-Type-Options", "Cache-Control", "Referrer-Policy")
    assert [headers[name] for name in names] == ["nosniff", "no-store", "no-referrer"]


def test_the_console_listens_on_this_computer_only(access: Access) -> None:
    with socket.socket() as other:
        other.settimeout(5)
        assert other.connect_ex(("127.0.0.2", access.port)) != 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of other users")
def test_another_user_of_this_computer_is_refused_with_every_secret(access: Access) -> None:
    """The token is in the command line of the browser, and browsers send the cookie to every port of this computer."""
    cookie = {"Cookie": f"{access.cookie}={access.session}"}
    connection = http.client.HTTPConnection("127.0.0.1", access.port, timeout=30)
    os.seteuid(65534)  # a socket belongs to who makes it
    try:
        connection.connect()
    finally:
        os.seteuid(0)
    with closing(connection):
        try:
            connection.request("GET", f"/?token={access.token}", headers=cookie)
        except ConnectionError:
            return
        with pytest.raises(ConnectionError):
            connection.getresponse()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_a_connection_belongs_to_its_user_until_it_is_closed() -> None:
    """Who closed it is not known any more, and anybody may have been it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        with socket.create_connection(listening.getsockname()) as client:
            ends = client.getsockname(), listening.getsockname()
            assert connection_owner.user_id(*ends) == os.getuid()
        assert connection_owner.user_id(*ends) == -1


@pytest.mark.parametrize(
    ("before", "half"), [(b"", b""), (b"", b"GET / HTT"), (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"GET / HTT")]
)
def test_half_a_request_is_not_waited_for(
    access: Access, monkeypatch: pytest.MonkeyPatch, before: bytes, half: bytes
) -> None:
    """Programs could use up the console's files."""
    monkeypatch.setattr(server, "_REQUEST_SECONDS", 0.2)
    with socket.create_connection(("127.0.0.1", access.port), timeout=30) as connection, suppress(ConnectionError):
        if before:
            connection.sendall(before)
            connection.recv(1)
        connection.sendall(half)
        while connection.recv(65_536):
            pass


def test_a_program_that_connects_by_ipv6_is_known(access: Access) -> None:
    """The kernel lists its connection elsewhere, under another form of the same address."""
    connection = http.client.HTTPConnection("::ffff:127.0.0.1", access.port, timeout=30)
    cookie = f"{access.cookie}={access.session}"
    connection.request("GET", "/", headers={"Host": f"127.0.0.1:{access.port}", "Cookie": cookie})
    assert connection.getresponse().status == 200
    connection.close()


def test_a_port_that_is_taken_is_named(fleet: Fleet, access: Access) -> None:
    told = CommandLine(fleet.settings).told("console", "--no-browser", "--port", str(access.port), status=1)
    assert f"cannot listen on port {access.port} of 127.0.0.1" in told


@pytest.mark.parametrize(
    ("path", "status", "expected"),
    [
        ("/machines/11111111-1111-4111-8111-111111111111", 404, "There is no such machine."),
        ("/machines/no-such-name", 404, "no machine matches 'no-such-name'"),
        ("/machines/%00", 404, "There is no such machine."),
        ("/machines?state=tired", 400, "state must be one of running, "),
        ("/machines?state=released", 400, "state must be one of running, "),
        ("/machines?provider=none", 400, "provider must be one of "),
        ("/machines?paused=perhaps", 400, "paused must be one of yes, no"),
        ("/machines?paused=yes&paused=no", 400, "paused may be given once"),
        ("/machines?state_older=soon", 400, "state_older: &#39;soon&#39; is not a duration"),
        ("/machines?sort=size", 400, "sort must be one of created"),
        ("/machines?colour=red", 400, "there is no filter &#39;colour&#39;"),
        ("/machines?after=last", 400, "after must be a machine id"),
        ("/machines?text=" + 129 * "x", 400, "text may have 128 characters at most"),
        ("/machines.csv?state=tired", 400, "state must be one of running, "),
        ("/machines/machine-1?days=3", 400, "days must be one of 1, 7, 30"),
        ("/machines?after=ffffffff-ffff-ffff-ffff-ffffffffffff", 404, "There are no machines on this page."),
        ("/nothing", 404, "Not Found"),
        ("/static/../app.py", 404, "Not Found"),
    ],
)
def test_a_wrong_address_tells_why(visitor: Visitor, fleet: Fleet, path: str, status: int, expected: str) -> None:
    """Addresses are sent to colleagues, who have another BMDB or look a week later."""
    fleet.provided_machine()
    response = visitor.get(path)
    assert response.status_code == status
    assert expected.replace("'", "&#39;") in response.text
    assert f"Status {status}" in said(response.text)
    posted = visitor.session.post(visitor.access.address + path.partition("?")[0].lstrip("/"), timeout=30)
    assert posted.status_code in {404, 405}, "it only reads"


def test_a_database_that_is_away_comes_back_by_itself(fleet: Fleet, tmp_path: Path) -> None:
    """The page says what to look at, and is loaded again; the console need not be started again."""
    away = tmp_path / "server"
    with serving(fleet.settings.model_copy(update={"bmdb_host": str(away)})) as access:
        visitor = Visitor(access)
        response = visitor.get("/")
        assert response.status_code == 503
        assert "The BMDB does not answer." in said(response.text)
        assert int(response.headers["Retry-After"]) > 0
        assert '<meta http-equiv="refresh"' in response.text
        away.symlink_to(Path(fleet.settings.bmdb_host))
        assert "There are no machines yet" in visitor.text("/")


def test_a_schema_of_another_version_is_named(own_fleet: Fleet) -> None:
    """During a deployment the console is older or newer for a while."""
    own_fleet.sql("ALTER TABLE ticks RENAME TO moments")
    own_fleet.sql("UPDATE schema_migrations SET version = version + 1000, oldest_code = version + 1000")
    with serving(own_fleet.settings) as access:
        response = Visitor(access).get("/")
        assert response.status_code == 503
        assert "The BMDB and this console are of different versions." in said(response.text)
        own_fleet.sql("ALTER TABLE moments RENAME TO ticks")
        own_fleet.sql("UPDATE schema_migrations SET version = version - 1000, oldest_code = version - 1000")
        assert Visitor(access).get("/").status_code == 200
