"""
An SSH client for one connection, for a process of its own; the only module that imports paramiko.

paramiko waits without a limit in several places, reads as much as a machine
announces, and raises any exception if a packet is broken. So the function gives
this process limits and kills it when its time is over, and here sizes and counts
are checked before they are believed.
"""

from __future__ import annotations

import io
import logging
import os
import select
import struct
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import paramiko
from paramiko.common import MSG_CHANNEL_CLOSE, MSG_EXT_INFO
from paramiko.kex_curve25519 import KexCurve25519
from paramiko.packet import Packetizer
from paramiko.ssh_exception import IncompatiblePeer

from shepherd_core.adapters.ssh.messages import DETAIL, STDOUT_BYTES, RequestFailed, SshFailure, text_of
from shepherd_core.agent.takeover import STDERR_BYTES, RunResult, printable
from shepherd_core.domain.clock import SystemClock

if TYPE_CHECKING:
    import socket

PACKET_BYTES = 1 << 18
"""The largest packet that is read, as in OpenSSH."""
BANNER_BYTES = 1 << 16
"""How much may precede the first packet: lines of text, and the version."""

# Every sshd that supports our key type (Ed25519) supports one of each, so nothing weaker is offered.
KEY_EXCHANGES = ("curve25519-sha256", "curve25519-sha256@libssh.org")
"""The key exchange that we offer, by both of its names."""
CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes192-ctr", "aes256-ctr")
"""The ciphers that we offer, the cheapest first: AES-GCM needs no MAC."""
MACS = ("hmac-sha2-256", "hmac-sha2-512", "hmac-sha2-256-etm@openssh.com", "hmac-sha2-512-etm@openssh.com")
"""The MACs that we offer. AES-GCM uses none, but paramiko requires one in common."""

_NEVER = 1e6  # seconds: the function ends what takes too long
_READ_BYTES = 65_536
_SEND_BYTES = 1 << 17
_NO_STATUS = -1  # paramiko: ended without an exit status
_GRACE_SECONDS = 1.0  # after the exit status, for output that is still in transit
_POLL_SECONDS = 0.05  # paramiko does not signal an exit status
_EXTENSION_BYTES = 8  # the shortest: two empty texts
_RSA = ("rsa-sha2-512", "rsa-sha2-256")  # the algorithms behind a key of type ssh-rsa


class ProtocolViolation(paramiko.SSHException):
    """The machine sent what no SSH server sends."""


class Client:
    """A connection to one machine; for one request at a time."""

    def __init__(self, sock: socket.socket) -> None:
        # Its log lines repeat errors that it also raises.
        logging.getLogger("paramiko").setLevel(logging.CRITICAL + 1)
        self._transport = _Transport(sock, packetizer_class=_Packetizer)
        self._packetizer: _Packetizer = self._transport.packetizer  # type: ignore[assignment]  # we gave the class
        self._transport.banner_timeout = self._transport.auth_timeout = _NEVER
        self._channel: paramiko.Channel

    def exchange_keys(self, kind: str) -> str:
        """Exchange keys, and return the machine's host key; of *kind*, such as ``ssh-ed25519``, if it has one."""
        options = self._transport.get_security_options()
        options.ciphers, options.digests = CIPHERS, MACS
        wanted = _RSA if kind == "ssh-rsa" else (kind,)
        options.key_types = sorted(options.key_types, key=lambda offered: offered not in wanted)
        try:
            self._transport.start_client()
            key = self._transport.get_remote_server_key()
        except Exception as error:
            raise self._failed(error) from error
        return f"{key.get_name()} {key.get_base64()}"

    def log_in(self, user: str, private_key: str) -> None:
        """Authenticate as *user* with *private_key*."""
        key = paramiko.Ed25519Key.from_private_key(io.StringIO(private_key))
        try:
            missing = self._transport.auth_publickey(user, key)
        except paramiko.AuthenticationException as error:
            if not self._transport.is_active():  # paramiko raises this also when the connection broke
                raise self._failed(error) from error
            banner = printable((self._transport.get_banner() or b"")[:DETAIL].decode(errors="replace"), DETAIL)
            raise RequestFailed(SshFailure.LOGIN, f"{text_of(error)} {banner}".strip()) from error
        except Exception as error:
            raise self._failed(error) from error
        if missing:
            raise RequestFailed(SshFailure.LOGIN, f"it requires more: {', '.join(missing)}")

    def execute(self, command: str, stdin: int, until: bytes) -> RunResult:
        """
        Run *command*, the only one of this connection; or, if it is empty, go on with it.

        Send the file *stdin*, and return what the command writes up to *until*. Without that, end its input, and wait
        for its end.
        """
        try:
            if command:
                self._channel = self._transport.channel = self._transport.open_session()
                self._channel.exec_command(command)
            channel = self._channel
            threading.Thread(target=_feed, args=(channel, stdin, not until), daemon=True).start()
            result = self._read(channel, until)
        except (RequestFailed, MemoryError):
            raise
        except Exception as error:
            raise self._failed(error) from error
        unsure = result.exit_status == _NO_STATUS or not channel.eof_received
        if channel.closed and unsure and self._broken():
            raise self._failed(EOFError("before the program ended"))
        return result

    def _read(self, channel: paramiko.Channel, until: bytes) -> RunResult:
        """Read both outputs until the program has ended, or has written *until*."""
        clock = SystemClock()
        stdout, stderr = bytearray(), b""
        grace_ends: float | None = None
        outputs = select.poll()
        outputs.register(channel, select.POLLIN)
        while True:
            # Checked before reading, so that no output can arrive between the last read and the check.
            ended, complete = channel.exit_status_ready(), channel.eof_received or channel.closed
            if channel.recv_ready():
                stdout += channel.recv(_READ_BYTES)
            if until and until in stdout:
                return RunResult(bytes(stdout), stderr, _NO_STATUS)
            if len(stdout) > STDOUT_BYTES:
                raise RequestFailed(SshFailure.FLOODED, f"the program wrote more than {STDOUT_BYTES >> 10} KiB")
            if channel.recv_stderr_ready():
                stderr = (stderr + channel.recv_stderr(_READ_BYTES))[-STDERR_BYTES:]
            if ended and grace_ends is None:
                grace_ends = clock.monotonic() + _GRACE_SECONDS
            grace_over = grace_ends is not None and clock.monotonic() > grace_ends
            if channel.recv_ready() or (channel.recv_stderr_ready() and not grace_over):
                continue
            if ended and (complete or grace_over):
                return RunResult(bytes(stdout), stderr, channel.exit_status)
            if channel.eof_received:
                channel.status_event.wait(_POLL_SECONDS)
            else:
                outputs.poll(_POLL_SECONDS * 1_000)

    def _failed(self, error: Exception) -> Exception:
        """Return the error to raise for a request that *error* ended."""
        lost = self._broken()
        error = self._packetizer.refused or self._transport.get_exception() or error  # of the thread that reads
        if isinstance(error, (ProtocolViolation, MemoryError)):
            return error
        lost &= not isinstance(error, IncompatiblePeer)  # it answered: no algorithm is in common
        return RequestFailed(SshFailure.LOST if lost else SshFailure.FAILED, text_of(error))

    def _broken(self) -> bool:
        """Return whether the connection is lost. If it just broke, its thread is about to notice."""
        if self._transport.is_active():
            self._transport.ended.wait(4 * _POLL_SECONDS)
        return not self._transport.is_active()


