"""
Guards the console: only browsers on this computer that were given the token may use it.

All programs and web pages on this computer can reach the port. What keeps them out:

- The token: other web pages; where the server cannot tell whose a connection is, other users.
- The Host header: pages whose name was made to point to this computer (DNS rebinding).
- The Origin header and the cookie's SameSite: requests that another page sends.
- The Content-Security-Policy: scripts that hide in the name of a machine.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, parse_qsl, quote, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

STATIC = "/static/"
"""The prefix of the paths that need no token: they hold no data."""

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True, slots=True)
class Access:
    """The secrets that open the console; each start makes new ones."""

    port: int
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)
    """A part of the address that the command prints."""
    session: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)
    """The value of the cookie."""

    @property
    def address(self) -> str:
        """Return the address without the token."""
        return f"http://127.0.0.1:{self.port}/"

    @property
    def address_with_token(self) -> str:
        """Return the address that opens the page of the fleet."""
        return self.opening("/")

    def opening(self, page: str) -> str:
        """Return the address with the token that opens *page*: its path and query, or its address in any console."""
        path, query = _page(*urlsplit(page)[2:4])
        return f"{self.address}{path[1:]}?{urlencode([*query, ('token', self.token)])}"

    @property
    def hosts(self) -> frozenset[str]:
        """Return the values of the Host header that are accepted."""
        return frozenset({f"127.0.0.1:{self.port}", f"localhost:{self.port}"})

    @property
    def cookie(self) -> str:
        """Return the name of the cookie: browsers share the cookies of all ports of a host."""
        return f"shepherd-console-{self.port}"


class ConsoleGuard:
    """Passes requests to *app* if they are allowed; otherwise *refuse* makes the response."""

    def __init__(self, app: ASGIApp, access: Access, refuse: Callable[[int, str, str], Response]) -> None:
        """*refuse* gets the status, what is wrong, and what to do."""
        self._app = app
        self._access = access
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        app = self._refusal(scope) or self._app
        await app(scope, receive, _with_headers(send))

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        headers, access = Headers(scope=scope), self._access
        if headers.get("host", "") not in access.hosts:
            return self._refuse(421, "This is not the console's address.", f"Open {access.address} instead.")
        origin = headers.get("origin")
        if origin is not None and origin.removeprefix("http://") not in access.hosts:
            return self._refuse(403, "The request comes from another web page.", "Use the console's own pages.")
        token = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True).get("token")
        if token is not None:
            return self._enter(token[-1], scope)
        if scope["path"].startswith(STATIC) or _equal(_cookie(headers, access.cookie), access.session):
            return None
        return self._refuse(
            401,
            "The console does not know this browser, or it was started again.",
            "Open the address that “shepherdctl console” printed when it started; it has a token in it.",
        )

    def _enter(self, token: str, scope: Scope) -> Response:
        if not _equal(token, self._access.token):
            return self._refuse(
                401,
                "The token in this address is not, or no longer, valid.",
                "Each start of “shepherdctl console” makes a new one: open the address that it printed last.",
            )
        # Not a redirect: after a link on another site, a browser would follow it without the cookie.
        path, query = _page(quote(scope["path"]), scope["query_string"].decode("latin-1"))
        response = self._refuse(200, "", path + (f"?{urlencode(query)}" if query else ""))
        response.set_cookie(self._access.cookie, self._access.session, httponly=True, samesite="strict")
        return response


def _page(path: str, query: str) -> tuple[str, list[tuple[str, str]]]:
    """Return a path of this console, whatever *path* is, and the parameters of *query* without a token."""
    return "/" + path.lstrip("/"), [each for each in parse_qsl(query) if each[0] != "token"]


def _equal(text: str, expected: str) -> bool:
    return hmac.compare_digest(text.encode(errors="replace"), expected.encode())


def _cookie(headers: Headers, name: str) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return ""
    return found.value if found else ""


def _with_headers(send: Send) -> Callable[[Message], Awaitable[None]]:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers[name] = value
        await send(message)

    return sending
