"""Who may read the console, and what a browser may do with its pages."""

import http.client
import os
import socket
from contextlib import closing, suppress
from http.cookiejar import Cookie

import pytest

from shepherdctl.console import server
from shepherdctl.console.guard import Access
from tests.support.bmdb.fleet import Fleet
from tests.support.command_line import CommandLine
from tests.support.console import Visitor, said

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
    assert response.status_code == 401
    assert not visitor.session.cookies
    assert "Each start of “shepherdctl console” makes a new one" in said(response.text)


def test_the_cookie_goes_to_the_console_alone(access: Access) -> None:
    visitor = Visitor(access)
    (cookie,) = visitor.session.cookies
    assert isinstance(cookie, Cookie)
    assert (cookie.name, cookie.path) == (access.cookie, "/")
    assert cookie.has_nonstandard_attr("HttpOnly")
    assert cookie.get_nonstandard_attr("SameSite") == "strict"
    assert cookie.value != access.token


@pytest.mark.parametrize(
    ("headers", "statuses"),
    [
        *(({"Host": own, "Origin": f"http://{own}"}, {200}) for own in ("127.0.0.1:{port}", "localhost:{port}")),
        # A page whose name is made to point to this computer would be of the same origin (DNS rebinding).
        *(
            ({"Host": host}, {400, 421})
            for host in ("evil.example", "127.0.0.1", "evil.example:{port}", "[::1]:{port}", "")
        ),
        *(
            ({"Origin": origin}, {403})
            for origin in ("http://evil.example", "null", "https://127.0.0.1:{port}", "http://127.0.0.1:1")
        ),
    ],
)
def test_only_the_consoles_own_names_are_answered(access: Access, headers: dict[str, str], statuses: set[int]) -> None:
    given = {name: value.format(port=access.port) for name, value in headers.items()}
    cookie = f"{access.cookie}={access.session}"
    response = Visitor(access, enters=False).get("/", Cookie=cookie, **given)
    assert response.status_code in statuses
    assert ("machines" in response.text) is (statuses == {200})


@pytest.mark.parametrize("path", [*PAGES, "/static/console.css"])
@pytest.mark.parametrize("enters", [True, False], ids=["with token", "without"])
def test_every_response_forbids_scripts_of_others(access: Access, path: str, enters: bool) -> None:
    headers = Visitor(access, enters=enters).get(path).headers
    policy = dict(each.split(" ", 1) for each in headers["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["form-action"] == "'self'"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"
    assert headers["Referrer-Policy"] == "no-referrer"


@pytest.mark.parametrize("path", ["/", "/fails", "/machines", "/work"])
def test_a_page_contains_no_inline_script_or_style(access: Access, path: str) -> None:
    page = Visitor(access).read(path)
    assert page.count("<script") == page.count('<script src="/static/console.js" defer></script>') == 1
    assert "<style" not in page
    assert " style=" not in page
    assert " on" not in page.replace(" on ", "").replace(" on\n", "").partition("<body")[0]


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


def test_no_secret_is_printed_with_an_access(access: Access) -> None:
    assert access.token not in repr(access)
    assert access.session not in repr(access)


def test_a_port_that_is_taken_is_named(fleet: Fleet, access: Access) -> None:
    result = CommandLine(fleet.settings)("console", "--no-browser", "--port", str(access.port))
    assert result.exit_code == 1
    assert f"cannot listen on port {access.port} of 127.0.0.1" in result.stderr
