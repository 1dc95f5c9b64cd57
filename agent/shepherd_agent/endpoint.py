"""The endpoint that the agent reports to."""

from __future__ import annotations

import ipaddress
import socket
import ssl
import threading
import time
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from . import __version__
from .refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping
    from email.message import Message

_SECONDS = 60.0
_LONGEST_ANSWER = 4 << 20
_HEADERS = {"Content-Type": "application/x-protobuf", "User-Agent": f"shepherd-agent/{__version__}"}


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
    """The endpoint that messages are sent to; uses a new connection for each."""

    def __init__(self, address: str, ca_certificate: bytes, seconds: float = _SECONDS) -> None:
        """
        Prepare to send to *address*: ``host:port``, which means HTTPS, or an https URL, or an http URL of loopback.

        *ca_certificate*, in DER, is the only CA to trust; empty: those of the system. A message may take *seconds*.

        Raises:
            Refusal: the address or the certificate is not valid.
        """
        # Check the address now: after the takeover, Shepherd reads no more errors.
        try:
            parts = urlsplit(address if "://" in address else f"https://{address}")
            self._host, self._port = parts.hostname or "", parts.port
            self._host.encode("idna")
        except ValueError as error:
            raise Refusal(f"the bmaas_endpoint is not an address: {error}") from error
        if not self._host or parts.scheme not in ("http", "https"):
            raise Refusal("the bmaas_endpoint is neither host:port nor an http or https URL")
        if "@" in parts.netloc or parts.query or parts.fragment:
            raise Refusal("the bmaas_endpoint must not have a user, a query or a fragment")
        if not (address.isascii() and address.isprintable()) or " " in address:
            raise Refusal("the bmaas_endpoint has characters that are not valid in an address")
        if parts.scheme == "http" and not _loopback(self._host):
            raise Refusal("the bmaas_endpoint must be https, unless it is on this machine itself")
        self._seconds = seconds
        self._path = parts.path.rstrip("/")
        self._own_ca = bool(ca_certificate)
        self._tls = _tls(ca_certificate) if parts.scheme == "https" else None

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

    def post(self, method: str, message: bytes, headers: Mapping[str, str]) -> Answer:
        """
        Send *message* to *method*, a name below the endpoint's path.

        After the seconds given the connection is cut, however slowly the endpoint takes or gives bytes.

        Raises:
            NotDelivered: the endpoint was not reached, or its answer is not HTTP, too long or not complete in time.
        """
        end = time.monotonic() + self._seconds
        connection = (HTTPSConnection if self._tls else HTTPConnection)(self._host, self._port)
        try:
            connection.sock = sock = self._connect(connection.port, end)
            # The timeout of a socket begins anew with each byte. This one does not.
            cut = threading.Timer(end - time.monotonic(), _cut, [sock])
            cut.daemon = True
            cut.start()
            try:
                if isinstance(sock, ssl.SSLSocket):
                    sock.do_handshake()
                connection.request("POST", self.path(method), message, {**_HEADERS, **headers})
                with connection.getresponse() as response:
                    body = response.read(_LONGEST_ANSWER + 1)
            finally:
                cut.cancel()
            if time.monotonic() >= end:
                raise TimeoutError
        except (OSError, ValueError, HTTPException, RuntimeError) as error:
            late = time.monotonic() >= end
            raise NotDelivered(f"no answer within {self._seconds:g} s" if late else str(error)) from error
        finally:
            connection.close()
        if len(body) > _LONGEST_ANSWER:
            raise NotDelivered(f"the answer is longer than {_LONGEST_ANSWER} bytes", answered=True)
        return Answer(response.status, f"{response.status} {response.reason}", response.headers, body)

    def _connect(self, port: int, end: float) -> socket.socket:
        """Return a connection to the first address of the endpoint that takes one before *end*."""
        failure = OSError("the name has no address")
        for family, kind, protocol, _, address in socket.getaddrinfo(self._host, port, type=socket.SOCK_STREAM):
            sock = socket.socket(family, kind, protocol)
            try:
                # Half of what is left, so that there is time for another address.
                sock.settimeout(max(0.001, (end - time.monotonic()) / 2))
                sock.connect(address)
                sock.settimeout(self._seconds)
                if self._tls is None:
                    return sock
                return self._tls.wrap_socket(sock, server_hostname=self._host, do_handshake_on_connect=False)
            except OSError as error:
                sock.close()
                failure = error
        raise failure


def _cut(sock: socket.socket) -> None:
    with suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)  # not that of TLS, which may wait


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
        raise Refusal(f"the ca_certificate is not a certificate in DER: {error}") from error
    return context
