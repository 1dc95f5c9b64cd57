"""Connections to an endpoint: kept while the endpoint lets them, and resumed when it does not."""

from __future__ import annotations

import math
import socket
import ssl
import threading
import time
from contextlib import suppress
from http.client import HTTPResponse, IncompleteRead
from queue import Empty, SimpleQueue
from typing import Any

_VERIFY_SECONDS = 86_400
"""How long a connection or a TLS session is used before the certificate is verified again."""


class EndpointConnection:
    """One connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.began_at = self._used_at = time.monotonic()
        self.idle_seconds = 0.0
        """How long it had not been used before it was taken."""

    def exchange(self, request: bytes, end: float, most: int) -> tuple[HTTPResponse, bytes]:
        """
        Send *request* and return the response and its body, of which it reads at most *most* bytes.

        Raises:
            OSError, HTTPException: the connection failed, or there was no complete answer before *end*.
        """
        # The timeout of a socket begins again with each byte. This one does not.
        cut = threading.Timer(max(0.0, end - time.monotonic()), _cut, [self.sock])
        cut.daemon = True
        cut.start()
        try:
            if isinstance(self.sock, ssl.SSLSocket):
                self.sock.do_handshake()  # does nothing if it is done
            self.sock.sendall(request)
            with HTTPResponse(self.sock, method="POST") as response:
                response.begin()
                body = response.read(most)
        finally:
            cut.cancel()
        if time.monotonic() >= end:
            raise TimeoutError("timed out")
        if response.length and len(body) < most:
            raise IncompleteRead(body, response.length)
        self._used_at = time.monotonic()
        return response, body

    def take(self) -> bool:
        """Return whether it can be used again, as far as one can see from here."""
        self.idle_seconds = time.monotonic() - self._used_at
        timeout = self.sock.gettimeout()
        self.sock.settimeout(0)
        try:
            with suppress(BlockingIOError):
                # To TLS, an end without notice may be an attack: if it saw one, it would not resume the session.
                if not socket.socket.recv(self.sock, 1, socket.MSG_PEEK):
                    return False
            self.sock.recv(1)  # the end, or an answer that nothing asked for
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError:
            return False
        finally:
            self.sock.settimeout(timeout)
        return False


class EndpointChannel:
    """The way to one endpoint: the connection that is kept, and the TLS session to resume."""

    def __init__(
        self, host: str, port: int, tls: ssl.SSLContext | None, *, verify_seconds: float = _VERIFY_SECONDS
    ) -> None:
        self._host = host
        self._port = port
        self._tls = tls
        self._verify_seconds = verify_seconds
        self._kept: EndpointConnection | None = None
        self._session: ssl.SSLSession | None = None
        self._verified_at = -math.inf
        self._longest_idle = math.inf
        self._lookup: SimpleQueue[list[Any] | Exception] | None = None

    def kept(self) -> EndpointConnection | None:
        """Return the kept connection if it can be used. The caller passes it to ``keep`` or ``drop``."""
        kept, self._kept = self._kept, None
        if kept is None or (kept.take() and kept.idle_seconds < self._longest_idle and not self._unverified()):
            return kept
        kept.sock.close()
        return None

    def connect(self, end: float) -> EndpointConnection:
        """
        Return a new connection to the first address of the host that takes one before *end*.

        Raises:
            OSError: there is none.
        """
        failure = OSError("the name has no address")
        if self._unverified():
            self._session = None
        for family, kind, protocol, _, address in self._addresses(end):
            sock = socket.socket(family, kind, protocol)
            try:
                # Half of what is left, so that there is time for another address.
                sock.settimeout(max(0.001, (end - time.monotonic()) / 2))
                sock.connect(address)
                sock.settimeout(max(0.001, end - time.monotonic()))
                if self._tls is not None:
                    sock = self._tls.wrap_socket(
                        sock, server_hostname=self._host, session=self._session, do_handshake_on_connect=False
                    )
                return EndpointConnection(sock)
            except OSError as error:
                sock.close()
                failure = error
        raise failure

    def _addresses(self, end: float) -> list[Any]:
        """
        Return the addresses of the host. The resolver has time limits of its own, so that it runs in another thread.

        Raises:
            OSError: there are none, or none were found before *end*. The next call takes what is found later.
        """
        if self._lookup is None:
            lookup: SimpleQueue[list[Any] | Exception] = SimpleQueue()
            threading.Thread(target=_look_up, args=(self._host, self._port, lookup), daemon=True).start()
            self._lookup = lookup
        try:
            found = self._lookup.get(timeout=max(0.001, end - time.monotonic()))
        except Empty:
            raise TimeoutError("timed out") from None
        self._lookup = None
        if isinstance(found, Exception):
            raise found
        return found

    def keep(self, connection: EndpointConnection, *, reusable: bool) -> None:
        """Keep *connection*, which has answered, if it is *reusable*, and its TLS session for a later one."""
        if isinstance(connection.sock, ssl.SSLSocket):
            if not connection.sock.session_reused:
                self._verified_at = connection.began_at
            # With TLS 1.3, the tickets have come with the answer. Each is used once.
            self._session = connection.sock.session
        if reusable:
            self._kept = connection
        else:
            connection.sock.close()

    def drop(self, connection: EndpointConnection) -> None:
        """Close *connection*, which failed; the next one resumes no TLS session."""
        connection.sock.close()
        self._session = None

    def forgotten_after(self, idle_seconds: float) -> None:
        """Use no connection again that was idle for *idle_seconds*: something on the way drops it without notice."""
        self._longest_idle = min(self._longest_idle, idle_seconds)

    def _unverified(self) -> bool:
        return self._tls is not None and time.monotonic() - self._verified_at >= self._verify_seconds

    def close(self) -> None:
        """Close the kept connection."""
        if self._kept is not None:
            self._kept.sock.close()
        self._kept = None


def _look_up(host: str, port: int, answer: SimpleQueue[list[Any] | Exception]) -> None:
    try:
        answer.put(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    except (OSError, ValueError) as error:
        answer.put(error)


def _cut(sock: socket.socket) -> None:
    with suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)  # not the shutdown of TLS, which may wait
