import logging
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing

import asyncssh
import pytest
from shepherd_core.adapters import ssh_keys
from shepherd_core.adapters.ssh.connection import SshConnection
from shepherd_core.adapters.ssh.dialer import SshDialer
from shepherd_core.domain.clock import Deadline, SystemClock
from shepherd_core.domain.errors import ConfigError, Fault
from shepherd_core.domain.errors.kinds import FailureKind
from shepherd_core.domain.errors.machine import (
    SshAuthenticationFailed,
    SshConnectionLost,
    SshError,
    SshHostKeyChanged,
    SshOutOfResources,
    SshRefused,
    SshTimedOut,
)

from tests.conftest import ManualClock
from tests.support.agents.ssh_server import KEY, SshServer, soon

BEGIN, *_, END = KEY.splitlines()


@pytest.fixture
def stranger() -> Iterator[Callable[..., int]]:
    """Return a function that makes a server that says so much and then nothing, or hangs up, and returns its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connections = []

        def accept(words: bytes, *, hang_up: bool) -> None:
            connection, _ = listener.accept()
            connections.append(connection)
            connection.sendall(words)
            if hang_up:
                connection.shutdown(socket.SHUT_WR)

        def serve(words: bytes, *, hang_up: bool = False) -> int:
            threading.Thread(target=accept, args=(words,), kwargs={"hang_up": hang_up}, daemon=True).start()
            return int(listener.getsockname()[1])

        yield serve
        for connection in connections:
            connection.close()


def dial(
    port: int, pinned: str | None = None, key: str = KEY, at: str = "127.0.0.1", within: Deadline | None = None
) -> SshConnection:
    return SshDialer(key, "root", port, connect_timeout=2).dial(at, pinned, within or Deadline(SystemClock(), 60))


def test_first_contact_learns_the_host_key(server: SshServer) -> None:
    """It is what the caller pins; the machine is known again, also if its key was stored with a comment."""
    for pinned in (None, server.public_host_keys[0] + " root@machine"):
        with closing(dial(server.port, pinned)) as connection:
            assert [connection.host_key] == server.public_host_keys
    assert server.logins == ["root"] * 2
    connection.close()  # a cleanup need not know whether the connection was closed before


def test_changed_host_key_stops_before_authentication(server: SshServer) -> None:
    """An impostor must learn nothing, not even which user and key we log in with."""
    pinned = ssh_keys.public_line(ssh_keys.generate())
    with pytest.raises(SshHostKeyChanged) as caught:
        dial(server.port, pinned)
    fingerprints = [asyncssh.import_public_key(line).get_fingerprint() for line in (pinned, *server.public_host_keys)]
    assert all(fingerprint in str(caught.value) for fingerprint in fingerprints)
    assert server.logins == []


def test_machine_with_several_host_keys_does_not_seem_changed() -> None:
    """At first contact we ask for the best of its keys, and later for the one that is pinned."""
    keys = [asyncssh.generate_private_key(kind) for kind in ("ecdsa-sha2-nistp256", "ssh-rsa", "ssh-ed25519")]
    with SshServer(ssh_keys.public_line(KEY), *keys) as server:
        for pinned in (None, *server.public_host_keys):
            with closing(dial(server.port, pinned)) as connection:
                assert connection.host_key == (pinned or server.public_host_keys[-1])


@pytest.mark.parametrize(
    ("options", "cipher", "mac"),
    [
        ({}, "aes128-gcm@openssh.com", None),
        ({"encryption_algs": ["aes256-ctr", "aes256-gcm@openssh.com"]}, "aes256-gcm@openssh.com", None),
        ({"encryption_algs": ["aes256-ctr"]}, "aes256-ctr", "hmac-sha2-256"),
        (
            {"encryption_algs": ["aes128-ctr"], "mac_algs": ["hmac-sha1", "hmac-sha2-512-etm@openssh.com"]},
            "aes128-ctr",
            "hmac-sha2-512-etm@openssh.com",
        ),
        # A hardened sshd may have one of the two names of our key exchange alone.
        ({"kex_algs": ["curve25519-sha256"]}, "aes128-gcm@openssh.com", None),
        ({"kex_algs": ["curve25519-sha256@libssh.org"]}, "aes128-gcm@openssh.com", None),
    ],
)
def test_cheapest_cipher_that_both_have_is_used(options: dict[str, list[str]], cipher: str, mac: str | None) -> None:
    """AES-GCM costs much less processor time, having no MAC besides; but a machine may have been told to refuse it."""
    server = SshServer(ssh_keys.public_line(KEY))
    server.options = options
    with server, closing(dial(server.port)):
        (connection,) = server.connections
        for direction in ("send", "recv"):
            used = [connection.get_extra_info(f"{direction}_{kind}") for kind in ("cipher", "mac")]
            assert used == [cipher, mac or cipher], direction


@pytest.mark.parametrize(
    "others",
    [
        {"encryption_algs": ["chacha20-poly1305@openssh.com"]},
        {"kex_algs": ["mlkem768x25519-sha256"]},
        {"encryption_algs": ["aes256-cbc", "aes128-cbc", "3des-cbc"]},
        {"encryption_algs": ["aes128-ctr"], "mac_algs": ["hmac-sha1", "hmac-md5", "hmac-sha1-96", "hmac-md5-96"]},
        {"encryption_algs": ["aes128-gcm@openssh.com"], "mac_algs": ["hmac-sha1"]},
        {"kex_algs": ["diffie-hellman-group16-sha512", "diffie-hellman-group-exchange-sha256", "ecdh-sha2-nistp256"]},
    ],
)
def test_a_machine_without_our_algorithms_is_not_taken_for_lost(others: dict[str, list[str]]) -> None:
    """It was reached: the network is not to blame. Nothing weaker is tried."""
    server = SshServer(ssh_keys.public_line(KEY))
    server.options = others
    with server, pytest.raises(SshError, match=r"failed: .*no acceptable") as caught:
        dial(server.port)
    assert caught.value.kind is FailureKind.SSH_FAILED
    assert server.logins == []


def test_closed_port_is_refused() -> None:
    """A machine that is still booting refuses; its cause must not look like a broken key."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(SshRefused, match=f"no SSH at 127.0.0.1 port {port}: Connection refused"):
        dial(port)
    for nonsense in ("a" * 70, "\0"):  # whatever the socket library makes of it, it arrives as one of our errors
        with pytest.raises(SshRefused):
            dial(22, at=nonsense)


