"""A pool of simulated machines: real SSH and SFTP servers that run uploaded files as real processes."""

import asyncio
import resource
import signal
import socket
import threading
import uuid
from collections.abc import Callable, Coroutine, Mapping
from ipaddress import IPv4Address
from pathlib import Path

import asyncssh

from simulator.closeable import Closeable
from simulator.machines import processes
from simulator.machines.server import MachineServer, MachineState, kill_all

_FIRST_ADDRESS = IPv4Address("127.40.0.0")
_FILES = 65_536


class MachinePool(Closeable):
    """
    Machines, each with its own loopback address and a folder as its disk.

    Safe to call from any thread; the machines run in a thread of the pool. A
    machine is identified by the name under which it was racked; an unknown
    name raises KeyError. Needs Linux, but no root. If this process dies without
    closing the pool, a guard process kills what runs on the machines.

    A machine behaves towards Shepherd as a computer with systemd and sshd,
    except that a command is one program (see ``shell.execute``).
    """

    def __init__(
        self,
        folder: Path,
        port: int,
        *,
        boot_seconds: float,
        agent_environment: Mapping[str, str] | None = None,
        first_address: str | None = None,
        user: int | None = None,
        on_power_change: Callable[[str, str], None] = lambda _name, _what: None,
    ) -> None:
        """
        Open an empty pool.

        Disks are created in *folder* and stay there, except those of removed machines.
        All machines answer SSH at *port*; 0 picks a port that no other pool uses.
        A boot takes *boot_seconds*. Uploaded programs run with *agent_environment*. The machines' addresses begin
        with *first_address*, an IPv4 address of this computer; None: with one in the loopback network.
        What runs on the machines runs as *user*, a number, who can enter *folder*; None: as this process does.
        Before the power of a machine changes, *on_power_change* gets its name and the change, on any thread.

        Raises:
            OSError: another pool uses the port.
        """
        self._folder = folder.resolve()
        self._folder.mkdir(mode=0o755, parents=True, exist_ok=True)  # agents run nothing below what others can write
        self._boot_seconds = boot_seconds
        self._user = user
        self._environment = dict(agent_environment or {})
        self._on_power_change = on_power_change
        self._id = uuid.uuid4().hex
        self._machines: dict[str, MachineServer] = {}
        self._racked = 0
        self._first_address = _FIRST_ADDRESS + 1 if first_address is None else IPv4Address(first_address)
        # Bound at an address that no machine has, so that no other pool takes the port.
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
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run(ready)), name="machines", daemon=True)
        self._thread.start()
        ready.wait()

    def close(self) -> None:
        """Kill all processes of all machines and close the pool. May be called twice."""
        with self._lock:
            if self._thread.is_alive():
                self._loop.call_soon_threadsafe(self._closing.set)
                self._thread.join()
                self._guard.kill()
                self._guard.communicate()
            self._claim.close()

    # --- power ---

    def reserve(self) -> str:
        """Return the address of a machine that is not racked yet."""
        with self._lock:
            self._racked += 1
            return str(self._first_address + self._racked - 1)

    def rack(self, name: str, authorized_key: str, provision_seconds: float = 0, reserved: str | None = None) -> str:
        """
        Add a machine and return its address at once; it is provisioned, then boots, then answers SSH.

        It admits root with *authorized_key*, a line in OpenSSH's format. Its address is the *reserved* one or new.

        Raises:
            ValueError: the name is in use or cannot be a folder's, or the key is not an SSH key.
        """
        address = reserved or self.reserve()
        with self._lock:
            if name in self._machines or not name or "/" in name or name.startswith("."):
                raise ValueError(f"{name!r} cannot be the name of a new machine")
            machine = MachineServer(
                self._id,
                disk=self._folder / name,
                address=(address, self.port),
                key=authorized_key,
                environment=self._environment,
                user=self._user,
                boot_seconds=self._boot_seconds,
            )
            self._machines[name] = machine
        self._do(machine.provision(provision_seconds))
        return address

    def reboot(self, name: str) -> None:
        """
        Reboot the machine; this ends a hang and a stopped agent, and keeps disk and host key.

        Returns when no process is left and SSH refuses; then the machine
        boots. Boots a machine that is off; does nothing to one that is still
        being provisioned.
        """
        self._switch(name, "reboot", MachineServer.reboot)

    def power_off(self, name: str) -> None:
        """Switch the machine off; return when no process is left."""
        self._switch(name, "off", MachineServer.power_off)

    def power_on(self, name: str) -> None:
        """Begin to boot the machine, if it is off; it counts as a reboot."""
        self._switch(name, "on", MachineServer.power_on)

    def reinstall(self, name: str) -> None:
        """Give the machine an empty disk and a new host key, and boot it. Ends every fault."""
        self._switch(name, "reinstall", MachineServer.reinstall)

    def remove(self, name: str) -> None:
        """Remove the machine and its disk. Its address is not used again."""
        with self._lock:
            machine = self._machines.pop(name)
        self._do(machine.remove())

    # --- faults ---

    def stop_agents(self, name: str) -> None:
        """Stop (SIGSTOP) the running agents: no heartbeats, but SSH works. A reboot or a new agent ends it."""
        processes.send(signal.SIGSTOP, self.agents(name))

    def hang(self, name: str) -> None:
        """Make the machine hang: TCP connects, but nothing answers or runs. Only a reboot ends it."""
        self._do(self._machines[name].hang())

    def fill_disk(self, name: str) -> None:
        """Make every upload, over SFTP or by a command, fail with "no space left"."""
        self._machines[name].disk_full = True

    def free_disk(self, name: str) -> None:
        """End ``fill_disk``."""
        self._machines[name].disk_full = False

    def change_host_key(self, name: str) -> None:
        """Use another host key from the next connection on."""

        async def change() -> None:
            self._machines[name].new_host_key()

        self._do(change())

    def refuse_logins(self, name: str) -> None:
        """Refuse every key, until a reinstall."""
        self._machines[name].logins_refused = True

    # --- observation ---

    def names(self) -> list[str]:
        """Return the names of the machines, in the order of racking."""
        return list(self._machines)

    def state(self, name: str) -> MachineState:
        """Return the state of the machine."""
        return self._machines[name].state

    def address(self, name: str) -> str:
        """Return the machine's address."""
        return self._machines[name].address[0]

    def disk(self, name: str) -> Path:
        """Return the folder of the machine's disk; empty or missing until the machine is provisioned."""
        return self._machines[name].disk

    def reboots(self, name: str) -> int:
        """Return how often the machine was rebooted."""
        return self._machines[name].reboots

    def runs(self, name: str) -> int:
        """Return how often uploaded files were run on the machine."""
        return self._machines[name].runs

    def agents(self, name: str) -> list[int]:
        """Return the ids of the machine's processes that detached from their SSH session, including stopped ones."""
        self._machines[name]  # raises KeyError
        return processes.detached(processes.find(self._id, name))

    def all_agents(self) -> dict[str, list[int]]:
        """Return ``agents`` of every machine, at one moment."""
        found = processes.find(self._id)
        agents: dict[str, list[int]] = {name: [] for name in self.names()}
        for pid in processes.detached(found):
            agents.setdefault(found[pid], []).append(pid)
        return agents

    # --- on the pool's thread ---

    def _switch(self, name: str, what: str, change: Callable[[MachineServer], Coroutine[None, None, None]]) -> None:
        machine = self._machines[name]
        self._on_power_change(name, what)
        self._do(change(machine))

    def _do(self, work: Coroutine[None, None, None]) -> None:
        if not self._thread.is_alive():
            work.close()
            raise RuntimeError("the pool is closed")
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _run(self, ready: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._closing = asyncio.Event()
        ready.set()
        await self._closing.wait()
        machines = list(self._machines.values())
        for machine in machines:
            await machine.disconnect()
        await kill_all(self._id, None, lambda: {task for machine in machines for task in machine.executions})
