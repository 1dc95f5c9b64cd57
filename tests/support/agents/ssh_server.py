import asyncio
import os
import shlex
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE
from typing import Any, Self

import asyncssh
from shepherd_core.adapters import ssh_keys
from shepherd_core.domain.clock import Deadline, SystemClock

Process = asyncssh.SSHServerProcess[bytes]
KEY = ssh_keys.generate()
"""A private key that servers admit."""


class SshServer:
    """A server on loopback with a real shell and a thread of its own. Set the attributes before connecting."""

    def __init__(
        self, public_line: str, *host_keys: asyncssh.SSHKey, address: str = "127.0.0.1", port: int = 0
    ) -> None:
        self.host_keys = host_keys or (asyncssh.generate_private_key("ssh-ed25519"),)
        self.port = port
        self._address = address
        self.logins: list[str] = []
        """The users that began to authenticate."""
        self.connections: list[asyncssh.SSHServerConnection] = []
        self.freezes_at = ""
        """login, channel, program or input: from there on it answers nothing at all."""
        self.program: Callable[[Process], Awaitable[None]] = self.shell
        """What a command runs."""
        self.on_input: Callable[[asyncssh.SSHServerConnection, int], None] = lambda _connection, _offset: None
        """Called with each piece of a command's input and its offset."""
        self.sessions = 0
        self.tools = ""
        """A folder with programs that the shell finds before others."""
        self.on_login: Callable[[asyncssh.SSHServerConnection], None] = lambda _connection: None
        """Called when a client begins to authenticate."""
        self.has_commands = True
        self.options: dict[str, Any] = {}
        """Of asyncssh, for the connection: algorithms and the like. Set before entering."""
        self.home: Path | None = None
        """Where commands run. Its .ssh/authorized_keys, as of each login, admits clients instead of *public_line*."""
        self._authorized = asyncssh.import_public_key(public_line)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thaw = threading.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        self._acceptor = self._call(self._listen())
        self.port = self._acceptor.get_port()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._thaw.set()
        self._call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def public_host_keys(self) -> list[str]:
        """Return the lines that ``SshConnection.host_key`` may be."""
        return [b" ".join(key.export_public_key().split()[:2]).decode() for key in self.host_keys]

    async def shell(self, process: Process) -> None:
        child = await asyncio.create_subprocess_exec(
            *("/bin/sh", "-c", process.command or ""),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            start_new_session=True,
            cwd=self.home,
            env={**os.environ, "PATH": f"{self.tools}:{os.environ['PATH']}"},
        )
        assert child.stdin is not None
        inward = asyncio.create_task(self._feed(process, child.stdin))
        try:
            await asyncio.gather(_pump(child.stdout, process.stdout), _pump(child.stderr, process.stderr))
            process.channel.write_eof()
            process.exit(await child.wait())
        finally:
            inward.cancel()
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child._transport.close()  # type: ignore[attr-defined]  # else it waits for output that nobody reads
            await child.wait()

    def admits(self, key: asyncssh.SSHKey) -> bool:
        if self.home is None:
            return key == self._authorized
        lines = (self.home / ".ssh/authorized_keys").read_text().splitlines()
        return key in [asyncssh.import_public_key(line) for line in lines if line.strip()]

    def reach(self, step: str) -> None:
        if step == self.freezes_at:
            self._thaw.wait()  # in the thread of the loop: nothing is answered any more

    def _call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(20)

    async def _listen(self) -> asyncssh.SSHAcceptor:
        return await asyncssh.create_server(
            lambda: _Guard(self),
            self._address,
            self.port,
            server_host_keys=list(self.host_keys),
            encoding=None,
            **self.options,
        )

    def _program_requested(self, process: Process) -> Coroutine[Any, Any, None]:
        self.reach("program")
        return self._run(process)

    async def _feed(self, process: Process, target: asyncio.StreamWriter) -> None:
        offset = 0
        with suppress(BrokenPipeError, ConnectionResetError):  # the program closed its input
            while data := await process.stdin.read(65_536):
                self.reach("input")
                self.on_input(self.connections[-1], offset)
                offset += len(data)
                target.write(data)
                await target.drain()
        target.close()

    async def _run(self, process: Process) -> None:
        with suppress(BrokenPipeError, ConnectionError, asyncssh.Error):  # the client left
            await self.program(process)

    async def _stop(self) -> None:
        self._acceptor.close()
        await self._acceptor.wait_closed()
        for connection in self.connections:
            connection.abort()
            await connection.wait_closed()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        if tasks:
            _, stuck = await asyncio.wait(tasks, timeout=0.2)
            for task in stuck:
                task.cancel()
            await asyncio.gather(*stuck, return_exceptions=True)


async def _pump(source: Any, target: Any) -> None:
    while data := await source.read(65_536):
        target.write(data)
        await target.drain()


class _Guard(asyncssh.SSHServer):
    def __init__(self, server: SshServer) -> None:
        self._server = server

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._server.connections.append(conn)

    def begin_auth(self, username: str) -> bool:
        self._server.logins.append(username)
        self._server.on_login(self._server.connections[-1])
        self._server.reach("login")
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, _username: str, key: asyncssh.SSHKey) -> bool:
        return self._server.admits(key)

    def session_requested(self) -> asyncssh.SSHServerProcess[bytes]:
        self._server.reach("channel")
        self._server.sessions += 1
        return _Session(self._server)


class _Session(asyncssh.SSHServerProcess[bytes]):
    def __init__(self, server: SshServer) -> None:
        super().__init__(server._program_requested, None, 3, False)
        self._server = server

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.sessions -= 1
        super().connection_lost(exc)

    def exec_requested(self, command: str) -> bool:
        return self._server.has_commands and super().exec_requested(command)


async def ready(process: Process) -> None:
    """Say that the machine has the agent, and wait until it is to run."""
    process.stdout.write(f"yes-{shlex.split(process.command or '')[-1]}\n".encode())
    await process.stdin.readline()


def soon(seconds: float = 0.3) -> Deadline:
    """Return a deadline that a frozen machine is sure to miss."""
    return Deadline(SystemClock(), seconds)
