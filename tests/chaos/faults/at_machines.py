"""Faults of single machines and of the agent on them."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from uuid import UUID

from shepherd_core.bmdb.agents import host_keys

from tests.chaos.faults.fault import MachineFault, Stage
from tests.chaos.scenarios import loops
from tests.chaos.stage.environment import PUBLIC_KEY
from tests.support.bmdb.breaking_connection import Proxy


def _pool(method: str, undo: str) -> Callable[[Stage, str, UUID], None]:
    def begin(stage: Stage, name: str, _: UUID) -> None:
        getattr(stage.pool, method)(name)
        stage.undo.callback(getattr(stage.pool, undo), name)

    return begin


def _mood(mood: str) -> Callable[[Stage, str, UUID], None]:
    def begin(stage: Stage, name: str, _: UUID) -> None:
        file = stage.pool.disk(name) / "root/mood"
        file.write_text(mood)
        stage.undo.callback(file.unlink)

    return begin


def _listener(stage: Stage, name: str, address: str, backlog: int) -> socket.socket:
    """Return a listening socket at the address that the machine seems to have; it accepts no connection yet."""
    listener = stage.undo.enter_context(socket.create_server((address, stage.pool.port), backlog=backlog))
    stage.scenario.access.addresses[name] = address
    return listener


def _black_hole(stage: Stage, name: str, _: UUID) -> None:
    """Fill the kernel's queue, so that further attempts to connect get no answer."""
    address = _listener(stage, name, "127.42.0.1", 0).getsockname()
    for _n in range(2):
        filler = stage.undo.enter_context(socket.socket())
        filler.setblocking(False)
        with suppress(BlockingIOError):
            filler.connect(address)


def _banner(stage: Stage, name: str, _: UUID) -> None:
    listener = _listener(stage, name, "127.42.0.2", 1)

    def accept() -> None:
        with suppress(OSError), listener.accept()[0] as connection:
            connection.sendall(b"SSH-2.0-slow\r\n")
            while connection.recv(65_536):
                pass

    thread = threading.Thread(target=accept)
    thread.start()
    stage.undo.callback(thread.join)
    stage.undo.callback(listener.shutdown, socket.SHUT_RDWR)


def _breaks_in_upload(stage: Stage, name: str, _: UUID) -> None:
    pool = stage.pool
    proxy = Proxy((pool.address(name), pool.port), "127.42.0.3", port=pool.port)
    stage.undo.enter_context(proxy)
    proxy.client_bytes = len(loops.AGENT) + 50_000
    stage.scenario.access.addresses[name] = "127.42.0.3"


def _other_host_key(stage: Stage, _: str, machine_id: UUID) -> None:
    """Pin a wrong host key; only an operator ends this fault."""
    stage.environment.fleet.sql("INSERT INTO machine_host_key VALUES (:id, :key, now())", id=machine_id, key=PUBLIC_KEY)
    stage.undo.callback(host_keys.forget_host_key, stage.environment.fleet.connection, machine_id, "the test")


MACHINES = (
    MachineFault("SSH refused", _pool("power_off", "power_on"), "ssh-refused"),
    MachineFault("SSH black hole", _black_hole, "ssh-timed-out"),
    MachineFault("SSH banner and nothing more", _banner, "ssh-timed-out"),
    MachineFault("SSH authentication refused", _pool("refuse_logins", "accept_logins"), "ssh-authentication-failed"),
    MachineFault("SSH host key changed", _other_host_key, "ssh-host-key-changed"),
    MachineFault("disk full", _pool("fill_disk", "free_disk"), "ssh-upload-failed"),
    MachineFault("connection lost in the upload", _breaks_in_upload, "ssh-connection-lost"),
    MachineFault("agent that hangs", _mood("time.sleep(1000)"), "ssh-timed-out"),
    MachineFault(
        "agent that floods stdout without end",
        _mood("sys.stdout.buffer.write(bytes(1 << 22)); sys.exit()"),
        "malformed-answer",
    ),
    MachineFault("agent that answers garbage", _mood("sys.exit(print('garbage'))"), "malformed-answer"),
    MachineFault("agent that exits 1", _mood("sys.exit(1)"), "agent-exited"),
    MachineFault(
        "agent that answers for another machine", _mood("init = field(1, b'another machine')"), "wrong-init-message"
    ),
)
