"""
SSH to the machines; the only module that imports paramiko.

paramiko waits without a limit in several places, and a broken packet can make
it raise any exception. So each step runs under a watchdog that closes the
connection when its time is over, which ends every wait, and each error is raised
as one of ours.
"""

from __future__ import annotations

import base64
import hashlib
import io
import logging
import posixpath
import secrets
import select
import shlex
import socket
import threading
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING

import paramiko
from paramiko.packet import Packetizer
from paramiko.sftp import CMD_EXTENDED

from shepherd_core.agent.takeover import STDERR_BYTES, RunResult, printable
from shepherd_core.domain.clock import SystemClock
from shepherd_core.domain.errors import (
    ConfigError,
    MalformedAnswer,
    ShepherdError,
    SshAuthenticationFailed,
    SshConnectionLost,
    SshError,
    SshHostKeyChanged,
    SshRefused,
    SshTimedOut,
    SshUploadFailed,
    TimeLimitExceeded,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shepherd_core.agent.takeover import AgentBinary
    from shepherd_core.domain.clock import Deadline

HANDSHAKE_SECONDS = 15.0
"""Time limit for the key exchange of a machine that accepts connections, and again for the login."""
STDOUT_BYTES = 1 << 20

# Every sshd that supports our key type (Ed25519) supports one of each, so nothing weaker is offered.
CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes192-ctr", "aes256-ctr")
"""The ciphers that we offer, the cheapest first: AES-GCM needs no MAC."""
MACS = ("hmac-sha2-256", "hmac-sha2-512", "hmac-sha2-256-etm@openssh.com", "hmac-sha2-512-etm@openssh.com")
"""The MACs that we offer. AES-GCM uses none, but paramiko requires one in common."""

_WRITE_BYTES = 32_000  # one request with its header fills one SSH packet of 32 kB; every SFTP server takes it
_LARGE_WRITE_BYTES = 4 * _WRITE_BYTES  # fewer answers; from 128 KiB on malloc asks the kernel for memory for each copy
_READ_BYTES = 65_536
_UNFINISHED = ".shepherd-upload"
_NO_STATUS = -1  # paramiko: ended without an exit status
_GRACE_SECONDS = 1.0  # after the exit status, for output that is still in transit
_POLL_SECONDS = 0.05  # paramiko signals neither an exit status nor space to send
_DETAIL = 200
_RSA = ("rsa-sha2-512", "rsa-sha2-256")  # the algorithms behind a key of type ssh-rsa


class SshDialer:
    """Connects to machines with our key; safe to use from several threads."""

    def __init__(
        self,
        private_key: str,
        user: str,
        port: int,
        connect_timeout: float,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """
        Log in as *user* at *port* with *private_key* (see ``ssh_keys``); *connect_timeout* is in seconds.

        Programs run there get *environment* in addition to the machine's own.

        Raises:
            ConfigError: *private_key* is not a private key.
        """
        # Its log lines repeat errors that it also raises.
        logging.getLogger("paramiko").setLevel(logging.CRITICAL + 1)
        self._key = _load(private_key)
        self._user = user
        self._port = port
        self._connect_timeout = connect_timeout
        self._environment = environment or {}

    def dial(self, address: str, pinned_host_key: str | None, deadline: Deadline) -> SshConnection:
        """See ``takeover.Dialer``."""
        peer = f"{address} port {self._port}"
        connection = SshConnection(self._connect(address, peer, deadline), peer, self._environment)
        try:
            connection.exchange_keys(pinned_host_key, deadline)
            connection.log_in(self._user, self._key, deadline)
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
            raise SshRefused(f"no SSH at {peer}: {_text(error)}") from error
        sock.setsockopt(
            socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
        )  # small messages, each waiting for the previous answer
        return sock


class SshConnection:
    """A connection to one machine; see ``takeover.MachineConnection``."""

    def __init__(self, sock: socket.socket, peer: str, environment: Mapping[str, str]) -> None:
        self.host_key = ""
        self._environment = environment
        self._sock = sock
        self._peer = peer
        self._transport = paramiko.Transport(sock, packetizer_class=_PacketizerWithoutTimer)
        # The watchdog is quicker than these, and its error names the step.
        self._transport.banner_timeout = self._transport.auth_timeout = 2 * HANDSHAKE_SECONDS
        self._channel: paramiko.Channel | None = None
        self._timed_out = False

    def exchange_keys(self, pinned: str | None, deadline: Deadline) -> None:
        """Exchange keys; refuse a machine that does not hold the *pinned* host key."""
        with self._step("exchanging keys with", deadline, HANDSHAKE_SECONDS):
            # A machine has several keys; ask for the pinned one, else for the best.
            options = self._transport.get_security_options()
            options.ciphers, options.digests = CIPHERS, MACS
            kind = (pinned or "ssh-ed25519").split()[0]
            wanted = _RSA if kind == "ssh-rsa" else (kind,)
            options.key_types = sorted(options.key_types, key=lambda offered: offered not in wanted)
            self._transport.start_client()
            key = self._transport.get_remote_server_key()
            self.host_key = f"{key.get_name()} {key.get_base64()}"
            if pinned is not None and pinned.split()[:2] != self.host_key.split():
                got, known = _fingerprint(self.host_key), _fingerprint(pinned)
                raise SshHostKeyChanged(f"{self._peer} has the host key {got}, pinned is {known}")

    def log_in(self, user: str, key: paramiko.PKey, deadline: Deadline) -> None:
        """Authenticate as *user* with *key*."""
        with self._step(f"logging in as {user} at", deadline, HANDSHAKE_SECONDS):
            try:
                missing = self._transport.auth_publickey(user, key)
            except paramiko.AuthenticationException as error:
                if not self._transport.is_active():
                    raise  # paramiko raises this also when the connection broke
                raise SshAuthenticationFailed(f"{self._peer} refuses our key for {user}: {_text(error)}") from error
            if missing:
                more = printable(", ".join(missing), _DETAIL)
                raise SshAuthenticationFailed(f"{self._peer} requires more than our key for {user}: {more}")

    def has(self, path: str, sha256: str, deadline: Deadline) -> bool:
        """See ``takeover.MachineConnection``."""
        try:
            result = self._execute(f"sha256sum {shlex.quote(path)}", b"", f"hashing {path} at", deadline)
        except (SshTimedOut, SshConnectionLost):
            raise
        except (SshError, MalformedAnswer):
            return False
        return result.exit_status == 0 and result.stdout.split()[:1] == [sha256.encode()]

    def upload(self, binary: AgentBinary, path: str, deadline: Deadline) -> None:
        """See ``takeover.MachineConnection``."""
        unfinished = f"{path}.{secrets.token_hex(8)}{_UNFINISHED}"
        with (
            self._step(f"uploading {path} to", deadline, fault=SshUploadFailed),
            closing(self._open_channel()) as channel,
        ):
            channel.invoke_subsystem("sftp")
            sftp = paramiko.SFTPClient(channel)
            _remove_unfinished(sftp, path)
            try:
                _write(sftp, binary, unfinished)
                sftp.chmod(unfinished, 0o755)
                sftp.posix_rename(unfinished, path)
            except BaseException:
                with suppress(Exception):  # the first error counts; the next upload removes the file
                    sftp.remove(unfinished)
                raise

    def run(self, path: str, stdin: bytes, deadline: Deadline) -> RunResult:
        """See ``takeover.MachineConnection``."""
        # Through the shell, since an sshd accepts variables from clients only if configured to.
        variables = [f"{name}={shlex.quote(value)}" for name, value in self._environment.items()]
        return self._execute(" ".join([*variables, shlex.quote(path)]), stdin, f"running {path} at", deadline)

    def close(self) -> None:
        """See ``takeover.MachineConnection``."""
        self._hang_up()
        if self._transport.is_alive():
            self._transport.join(HANDSHAKE_SECONDS)  # it was asked to end, and checks every 0.1 s
        self._sock.close()

    def _execute(self, command: str, stdin: bytes, doing: str, deadline: Deadline) -> RunResult:
        with self._step(doing, deadline), closing(self._open_channel()) as channel:
            channel.exec_command(command)
            result = self._converse(channel, stdin)
            unsure = result.exit_status == _NO_STATUS or not channel.eof_received
            if channel.closed and unsure and self._broken():
                raise EOFError("before the program ended")
            return result

    def _converse(self, channel: paramiko.Channel, stdin: bytes) -> RunResult:
        """Send *stdin* and read both outputs until the program has ended."""
        clock = SystemClock()
        stdout, stderr = bytearray(), b""
        unsent: bytes | None = stdin
        grace_ends: float | None = None
        outputs = select.poll()
        outputs.register(channel, select.POLLIN)
        while True:
            # Checked before reading, so that no output can arrive between the last read and the check.
            ended, complete = channel.exit_status_ready(), channel.eof_received or channel.closed
            if unsent is not None and channel.send_ready():
                unsent = _send(channel, unsent)
            if channel.recv_ready():
                stdout += channel.recv(_READ_BYTES)
            if len(stdout) > STDOUT_BYTES:
                raise MalformedAnswer(f"the program wrote more than {STDOUT_BYTES >> 20} MiB")
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

    def _open_channel(self) -> paramiko.Channel:
        self._channel = self._transport.open_session()
        return self._channel

    @contextmanager
    def _step(
        self, doing: str, deadline: Deadline, at_most: float = float("inf"), fault: type[SshError] = SshError
    ) -> Iterator[None]:
        """Limit a step to *deadline* and *at_most* seconds; raise *fault* if it fails on a working connection."""
        try:
            seconds = deadline.left(at_most)
        except TimeLimitExceeded as error:
            raise SshTimedOut(f"no time was left for {doing} {self._peer}") from error
        done = threading.Event()
        watchdog = threading.Thread(target=self._watch, args=(done, seconds), daemon=True)
        watchdog.start()
        try:
            yield
        except ShepherdError:
            raise
        except Exception as error:
            if self._timed_out:
                raise SshTimedOut(f"{doing} {self._peer} took longer than {seconds:.3g} s") from error
            if self._broken():
                raise SshConnectionLost(f"the connection broke while {doing} {self._peer}: {_text(error)}") from error
            raise fault(f"{doing} {self._peer} failed: {_text(error)}") from error
        finally:
            done.set()
            watchdog.join()

    def _watch(self, done: threading.Event, seconds: float) -> None:
        """Close the connection if the step is not *done* in time; repeatedly, as paramiko may just begin to wait."""
        if not done.wait(seconds):
            self._timed_out = True
            self._hang_up()
            while not done.wait(_POLL_SECONDS):
                self._hang_up()

    def _hang_up(self) -> None:
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)  # wakes threads that wait for the socket; closing it does not
        self._transport.close()
        if self._channel is not None:
            self._channel.event.set()  # a request begun after the channel was lost waits only for this

    def _broken(self) -> bool:
        """Return whether the connection is lost. If it just broke, its thread is about to end."""
        if self._transport.is_alive():
            self._transport.join(4 * _POLL_SECONDS)
        return not self._transport.is_active()


class _PacketizerWithoutTimer(Packetizer):
    def start_handshake(self, timeout: float) -> None:
        """Start no timer: the watchdog limits the time, and the timer's thread would outlive a failed connection."""


def _load(private_key: str) -> paramiko.PKey:
    with suppress(Exception):  # any error: its text may hold parts of the key
        return paramiko.Ed25519Key.from_private_key(io.StringIO(private_key))
    raise ConfigError(["the SSH key is not an Ed25519 private key in OpenSSH form without a passphrase"])


def _remove_unfinished(sftp: paramiko.SFTPClient, path: str) -> None:
    """Remove the files of interrupted uploads, so that they never fill the disk."""
    directory, name = posixpath.split(path)
    with suppress(OSError, UnicodeDecodeError):  # a folder that cannot be listed may be writable
        for entry in sftp.listdir(directory or "."):
            if entry.startswith(f"{name}.") and entry.endswith(_UNFINISHED):
                sftp.remove(posixpath.join(directory, entry))


def _write(sftp: paramiko.SFTPClient, binary: AgentBinary, path: str) -> None:
    """Write *binary* to the new file *path* with pipelined writes, and check the answer to each."""
    size = _write_size(sftp)
    with binary.open() as source, sftp.file(path, "wx") as target:
        target.MAX_REQUEST_SIZE = size
        target.set_pipelined(True)
        chunk = source.read(size)
        while following := source.read(size):
            target.write(chunk)
            chunk = following
        # Closing would drop outstanding answers, errors included; a write that is not pipelined
        # waits for all of them.
        target.set_pipelined(False)
        target.write(chunk)
    written = sftp.stat(path).st_size
    if written != binary.size:
        raise SshUploadFailed(f"{path} was written but is {written} bytes long instead of {binary.size}")


def _write_size(sftp: paramiko.SFTPClient) -> int:
    """Return how many bytes to send in one write."""
    try:
        # paramiko has no public way to ask
        _, limits = sftp._request(CMD_EXTENDED, "limits@openssh.com")  # type: ignore[attr-defined]  # noqa: SLF001
    except (OSError, EOFError, UnicodeDecodeError, paramiko.SFTPError):  # OpenSSH before 8.5 does not support it
        return _WRITE_BYTES
    _packet, _read, write = (limits.get_int64() for _ in range(3))
    return _LARGE_WRITE_BYTES if write >= _LARGE_WRITE_BYTES else _WRITE_BYTES  # 0: no limit given


def _send(channel: paramiko.Channel, data: bytes) -> bytes | None:
    """Send as much as fits; return the rest, or None if the end of input was sent or the program reads no more."""
    try:
        data = data[channel.send(data) :] if data else data
    except OSError:  # closed by the program: its exit status has the result
        return None
    if data:
        return data
    channel.shutdown_write()
    return None


def _fingerprint(host_key: str) -> str:
    """Return the SHA-256 of a host key in OpenSSH's format."""
    digest = hashlib.sha256(base64.b64decode(host_key.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def _text(error: Exception) -> str:
    """Return the text of *error*, or its type; parts of it may come from the machine."""
    text = (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
    if text == "Failure":
        text += " (OpenSSH reports a full disk this way)"
    return printable(text, _DETAIL)
