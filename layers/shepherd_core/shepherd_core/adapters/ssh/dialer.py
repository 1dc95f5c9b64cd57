"""SSH to the machines: connecting with our key, or with the previous one during a rotation."""

from __future__ import annotations

import errno
import socket
import threading
from typing import TYPE_CHECKING

from shepherd_core import telemetry
from shepherd_core.adapters import ssh_keys
from shepherd_core.adapters.ssh.connection import SshConnection
from shepherd_core.adapters.ssh.messages import text_of
from shepherd_core.adapters.ssh.processes import FORK_SERVER
from shepherd_core.domain.errors import TimeLimitExceeded
from shepherd_core.domain.errors.machine import (
    SshAuthenticationFailed,
    SshForkServerLost,
    SshOutOfResources,
    SshRefused,
    SshTimedOut,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from shepherd_core.domain.clock import Deadline

_OUR_RESOURCES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL}


class SshDialer:
    """Connects to machines with our key; safe to use from several threads."""

    def __init__(
        self,
        private_key: str,
        user: str,
        port: int,
        connect_timeout: float,
        previous_key: Callable[[], str | None] = lambda: None,
    ) -> None:
        """
        Log in as *user* at *port* with *private_key* (see ``ssh_keys``); *connect_timeout* is in seconds.

        *previous_key* returns the key that machines may still have during a rotation;
        it is asked only for a machine that refuses *private_key*, and raises SecretError.

        Raises:
            ConfigError: *private_key* is not a private key.
        """
        ssh_keys.public_line(private_key)
        self._key = private_key
        self._user = user
        self._port = port
        self._connect_timeout = connect_timeout
        self._previous_key = previous_key
        FORK_SERVER.start()  # it takes a second until it is ready

    def wait(self, deadline: Deadline) -> None:
        """
        Wait until processes for machines can be made.

        Raises:
            SshForkServerLost: they cannot.
            TimeLimitExceeded: there is no time.
        """
        try:
            FORK_SERVER.wait(deadline.left(threading.TIMEOUT_MAX))
        except OSError as error:
            raise SshForkServerLost(text_of(error)) from error

    def dial(self, address: str, pinned_host_key: str | None, deadline: Deadline) -> SshConnection:
        """See ``takeover.Dialer``."""
        try:
            return self._dial(address, pinned_host_key, self._key, deadline)
        except SshAuthenticationFailed:
            previous = self._previous_key()
            if previous is None:
                raise
            connection = self._dial(address, pinned_host_key, previous, deadline)
        telemetry.warning("machine has the previous SSH key", address=address)
        return connection

    def _dial(self, address: str, pinned_host_key: str | None, key: str, deadline: Deadline) -> SshConnection:
        peer = f"{address} port {self._port}"
        with self._connect(address, peer, deadline) as machine:
            connection = SshConnection(machine, peer, self._user)
        try:
            connection.exchange_keys(pinned_host_key, deadline)
            connection.log_in(key, deadline)
        except BaseException:
            connection.close()
            raise
        return connection

    def _connect(self, address: str, peer: str, deadline: Deadline) -> socket.socket:
        try:
            seconds = deadline.left(self._connect_timeout)
            sock = socket.create_connection((address, self._port), seconds)
        except TimeLimitExceeded as error:
            raise SshTimedOut(f"no time was left for connecting to {peer}") from error
        except TimeoutError as error:
            raise SshTimedOut(f"connecting to {peer} took longer than {seconds:.3g} s") from error
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno in _OUR_RESOURCES:
                raise SshOutOfResources(f"no connection to {peer} can be made: {text_of(error)}") from error
            raise SshRefused(f"no SSH at {peer}: {text_of(error)}") from error
        sock.settimeout(None)  # the timeout belongs to the open file, which the process will share
        # Small messages, each waiting for the previous answer.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock
