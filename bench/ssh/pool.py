"""Simulated machines in a separate process, so that their cost is not measured, and OpenSSH's clients for them."""

import json
import multiprocessing
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shepherd_core.adapters import ssh_keys
from shepherd_core.providers.static import StaticProvider

from simulator.machines.pool import MachinePool
from simulator.machines.server import MachineState

_CONTEXT = multiprocessing.get_context("fork")

# Answers as an agent does, and exits. The shell reads no further, however long the file is.
_AGENT = r"""#!/bin/sh
exec python3 -ISc '
import sys
def field(tag, data):
    size, head = len(data), b""
    while size > 127:
        head, size = head + bytes([size & 127 | 128]), size >> 7
    return bytes([tag]) + head + bytes([size]) + data
init = sys.stdin.buffer.read()
sys.stdout.buffer.write(field(10, field(10, init) + field(18, b"k" * 32)))
'
"""


@dataclass(frozen=True)
class BenchPool:
    """Machines that answer SSH, and the key for them."""

    addresses: Sequence[str]
    port: int
    private_key: str
    folder: Path

    def agent(self, size: int) -> Path:
        """Return an agent of *size* bytes."""
        path = self.folder / f"agent-{size}"
        if not path.exists():
            path.write_bytes(_AGENT.encode().ljust(size, b"#"))
        return path

    def sftp(self, address: str, source: Path) -> None:
        """Upload with the stock client."""
        batch = f"put {source} /root/agent\nchmod 755 /root/agent\n"
        self._client(["sftp", *self._options("-P"), "-b", "-", f"root@{address}"], batch.encode())

    def ssh(self, address: str, stdin: bytes) -> bytes:
        """Run the uploaded agent with the stock client."""
        return self._client(["ssh", *self._options("-p"), f"root@{address}", "/root/agent"], stdin)

    def _options(self, port: str) -> list[str]:
        options = ("StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "BatchMode=yes", "LogLevel=ERROR")
        return [
            *("-F", "/dev/null", "-i", str(self.folder / "key"), port, str(self.port)),
            *(word for option in options for word in ("-o", option)),
        ]

    def _client(self, command: list[str], stdin: bytes) -> bytes:
        answer = subprocess.run(command, input=stdin, capture_output=True, check=False)
        if answer.returncode:
            raise RuntimeError(f"{command}: {answer.stderr.decode()}")
        return answer.stdout


@contextmanager
def machines(count: int) -> Iterator[BenchPool]:
    """Yield *count* machines that are up."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        private_key = ssh_keys.generate()
        (folder / "key").touch(mode=0o600)
        (folder / "key").write_text(private_key, encoding="ascii")
        here, there = _CONTEXT.Pipe()
        process = _CONTEXT.Process(target=_serve, args=(there, folder / "disks", count, private_key))
        process.start()
        try:
            port, addresses = here.recv()
            yield BenchPool(addresses, port, private_key, folder)
        finally:
            here.send("end")
            process.join()


def provider(machine_pool: BenchPool) -> StaticProvider:
    """Return a provider that lists the machines; their ids are their addresses."""
    listing = json.dumps([{"ID": address, "Addr": address} for address in machine_pool.addresses]).encode()
    return StaticProvider(lambda: listing)


def _serve(there: Any, disks: Path, count: int, private_key: str) -> None:
    disks.mkdir()
    with MachinePool(disks, 0, boot_seconds=0) as machine_pool:
        addresses = [
            machine_pool.rack(f"machine-{number}", ssh_keys.public_line(private_key)) for number in range(count)
        ]
        while any(machine_pool.state(name) is not MachineState.UP for name in machine_pool.names()):
            time.sleep(0.05)
        there.send((machine_pool.port, addresses))
        there.recv()
