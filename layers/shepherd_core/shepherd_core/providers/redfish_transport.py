"""HTTPS to one BMC: one request at a time, each bounded, to whom we mean and to nobody else."""

from __future__ import annotations

import json
import ssl
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import urllib3
from urllib3.exceptions import HTTPError, SSLError

from shepherd_core.errors import ProviderRefused, ProviderUnavailable
from shepherd_core.providers.redfish_answer import TEXT_LENGTH, Answer, read

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shepherd_core.clock import Deadline


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """Where one BMC is reached, and how it and we prove who we are."""

    url: str
    secret: str
    """Name of the secret that holds our credential."""
    trust: ssl.SSLContext | str
    """What the certificate is verified against: CAs, or the SHA-256 fingerprint of the certificate itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked of a BMC."""

    method: str
    path: str
    """A path, or a URL that the BMC named, of which only the path is used: our credential is for this BMC."""
    data: object = None
    """What is sent as JSON, if anything."""
    headers: Mapping[str, str]
    effect: bool = False
    """Whether it changes something, so that it must not be sent any more when the session is over."""

    def carrying(self, header: str, value: str) -> Request:
        """Return it with one more header."""
        return replace(self, headers={**self.headers, header: value})


class Transport:
    """
    The way to the BMC behind *door*, for one piece of work.

    Each request has a connection of its own, as in sushy: some BMCs choke on
    connections that stay open. Redirections are not followed, and neither
    proxies nor ``~/.netrc`` looked at.
    """

    def __init__(self, door: Door, hidden: Callable[[str], str]) -> None:
        """*hidden* returns a text without what is secret."""
        self._url = door.url
        self._hidden = hidden
        self._pool = _pool(door.trust)
        self.asked = f"the BMC {door.url}"
        """What was asked for last, as errors name it."""

    def close(self) -> None:
        """Leave nothing open."""
        self._pool.clear()

    def send(self, request: Request, deadline: Deadline, limit: Deadline) -> Answer:
        """
        Send a request, once, and return the answer, whatever it is, if it is whole by *limit*.

        Raises:
            ProviderUnavailable: no whole answer; unknown whether it was done.
            ProviderRefused: the certificate is not the one that we trust. Nothing was sent.
            TimeLimitExceeded: no time is left. Nothing was sent.
            SessionExpired: by *deadline*, it is too late for an effect. Nothing was sent.
        """
        parts = urlsplit(request.path)
        path = f"/{parts.path.lstrip('/')}{'?' if parts.query else ''}{parts.query}"
        self.asked = f"the BMC {self._url}: {request.method} {path}"
        headers = {"Accept": "application/json", "OData-Version": "4.0", "Connection": "close", **request.headers}
        body = None
        if request.data is not None:
            headers["Content-Type"] = "application/json"
            body = json.dumps(request.data).encode()
        if request.effect:
            deadline.check()
        try:
            response = self._pool.request(
                request.method,
                self._url + path,
                body=body,
                headers=headers,
                timeout=urllib3.Timeout(total=limit.left()),
                retries=False,
                redirect=False,
                preload_content=False,
            )
            try:
                content = read(self.asked, response, limit)
            finally:
                response.close()
        except HTTPError as error:
            reason = _innermost(error)
            untrusted = isinstance(reason, ssl.SSLCertVerificationError | SSLError)
            message = f"{self.asked}: no complete answer: {type(reason).__name__}: {reason}"
            raise (ProviderRefused if untrusted else ProviderUnavailable)(message[: 2 * TEXT_LENGTH]) from error
        return Answer(response.status, response.headers, content, self._hidden)


def _innermost(error: BaseException) -> BaseException:
    """Return the reason at the bottom: what is wrapped around it says the same at length."""
    while (reason := error.__cause__ or error.__context__) is not None:
        error = reason
    return error


def _pool(trust: ssl.SSLContext | str) -> urllib3.PoolManager:
    if isinstance(trust, ssl.SSLContext):
        return urllib3.PoolManager(ssl_context=trust)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # the fingerprint is compared instead, before anything is sent
    return urllib3.PoolManager(ssl_context=context, cert_reqs="CERT_NONE", assert_fingerprint=trust)
