"""
The socket to the BMDB: a Unix socket, or TCP, which is encrypted and verified unless it stays on this machine.

The TLS handshake of PostgreSQL is done here and not by the driver, so that each
step has a time limit and each refusal its own error message.
"""

from __future__ import annotations

import socket
import ssl
import struct
from typing import TYPE_CHECKING

from shepherd_core.domain.errors import ConfigError
from shepherd_core.domain.errors.bmdb import BmdbUntrusted

if TYPE_CHECKING:
    from collections.abc import Callable

    from shepherd_core.settings.functions.bmdb import BmdbSettings

_LOOPBACK = {"localhost", "127.0.0.1", "::1"}
_TLS_REQUEST = struct.pack("!ii", 8, 80877103)  # its length and its code
_PEM = "-----BEGIN CERTIFICATE-----"


def dial(settings: BmdbSettings, authorities: Callable[[], bytes] | None, seconds: float) -> socket.socket:
    """
    Return a socket that is connected to the database. Each step may take up to *seconds*.

    A password is sent unencrypted only to this machine; a token never is.
    *authorities* returns the PEM certificates of the CAs that may have signed the
    server's certificate; None: the CAs of the system. It is called only if the
    connection is to be encrypted.

    Raises:
        BmdbUntrusted: the server does not offer TLS, or its certificate does not prove that it is the host dialed.
        ConfigError: *authorities* returned no certificate.
        OSError: the server cannot be reached.
    """
    host, local = settings.bmdb_host, settings.bmdb_host.startswith("/")
    sock = _unix_socket(settings, seconds) if local else _tcp_socket(settings, seconds)
    if settings.bmdb_auth == "password" and (local or host in _LOOPBACK):
        return sock
    try:
        return _encrypted(sock, host, _context(authorities))
    except BaseException:
        sock.close()
        raise


def _unix_socket(settings: BmdbSettings, seconds: float) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(seconds)
    try:
        sock.connect(f"{settings.bmdb_host}/.s.PGSQL.{settings.bmdb_port}")
    except OSError:
        sock.close()
        raise
    return sock


def _tcp_socket(settings: BmdbSettings, seconds: float) -> socket.socket:
    sock = socket.create_connection((settings.bmdb_host, settings.bmdb_port), seconds)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # detects quickly that the connection broke while the function was frozen
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))
    return sock


def _encrypted(sock: socket.socket, host: str, context: ssl.SSLContext) -> ssl.SSLSocket:
    sock.sendall(_TLS_REQUEST)
    # Read exactly one byte: an attacker could append unencrypted bytes to the answer.
    answer = sock.recv(1)
    if not answer:
        raise ConnectionResetError("the server closed the connection when it was asked for TLS")
    if answer != b"S":
        raise BmdbUntrusted(f"the server {host!r} does not offer TLS; no password or token is sent without TLS")
    try:
        return context.wrap_socket(sock, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        raise BmdbUntrusted(f"the server cannot prove that it is {host!r}: {error.verify_message}") from error


def _context(authorities: Callable[[], bytes] | None) -> ssl.SSLContext:
    """Return the context that verifies the chain and the host name of the server's certificate."""
    if authorities is None:
        return ssl.create_default_context()
    text = authorities().decode("ascii", "ignore")  # comments may contain any characters
    if _PEM not in text:  # given an empty text, Python would use the CAs of the system
        raise ConfigError([f"the document of bmdb_ca_source contains no PEM certificate: {_PEM} not found"])
    try:
        return ssl.create_default_context(cadata=text)
    except ssl.SSLError as error:
        raise ConfigError([f"the document of bmdb_ca_source contains a broken certificate: {error.reason}"]) from error
