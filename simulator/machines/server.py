"""A simulated machine: its power, its faults and its SSH server. All of it runs in the event loop of the pool."""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
from collections.abc import Callable, Coroutine, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import asyncssh

from simulator.machines import processes
from simulator.machines.shell import HOME, PATH, Sftp, execute, locate

_BACKLOG = 128


class MachineState(StrEnum):
    """The state of a machine."""

    PROVISIONING = "Provisioning"
    BOOTING = "Booting"
    UP = "Up"
    OFF = "Off"
    HUNG = "Hung"


class MachineServer:
    """A machine with a disk, a folder of its name, an address, a host key, and processes."""

    def __init__(
        self,
        pool: str,
        *,
        disk: Path,
        address: tuple[str, int],
        key: str,
        environment: Mapping[str, str],
        user: int | None,
        boot_seconds: float,
    ) -> None:
        self.pool = pool
        self.name = disk.name
        self.disk = disk
        self.address = address
        self.authorized_key = asyncssh.import_public_key(key)
        self.environment = {
            "HOME": str(locate(disk, HOME)),
            "PATH": PATH,
            "USER": "root",
            "LANG": "C.UTF-8",
            **environment,
            processes.MARK: f"{pool}/{disk.name}",
        }
        self.user = user
        self.as_user: dict[str, Any] = {} if user is None else {"user": user, "group": user, "extra_groups": []}
        """How to start a process: its arguments."""
        self.state = MachineState.OFF
        self.disk_full = False
        self.logins_refused = False
        self.reboots = 0
        self.runs = 0
        self.connections: set[asyncssh.SSHServerConnection] = set()
        self.executions: set[asyncio.Task[None]] = set()
        self._boot_seconds = boot_seconds
        self._lock = asyncio.Lock()
        """Held while the machine's power or disk changes."""
        self._listener: socket.socket | None = None
        self._options: asyncssh.SSHServerConnectionOptions | None = None
        self._booting: asyncio.Task[None] | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def provision(self, seconds: float) -> None:
        """Begin to provision the machine; it boots after *seconds*."""
        self.state = MachineState.PROVISIONING
        self._booting = asyncio.create_task(self._install_and_boot(seconds))

    async def reboot(self) -> None:
        """Restart the machine, or boot it if it is off; do nothing while it is being provisioned."""
        async with self._lock:
            if self.state is not MachineState.PROVISIONING:
                await self._stop()
                self.reboots += 1
                self._start()

    async def power_off(self) -> None:
        """Switch the machine off: end all processes and connections."""
        async with self._lock:
            await self._stop()

    async def power_on(self) -> None:
        """Boot the machine if it is off."""
        async with self._lock:
            if self.state is MachineState.OFF:
                self.reboots += 1
                self._start()

    async def reinstall(self) -> None:
        """Give the machine an empty disk and a new host key, end its faults, and boot it."""
        async with self._lock:
            await self._stop()
            await self._erase()
            self.disk_full = self.logins_refused = False
            self._install()
            self._start()

    async def remove(self) -> None:
        """Switch the machine off and delete its disk."""
        async with self._lock:
            await self._stop()
            await self._erase()

    async def disconnect(self) -> None:
        """End the listener and all connections, but not the processes."""
        self.state = MachineState.OFF
        ending = {*self._serving} | {task for task in (self._booting, self._accepting) if task is not None}
        for task in ending:
            task.cancel()
        if self._listener is not None:
            self._listener.close()
        self._booting = self._accepting = self._listener = None
        for connection in list(self.connections):
            connection.abort()
        if ending:
            await asyncio.wait(ending)

    async def hang(self) -> None:
        """Make the machine hang: the kernel still accepts connections, but nothing answers or runs."""
        if self.state is MachineState.UP:
            self.state = MachineState.HUNG
            if self._accepting is not None:
                self._accepting.cancel()
            for connection in self.connections:
                _hang(connection)
        processes.send(signal.SIGSTOP, await asyncio.to_thread(processes.find, self.pool, self.name))

    def new_host_key(self) -> None:
        """Use another host key from the next connection on."""
        self._options = asyncssh.SSHServerConnectionOptions(
            server_factory=lambda: _Login(self),
            server_host_keys=[asyncssh.generate_private_key("ssh-ed25519")],
            process_factory=self._execute,
            sftp_factory=lambda channel: Sftp(channel, self),
            encoding=None,
        )

    async def _stop(self) -> None:
        await self.disconnect()
        await kill_all(self.pool, self.name, lambda: self.executions)

    async def _erase(self) -> None:
        if self.disk.exists():
            await asyncio.to_thread(shutil.rmtree, self.disk)

    def _start(self) -> None:
        self.state = MachineState.BOOTING
        self._booting = asyncio.create_task(self._boot())

    async def _install_and_boot(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._install()
        self.state = MachineState.BOOTING
        await self._boot()

    def _install(self) -> None:
        for folder in ("/", HOME, "/tmp"):  # noqa: S108 - a folder on the machine's own disk
            locate(self.disk, folder).mkdir(mode=0o755, exist_ok=True)
            if self.user is not None:
                os.chown(locate(self.disk, folder), self.user, self.user)
        self.new_host_key()

    async def _boot(self) -> None:
        await asyncio.sleep(self._boot_seconds)
        self._listener = listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(self.address)
        listener.listen(_BACKLOG)
        listener.settimeout(0)
        self._accepting = asyncio.create_task(self._accept(listener))
        self.state = MachineState.UP

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            connected, _ = await asyncio.get_running_loop().sock_accept(listener)
            self._keep(self._serving, self._serve(connected))

    async def _serve(self, connected: socket.socket) -> None:
        # Clients may disconnect, be refused or be cut off.
        with contextlib.suppress(OSError, asyncssh.Error):
            try:
                connection = await asyncssh.run_server(connected, config=None, options=self._options)
            except BaseException:
                connected.close()
                raise
            await connection.wait_closed()

    def _execute(self, client: asyncssh.SSHServerProcess[bytes]) -> None:
        # A separate task, not one of the connection's: it outlives the client, as a process under sshd does.
        self._keep(self.executions, execute(self, client))

    @staticmethod
    def _keep(tasks: set[asyncio.Task[None]], work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)


async def kill_all(pool: str, machine: str | None, executions: Callable[[], set[asyncio.Task[None]]]) -> None:
    """
    Kill every process of *machine*, or of all machines of *pool*, and wait for their *executions* to end.

    Repeats until none is left, because processes may start meanwhile.
    """
    while True:
        found = await asyncio.to_thread(processes.find, pool, machine)
        processes.send(signal.SIGKILL, found)
        running = executions()
        if running:
            await asyncio.wait(running, timeout=0.02)
        elif found:
            await asyncio.sleep(0.002)
        else:
            return


class _Login(asyncssh.SSHServer):
    """Admits root with the machine's authorized key."""

    def __init__(self, machine: MachineServer) -> None:
        self._machine = machine
        self._connection: asyncssh.SSHServerConnection | None = None

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn
        self._machine.connections.add(conn)
        if self._machine.state is MachineState.HUNG:
            _hang(conn)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - named by asyncssh
        if self._connection is not None:
            self._machine.connections.discard(self._connection)

    def begin_auth(self, username: str) -> bool:  # noqa: ARG002 - named by asyncssh
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        return username == "root" and key == self._machine.authorized_key and not self._machine.logins_refused


def _hang(connection: asyncssh.SSHServerConnection) -> None:
    transport = connection._transport  # noqa: SLF001 - asyncssh has no public way to stop reading
    if transport is not None:
        transport.pause_reading()