def test_a_function_without_a_free_socket_blames_no_machine(deadline: Deadline) -> None:
    """The machine was not asked; taken for its refusal, it would be rebooted."""
    ours = SshDialer(KEY, "root", 22, connect_timeout=2)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1, hard))
    try:
        with pytest.raises(SshOutOfResources, match=r"no connection to .* port 22 can be made") as caught:
            ours.dial("127.0.0.1", None, deadline)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert caught.value.fault is Fault.OURS


@pytest.mark.parametrize(
    ("banner", "quoted"), [("", r".*\.$"), ("Ask \x1b[31mthe owner" + "!" * 10_000, r".* Ask \[31mthe owner!")]
)
def test_machine_that_refuses_our_key_is_quoted(server: SshServer, banner: str, quoted: str) -> None:
    """Somebody must install our key; its banner may say why, and is made harmless."""
    if banner:
        server.on_login = lambda connection: connection.send_auth_banner(banner)
    with pytest.raises(SshAuthenticationFailed, match=f"refuses our key for root: {quoted}") as caught:
        dial(server.port, key=ssh_keys.generate())
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("words", [b"", b"SSH-2.0-slow\r\n", b"SSH-2.0-slow\r\n\0\0\1", b"Welcome\r\n"])
def test_a_server_that_stops_answering_times_out(stranger: Callable[..., int], words: bytes) -> None:
    with pytest.raises(SshTimedOut, match="exchanging keys"):
        dial(stranger(words), within=soon())


def test_server_that_is_not_ssh_is_a_broken_connection(
    stranger: Callable[..., int], caplog: pytest.LogCaptureFixture
) -> None:
    """Its own words are in the message, made harmless, and not in the log: many machines boot."""
    port = stranger(b"\x1b[31mHTTP/1.1 400 Bad Request\r\n" * 100)
    with caplog.at_level(logging.DEBUG), pytest.raises(SshConnectionLost) as caught:
        dial(port)
    assert "\x1b" not in str(caught.value)
    assert [record for record in caplog.records if record.name.startswith("paramiko")] == []


def test_invalid_ssh_data_is_raised_as_our_error(server: SshServer, stranger: Callable[..., int]) -> None:
    """A broken packet makes paramiko raise what its parser happens to raise."""
    with socket.create_connection(("127.0.0.1", server.port)) as client, client.makefile("rb") as stream:
        client.sendall(b"SSH-2.0-test\r\n")
        greeting = stream.readline()
        length = stream.read(4)
        proposal = greeting + length + stream.read(int.from_bytes(length))
    causes = set()
    for position in range(len(greeting), len(proposal), 41):
        broken = proposal[:position] + bytes([proposal[position] ^ 0xFF]) + proposal[position + 1 :]
        port = stranger(broken, hang_up=True)
        with pytest.raises(SshError) as caught:
            dial(port)
        causes.add(str(caught.value).rpartition(f"port {port}")[2])
    assert len(causes) > 1, "the packets were not broken in different ways"


def test_a_connection_that_breaks_at_login_refuses_no_key(server: SshServer) -> None:
    """Nobody must install a key for it; it passes."""
    server.on_login = lambda connection: connection.abort()
    with pytest.raises(SshConnectionLost, match="logging in as root"):
        dial(server.port)


def test_machine_that_freezes_at_login_times_out(server: SshServer) -> None:
    server.freezes_at = "login"
    with pytest.raises(SshTimedOut, match="logging in as root"):
        dial(server.port, within=soon(1.5))


def test_no_time_left_connects_to_nothing(server: SshServer, clock: ManualClock) -> None:
    late = Deadline(clock, 1)
    clock.sleep(1)
    with pytest.raises(SshTimedOut, match="no time was left for connecting"):
        dial(server.port, within=late)


@pytest.mark.parametrize("wrong", ["", "AAAA", f"{BEGIN}\nAAAA\n{END}\n"])
def test_wrong_private_key_is_a_fault_of_the_configuration(wrong: str) -> None:
    with pytest.raises(ConfigError, match="the SSH key is not") as caught:
        dial(22, key=wrong)
    assert "AAAA" not in str(caught.value)
    assert caught.value.__cause__ is caught.value.__context__ is None
