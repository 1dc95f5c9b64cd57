"""The server that the agent reports to."""

from __future__ import annotations

import ssl
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import urlsplit

from . import __version__
from .refusal import Refusal

_SECONDS = 30
_LONGEST_ANSWER = 1 << 20
_HEADERS = {"Content-Type": "application/x-protobuf", "User-Agent": f"shepherd-agent/{__version__}"}


class NotDelivered(Exception):
    """The endpoint did not take a message."""


class Endpoint:
    """Where messages are delivered; keeps no connection open between them."""

    def __init__(self, address: str, ca_certificate: bytes) -> None:
        """
        Prepare to deliver to *address*: ``host:port``, which means HTTPS, or an http or https URL.

        *ca_certificate*, in DER, is the only CA to trust; empty: those of the system.

        Raises:
            Refusal: the address or the certificate cannot be used.
        """
        # What makes an address useless must come to light now, not when nobody listens any more.
        try:
            parts = urlsplit(address if "://" in address else f"https://{address}")
            self._host, self._port = parts.hostname or "", parts.port
            self._host.encode("idna")
        except ValueError as error:
            raise Refusal(f"the bmaas_endpoint is no address: {error}") from error
        if not self._host or parts.scheme not in ("http", "https"):
            raise Refusal("the bmaas_endpoint is neither host:port nor an http or https URL")
        if "@" in parts.netloc or parts.query or parts.fragment:
            raise Refusal("the bmaas_endpoint has a user, a query or a fragment")
        if not (address.isascii() and address.isprintable()) or " " in address:
            raise Refusal("the bmaas_endpoint has characters that no address has")
        self._path = parts.path.rstrip("/")
        self._tls = _tls(ca_certificate) if parts.scheme == "https" else None

    @property
    def encrypted(self) -> bool:
        """Whether messages go over TLS."""
        return self._tls is not None

    def deliver(self, method: str, message: bytes) -> None:
        """
        Send *message* to *method*, a name below the endpoint's path. Takes no longer than a minute or so.

        Raises:
            NotDelivered: the endpoint was not reached or did not accept it.
        """
        connection = (
            HTTPSConnection(self._host, self._port, timeout=_SECONDS, context=self._tls)
            if self._tls
            else HTTPConnection(self._host, self._port, timeout=_SECONDS)
        )
        try:
            connection.request("POST", f"{self._path}/{method}", message, _HEADERS)
            response = connection.getresponse()
            response.read(_LONGEST_ANSWER)
        except (OSError, HTTPException) as error:
            raise NotDelivered(str(error)) from error
        finally:
            connection.close()
        if response.status // 100 != 2:  # noqa: PLR2004 - 2xx: accepted
            raise NotDelivered(f"{response.status} {response.reason}")


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
