"""The endpoint that the agent reports to."""

from __future__ import annotations

import ipaddress
import ssl
import time
from http.client import HTTPException
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from ..refusal import AgentRefusal
from .connection import EndpointChannel, EndpointConnection

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from email.message import Message

_SECONDS = 20.0
_LONGEST_ANSWER = 4 << 20
_KEPT_SHARE = 0.5
"""Share of the time for a message that a kept connection gets before a new one is tried."""
_PORTS = {"https": 443, "http": 80}
CONTENT_TYPE = "application/x-protobuf"
"""Without it, API Gateway and Lambda may take the body for text and damage it."""


class NotDelivered(Exception):
    """The endpoint did not accept a message."""

    def __init__(self, reason: str, *, answered: bool = False) -> None:
        """*answered*: the endpoint answered, in HTTP."""
        super().__init__(reason)
        self.answered = answered


class Answer(NamedTuple):
    """The answer of the endpoint."""

    status: int
    reason: str
    """Status code and reason phrase, human-readable."""
    headers: Message
    body: bytes


class Endpoint:
    """
    The endpoint that messages are sent to.

    A connection is used for as many messages as the endpoint lets it. If the endpoint closes it, the next one resumes
    the TLS session.
    """

    def __init__(self, address: str, ca_certificate: bytes, seconds: float = _SECONDS) -> None:
        """
        Prepare to send to *address*: ``host:port``, which means HTTPS, or an https URL, or an http URL of loopback.

        *ca_certificate*, in DER, is the only CA to trust; empty: those of the system. A message may take *seconds*.

        Raises:
            AgentRefusal: the address or the certificate is not valid.
        """
        # Check the address now: after the takeover, Shepherd reads no more errors.
        try:
            parts = urlsplit(address if "://" in address else f"https://{address}")
            self._host, self._port = parts.hostname or "", parts.port
            self._host.encode("idna")
        except ValueError as error:
            raise AgentRefusal(f"the bmaas_endpoint is not an address: {error}") from error
        if not self._host or parts.scheme not in ("http", "https"):
            raise AgentRefusal("the bmaas_endpoint is neither host:port nor an http or https URL")
        if "@" in parts.netloc or parts.query or parts.fragment:
            raise AgentRefusal("the bmaas_endpoint must not have a user, a query or a fragment")
        if not (address.isascii() and address.isprintable()) or " " in address:
            raise AgentRefusal("the bmaas_endpoint has characters that are not valid in an address")
        if parts.scheme == "http" and not _loopback(self._host):
            raise AgentRefusal("the bmaas_endpoint must be https, unless it is on this machine itself")
        self.address = address
        self.seconds = seconds
        usual = _PORTS[parts.scheme]
        self._authority = parts.netloc[: -len(f":{usual}")] if self._port == usual else parts.netloc
        self._path = parts.path.rstrip("/")
        self._own_ca = bool(ca_certificate)
        self._tls = _tls(ca_certificate) if parts.scheme == "https" else None
        self._channel = EndpointChannel(self._host, usual if self._port is None else self._port, self._tls)

    def untimely(self, now: float) -> str:
        """Return why the CA is not valid at *now*, in seconds since the Unix epoch; empty if it is."""
        for ca in self._tls.get_ca_certs() if self._tls else ():
            begin, end = str(ca["notBefore"]), str(ca["notAfter"])
            if self._own_ca and not ssl.cert_time_to_seconds(begin) <= now <= ssl.cert_time_to_seconds(end):
                return f"the ca_certificate is valid from {begin} to {end}"
        return ""

    @property
    def encrypted(self) -> bool:
        """Whether messages go over TLS."""
        return self._tls is not None

    def path(self, method: str) -> str:
        """Return the request path of *method*."""
        return f"{self._path}/{method}"

    def post(self, method: str, message: bytes, headers: Callable[[], Mapping[str, str]]) -> Answer:
        """
        Send *message* to *method*, a name below the endpoint's path.

        It is sent once more if a kept connection turns out to be dead. *headers* returns those of each attempt: the
        first may have arrived, and with the same signature the second would be a replay. When the time for a message is
        over, the connection is cut, even if the endpoint still takes or sends bytes.

        Raises:
            NotDelivered: the endpoint was not reached, or its answer is not HTTP, too long or not complete in time.
        """
        end = time.monotonic() + self.seconds
        try:
            return self._post(method, message, headers, end)
        except (OSError, ValueError, HTTPException, RuntimeError) as error:
            late = time.monotonic() >= end
            raise NotDelivered(f"no answer within {self.seconds:g} s" if late else str(error)) from error

    def close(self) -> None:
        """Close the connection that is kept, if there is one. Messages may still be sent."""
        self._channel.close()

    def _post(self, method: str, message: bytes, headers: Callable[[], Mapping[str, str]], end: float) -> Answer:
        request = self._request(method, message, headers())
        kept, silent = self._channel.kept(), False
        if kept is not None:
            limit = time.monotonic() + self.seconds * _KEPT_SHARE
            try:
                return self._exchange(kept, request, limit)
            except (OSError, HTTPException):
                silent = time.monotonic() >= limit
                request = self._request(method, message, headers())
        answer = self._exchange(self._channel.connect(end), request, end)
        if kept is not None and silent:
            self._channel.forgotten_after(kept.idle_seconds)
        return answer

    def _exchange(self, connection: EndpointConnection, request: bytes, end: float) -> Answer:
        try:
            response, body = connection.exchange(request, end, _LONGEST_ANSWER + 1)
        except BaseException:
            self._channel.drop(connection)
            raise
        if len(body) > _LONGEST_ANSWER:
            self._channel.drop(connection)
            raise NotDelivered(f"the answer is longer than {_LONGEST_ANSWER} bytes", answered=True)
        self._channel.keep(connection, reusable=not response.will_close)
        return Answer(response.status, f"{response.status} {response.reason}", response.headers, body)

    def _request(self, method: str, message: bytes, headers: Mapping[str, str]) -> bytes:
        """Return the request, with only the headers that it needs, to be sent as one TLS record."""
        needed = {"Host": self._authority, "Content-Type": CONTENT_TYPE, "Content-Length": str(len(message))}
        lines = [f"POST {self.path(method)} HTTP/1.1", *(f"{k}: {v}" for k, v in {**needed, **headers}.items())]
        if not all(line.isprintable() for line in lines):
            raise ValueError("a header has characters that are not valid in it")
        return "\r\n".join([*lines, "\r\n"]).encode("ascii") + message


def _loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _tls(ca_certificate: bytes) -> ssl.SSLContext:
    if not ca_certificate:
        return ssl.create_default_context()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_verify_locations(cadata=ca_certificate)
    except ssl.SSLError as error:
        raise AgentRefusal(f"the ca_certificate is not a certificate in DER: {error}") from error
    return context
