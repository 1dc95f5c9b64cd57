"""A park of simulated machines: real SSH and SFTP servers that run what is uploaded to them as real processes."""

from __future__ import annotations

import asyncio
import resource
import signal
import socket
import threading
import uuid
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, Self

import asyncssh

from simulator import machine_processes as processes
from simulator.machine_server import MachineServer, MachineState, kill_all

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from pathlib import Path
    from types import TracebackType

__all__ = ["MachinePark", "MachineState"]

_FIRST_ADDRESS = IPv4Address("127.40.0.0")
_FILES = 65_536


class MachinePark:
    """
    Machines, each at a loopback address of its own and with a folder as its disk.

    Safe to call from any thread; the machines live in a thread of the park. A
    machine is called by the name it was racked under; another name raises
    KeyError. Needs Linux, but no root. If this process dies without closing
    the park, another kills what runs on the machines.

    It stands for a computer with systemd and sshd as far as Shepherd can tell,
    except that a command is one program (see ``machine_shell.execute``).
    """

    def __init__(
        self,
        folder: Path,
        port: int,
        *,
        boot_seconds: float,
        agent_environment: Mapping[str, str] | None = None,
        first_address: str | None = None,
        told: Callable[[str, str], None] = lambda _name, _what: None,
    ) -> None:
        """
        Open an empty park.

        Disks are made in *folder* and left there, except those of machines
        that are removed. All machines answer SSH at *port*; 0 picks one that no other park uses.
        A boot takes *boot_seconds*. What is uploaded and run sees *agent_environment*. The machines' addresses begin
        with *first_address*, an IPv4 address of this computer; None: with one in the loopback network.
        *told* hears the name of each machine whose power is about to change, and how, from any thread.

        Raises:
            OSError: another park uses the port.
        """
        self._folder = folder.resolve()
        self._boot_seconds = boot_seconds
        self._environment = dict(agent_environment or {})
        self._told = told
        self._id = uuid.uuid4().hex
        self._machines: dict[str, MachineServer] = {}
        self._racked = 0
        self._first_address = _FIRST_ADDRESS + 1 if first_address is None else IPv4Address(first_address)
        # An address that no machine has: bound, not served, it keeps the port for this park.
        self._claim = socket.socket()
        try:
            self._claim.bind((str(_FIRST_ADDRESS), port))
        except OSError:
            self._claim.close()
            raise
        self.port: int = self._claim.getsockname()[1]
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, _FILES)), hard))
        asyncssh.set_log_level("WARNING")
        self._guard = processes.guard(self._id)
        self._lock = threading.Lock()
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._live(ready)), name="machines", daemon=True)
        self._thread.start()
        ready.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill all processes of all machines and end the park. May be called twice."""
        with self._lock:
            if self._thread.is_alive():
                self._loop.call_soon_threadsafe(self._closing.set)
                self._thread.join()
                self._guard.kill()
                self._guard.communicate()
            self._claim.close()

    # --- a machine's life ---

    def rack(self, name: str, authorized_key: str, provision_seconds: float = 0) -> str:
        """
        Add a machine and return its address at once; it is provisioned, then boots, then answers SSH.

        It lets root in with *authorized_key*, a line in OpenSSH's format.

        Raises:
            ValueError: the name is taken or cannot be a folder's, or the key is none.
        """
        with self._lock:
            if name in self._machines or not name or "/" in name or name.startswith("."):
                raise ValueError(f"{name!r} cannot be the name of a new machine")
            address = str(self._first_address + self._racked)
            machine = MachineServer(
                self._id,
                name,
                disk=self._folder / name,
                address=(address, self.port),
                key=authorized_key,
                environment=self._environment,
            )
            self._racked += 1
            self._machines[name] = machine

        async def provision() -> None:
            machine.provision(provision_seconds, self._boot_seconds)

        self._do(provision())
        return address

    def reboot(self, name: str) -> None:
        """
        Reboot the machine; what is wedged or silent is cured, and disk and host key stay.

        Returns when no process is left and SSH refuses; the machine comes up
        by itself. Boots a machine that is off; does nothing to one that is
        still being provisioned.
        """
        self._switch(name, "reboot", self._reboot)

    def power_off(self, name: str) -> None:
        """Switch the machine off; returns when no process is left."""
        self._switch(name, "off", self._power_off)

    def power_on(self, name: str) -> None:
        """Begin to boot the machine, if it is off; that too is a reboot."""
        self._switch(name, "on", self._power_on)

    def reinstall(self, name: str) -> None:
        """Give the machine an empty disk and a new host key, and boot it. Ends every harm."""
        self._switch(name, "reinstall", self._reinstall)

    def remove(self, name: str) -> None:
        """Remove the machine and its disk for good. Its address is not used again."""
        with self._lock:
            machine = self._machines.pop(name)
        self._do(self._remove(machine))

    # --- harm ---

    def silence(self, name: str) -> None:
        """Stop (SIGSTOP) the agents that run now: no heartbeats, but SSH works. A reboot or a new agent cures it."""
        processes.send(signal.SIGSTOP, self.agents(name))

    def wedge(self, name: str) -> None:
        """Let the machine hang: TCP connects, and nothing answers or runs. Only a reboot cures it."""
        machine = self._machines[name]

        async def wedge() -> None:
            machine.wedge()
            processes.send(signal.SIGSTOP, await asyncio.to_thread(processes.find, self._id, name))

        self._do(wedge())

    def fill_disk(self, name: str) -> None:
        """Let every write over SFTP fail for want of space."""
        self._machines[name].disk_full = True

    def free_disk(self, name: str) -> None:
        """Make space on the disk again."""
        self._machines[name].disk_full = False

    def change_host_key(self, name: str) -> None:
        """Show another host key from the next connection on."""

        async def change() -> None:
            self._machines[name].new_host_key()

        self._do(change())

    def refuse_logins(self, name: str) -> None:
        """Accept no key any more, until ``accept_logins`` or a reinstall."""
        self._machines[name].logins_refused = True

    def accept_logins(self, name: str) -> None:
        """Accept the authorized key again."""
        self._machines[name].logins_refused = False

    # --- observation ---

    def names(self) -> list[str]:
        """Return the names of the machines, in the order in which they were racked."""
        return list(self._machines)

    def state(self, name: str) -> MachineState:
        """Return what the machine is doing."""
        return self._machines[name].state

    def address(self, name: str) -> str:
        """Return the machine's address."""
        return self._machines[name].address[0]

    def disk(self, name: str) -> Path:
        """Return the folder that is the machine's disk; empty or missing until it is provisioned."""
        return self._machines[name].disk

    def reboots(self, name: str) -> int:
        """Return how often the machine was rebooted."""
        return self._machines[name].reboots

    def runs(self, name: str) -> int:
        """Return how many uploaded files were run on the machine."""
        return self._machines[name].runs

    def agents(self, name: str) -> list[int]:
        """Return the ids of the machine's processes that outlived the command that started them, stopped ones too."""
        self._machines[name]  # or KeyError
        return processes.detached(processes.find(self._id, name))

    def all_agents(self) -> dict[str, list[int]]:
        """Return ``agents`` of every machine, from one look."""
        everything = processes.find(self._id)
        agents: dict[str, list[int]] = {name: [] for name in self.names()}
        for pid in processes.detached(everything):
            agents.setdefault(everything[pid], []).append(pid)
        return agents

    # --- in the park's thread ---

    def _switch(self, name: str, what: str, change: Callable[[MachineServer], Coroutine[None, None, None]]) -> None:
        machine = self._machines[name]
        self._told(name, what)
        self._do(change(machine))

    def _do(self, work: Coroutine[None, None, None]) -> None:
        if not self._thread.is_alive():
            work.close()
            raise RuntimeError("the park is closed")
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _live(self, ready: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._closing = asyncio.Event()
        ready.set()
        await self._closing.wait()
        machines = list(self._machines.values())
        for machine in machines:
            await machine.disconnect()
        await kill_all(self._id, None, lambda: {task for machine in machines for task in machine.executions})

    async def _reboot(self, machine: MachineServer) -> None:
        async with machine.lock:
            if machine.state is not MachineState.PROVISIONING:
                await machine.stop()
                machine.reboots += 1
                machine.start(self._boot_seconds)

    async def _power_off(self, machine: MachineServer) -> None:
        async with machine.lock:
            await machine.stop()

    async def _power_on(self, machine: MachineServer) -> None:
        async with machine.lock:
            if machine.state is MachineState.OFF:
                machine.reboots += 1
                machine.start(self._boot_seconds)

    async def _reinstall(self, machine: MachineServer) -> None:
        async with machine.lock:
            await machine.stop()
            await machine.format()
            machine.start(self._boot_seconds)

    async def _remove(self, machine: MachineServer) -> None:
        async with machine.lock:
            await machine.stop()
            await machine.erase()
