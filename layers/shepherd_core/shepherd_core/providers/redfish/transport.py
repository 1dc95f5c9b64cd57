"""HTTPS to one BMC: one request at a time, each with a time limit, to a verified server only."""

from __future__ import annotations

import json
import ssl
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import urllib3
from urllib3.connectionpool import HTTPSConnectionPool
from urllib3.exceptions import HTTPError, SSLError

from shepherd_core.adapters.http.timed_headers import TimedHTTPSConnection
from shepherd_core.domain.errors import TimeLimitExceeded
from shepherd_core.domain.errors.provider import ProviderRefused, ProviderUnavailable
from shepherd_core.providers.kit.answer import declines, innermost, read
from shepherd_core.providers.redfish.answer import TEXT_LENGTH, BmcAnswer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shepherd_core.domain.clock import Deadline, Permission

ROOT = "/redfish/v1/"
"""The path of a BMC's service root."""

_LONGEST = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class BmcAccess:
    """The address of a BMC, and how it and we authenticate."""

    url: str
    secret: str
    """The name of the secret with our credential."""
    trust: ssl.SSLContext | str
    """The CAs that verify the certificate, or its SHA-256 fingerprint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BmcRequest:
    """A request to a BMC."""

    method: str
    path: str
    """A path, or a URL from the BMC, of which only the path is used: our credential is for this BMC only."""
    data: object = None
    """The body, sent as JSON; None: no body."""
    headers: Mapping[str, str]
    effect: bool = False
    """Whether it changes something, so that it must not be sent after the end of the session."""
    permission: Permission | None = None
    """To interrupt the machine, confirmed when the connection is made; None: the request does not interrupt it."""

    def carrying(self, header: str, value: str) -> BmcRequest:
        """Return a copy with one more header."""
        return replace(self, headers={**self.headers, header: value})


class Transport:
    """
    The transport to the BMC at *bmc_access*, for one operation.

    Each request has a new connection, as in sushy: some BMCs fail with
    connections that stay open. Redirections are not followed; proxy settings
    and ``~/.netrc`` are ignored.
    """

    def __init__(self, bmc_access: BmcAccess, hidden: Callable[[str], str]) -> None:
        """*hidden* removes secrets from a text."""
        self._url = bmc_access.url
        self._hidden = hidden
        self._tls = _tls(bmc_access.trust)
        self.asked = f"the BMC {bmc_access.url}"
        """The last request, as errors name it."""

    def send(self, request: BmcRequest, deadline: Deadline, limit: Deadline) -> BmcAnswer:
        """
        Send a request, once, and return the answer, whatever its status, if it is complete by *limit*.

        Raises:
            ProviderUnavailable: no complete answer; unknown whether the request took effect.
            ProviderRefused: the certificate is not trusted. Nothing was sent.
            TimeLimitExceeded: no time is left. Nothing was sent.
            SessionExpired: *deadline* leaves no time for an effect. Nothing was sent.
            NoLongerDue: the machine must not be interrupted. Nothing was sent.
        """
        parts = urlsplit(request.path)
        path = f"/{parts.path.lstrip('/')}{'?' if parts.query else ''}{parts.query}"
        self.asked = f"the BMC {self._url}: {request.method} {path}"
        headers = {"Accept": "application/json", "OData-Version": "4.0", "Connection": "close", **request.headers}
        body = None
        if request.data is not None:
            headers["Content-Type"] = "application/json"
            body = json.dumps(request.data).encode()
        timeout = urllib3.Timeout(total=limit.left())
        try:
            with urllib3.connection_from_url(self._url, timeout=timeout, retries=False, **self._tls) as pool:
                assert isinstance(pool, HTTPSConnectionPool)  # the machine list allows no other URL
                pool.ConnectionCls = partial(_Connection, partial(_may_send, request, deadline, limit), limit)  # type: ignore[assignment]
                response = pool.request(
                    request.method, path, body=body, headers=headers, redirect=False, preload_content=False
                )
                if request.permission is not None and declines(response.status):
                    request.permission.declined()
                try:
                    content = read(self.asked, response, limit, _LONGEST)
                finally:
                    response.close()
        except HTTPError as error:
            reason = innermost(error)
            untrusted = isinstance(reason, ssl.SSLCertVerificationError | SSLError)
            message = f"{self.asked}: no complete answer: {type(reason).__name__}: {reason}"
            raise (ProviderRefused if untrusted else ProviderUnavailable)(message[: 2 * TEXT_LENGTH]) from error
        return BmcAnswer(response.status, response.headers, content, self._hidden)


def _may_send(request: BmcRequest, deadline: Deadline, limit: Deadline) -> None:
    """Check that *request* may be sent now. Raises as ``Transport.send``."""
    limit.left()
    if request.permission is not None:
        request.permission.confirm()
        if limit.remaining() <= 0:
            request.permission.declined()
            raise TimeLimitExceeded
    elif request.effect:
        deadline.check()


class _Connection(TimedHTTPSConnection):
    """
    A connection that calls *may_send* when it is made, and then sends by *limit*.

    A BMC may take tens of seconds to accept a connection, in which the machine may come back.
    """

    def __init__(self, may_send: Callable[[], None], limit: Deadline, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._may_send = may_send
        self._limit = limit

    def request(self, *args: Any, **options: Any) -> None:
        """Send a request; urllib3 connects before."""
        self._may_send()
        super().request(*args, **options)

    def send(self, data: Any) -> None:
        """Send a part of the request."""
        self.sock.settimeout(self._limit.left())
        super().send(data)


def _tls(trust: ssl.SSLContext | str) -> dict[str, Any]:
    if isinstance(trust, ssl.SSLContext):
        return {"ssl_context": trust}
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # the fingerprint is checked instead, before anything is sent
    return {"ssl_context": context, "cert_reqs": "CERT_NONE", "assert_fingerprint": trust}