def _handle_close(channel: paramiko.Channel, message: paramiko.Message) -> None:
    channel.eof_received = True  # a server need not say so before
    channel._handle_close(message)  # type: ignore[attr-defined]  # noqa: SLF001 - as paramiko does


class _Transport(paramiko.Transport):
    """Offers one key exchange, and tells when it has ended."""

    _kex_info: dict[str, Any] = dict.fromkeys(KEY_EXCHANGES, KexCurve25519)
    _preferred_kex = KEY_EXCHANGES
    _channel_handler_table: ClassVar[dict[int, Any]] = {
        **paramiko.Transport._channel_handler_table,  # type: ignore[attr-defined]  # noqa: SLF001 - nothing public
        MSG_CHANNEL_CLOSE: _handle_close,
    }

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.channel: paramiko.Channel | None = None
        self.ended = threading.Event()
        super().__init__(*arguments, **named)

    def run(self) -> None:
        """Read until the connection ends; then wake what waits for an answer, also if it just begins to wait."""
        super().run()
        self.ended.set()
        while True:
            if self.channel is not None:
                self.channel.event.set()
            SystemClock().sleep(_POLL_SECONDS)


class _Packetizer(Packetizer):
    """Reads no packet, banner or list that is larger than any server's, or than what has arrived."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self.refused: ProtocolViolation | None = None
        """Why no more is read; paramiko may hide it behind an error of its own."""
        self._banner_bytes = 0

    def start_handshake(self, timeout: float) -> None:
        """Start no timer: the function limits the time."""

    def read_all(self, n: int, check_rekey: bool = False) -> bytes:  # noqa: FBT001, FBT002 - as paramiko declares it
        """Read *n* bytes of a packet."""
        if n > PACKET_BYTES:
            self._refuse(f"it announced a packet of {n} bytes; at most {PACKET_BYTES} are read")
        return super().read_all(n, check_rekey)

    def read_message(self) -> tuple[int, paramiko.Message]:
        """Read a packet."""
        kind, message = super().read_message()
        if kind == MSG_EXT_INFO:  # paramiko believes the count
            content = message.asbytes()
            (count,) = struct.unpack(">I", content[:4].ljust(4, b"\0"))
            if count * _EXTENSION_BYTES > len(content):
                self._refuse(f"it announced {count} extensions in a packet of {len(content)} bytes")
        return kind, message

    def _read_timeout(self, timeout: float) -> bytes:
        """Read a part of the lines before the first packet."""
        part: bytes = super()._read_timeout(timeout)  # type: ignore[misc]  # not in the stubs
        self._banner_bytes += len(part)
        if self._banner_bytes > BANNER_BYTES:
            self._refuse(f"it wrote more than {BANNER_BYTES >> 10} KiB before its first packet")
        return part

    def _refuse(self, text: str) -> NoReturn:
        self.refused = ProtocolViolation(text)
        raise self.refused


def _feed(channel: paramiko.Channel, stdin: int, last: bool) -> None:  # noqa: FBT001 - for a thread
    """Send the file *stdin* to the program and, if it is the *last*, the end of input."""
    with suppress(OSError), os.fdopen(stdin, "rb", buffering=0) as source:  # a program may read no further
        while data := source.read(_SEND_BYTES):
            channel.sendall(data)
        if last:
            channel.shutdown_write()
