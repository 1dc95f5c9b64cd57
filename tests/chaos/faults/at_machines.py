"""Faults of machines, and of the agent on them: what befalls one of many."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from shepherd_core.bmdb.machines import queries

from tests.chaos import scenarios
from tests.chaos.faults.stage import MachineFault
from tests.chaos.stage.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from tests.chaos.faults.stage import Stage


def _park(method: str, undo: str) -> Callable[[Stage, str, UUID], None]:
    def begin(stage: Stage, name: str, _: UUID) -> None:
        getattr(stage.world.pool, method)(name)
        stage.undo.callback(getattr(stage.world.pool, undo), name)

    return begin


def _mood(mood: str) -> Callable[[Stage, str, UUID], None]:
    def begin(stage: Stage, name: str, _: UUID) -> None:
        assert stage.world.pool is not None
        file = stage.world.pool.disk(name) / "root/mood"
        file.write_text(mood)
        stage.undo.callback(file.unlink)

    return begin


def _listener(stage: Stage, name: str, address: str, backlog: int) -> socket.socket:
    """Return what listens where the machine seems to be, which nobody accepts from yet."""
    assert stage.world.pool is not None
    listener = stage.undo.enter_context(socket.create_server((address, stage.world.pool.port), backlog=backlog))
    stage.scenario.way.addresses[name] = address
    return listener


def _black_hole(stage: Stage, name: str, _: UUID) -> None:
    """Fill the kernel's queue, so that it answers no further attempt to connect."""
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
    pool = stage.world.pool
    assert pool is not None
    proxy = Proxy((pool.address(name), pool.port), "127.42.0.3", port=pool.port)
    stage.undo.enter_context(proxy)
    proxy.client_bytes = len(scenarios.AGENT) + 50_000
    stage.scenario.way.addresses[name] = "127.42.0.3"


def _other_host_key(stage: Stage, _: str, machine_id: UUID) -> None:
    """Pin another key than the machine has; what ends that is an operator."""
    stage.world.fleet.sql(
        "INSERT INTO machine_host_key VALUES (:id, :key, now())", id=machine_id, key=scenarios.PUBLIC_KEY
    )
    stage.undo.callback(queries.forget_host_key, stage.world.fleet.connection, machine_id)


MACHINES = (
    MachineFault("SSH refused", _park("power_off", "power_on"), "SshRefused"),
    MachineFault("SSH black hole", _black_hole, "SshTimedOut"),
    MachineFault("SSH banner and nothing more", _banner, "SshTimedOut"),
    MachineFault("SSH authentication refused", _park("refuse_logins", "accept_logins"), "SshAuthenticationFailed"),
    MachineFault("SSH host key changed", _other_host_key, "SshHostKeyChanged"),
    MachineFault("disk full", _park("fill_disk", "free_disk"), "SshUploadFailed"),
    MachineFault("connection lost in the upload", _breaks_in_upload, "SshConnectionLost"),
    MachineFault("agent that hangs", _mood("hangs"), "SshTimedOut"),
    MachineFault("agent that floods stdout without end", _mood("floods"), "MalformedAnswer"),
    MachineFault("agent that answers garbage", _mood("talks garbage"), "MalformedAnswer"),
    MachineFault("agent that exits 1", _mood("exits"), "AgentExited"),
    MachineFault("agent that answers for another machine", _mood("is confused"), "WrongInitMessage"),
)
