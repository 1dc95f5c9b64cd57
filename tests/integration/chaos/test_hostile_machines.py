"""Machines that attack: the real Initializer as a process, with hostile and healthy machines in one invocation."""

import json
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Self
from uuid import UUID

import pytest
from shepherd_core.adapters import ssh_keys
from shepherd_core.bmdb.work import history
from shepherd_core.domain.clock import SystemClock

from simulator.machines.pool import MachinePool
from tests.chaos.stage.environment import Environment
from tests.chaos.stage.processes import PACE, Functions
from tests.support import processes
from tests.support.agents.hostile_server import ADDRESSES, attackers
from tests.support.agents.machine_client import Client
from tests.support.bmdb.fleet import Fleet

FUNCTION, FORK_SERVER = "tests.chaos.stage.child", "shepherd_core.adapters.ssh.fork_server"
MIB = 1 << 20
HEALTHY = 3
MACHINE_SECONDS = 10
SLOW = replace(PACE, connect_seconds=5, machine_seconds=MACHINE_SECONDS, answer_seconds=MACHINE_SECONDS)
FUNCTION_BYTES = 200 * MIB
"""What the function and the fork server use without any machine, rounded up."""
PROCESS_BYTES = 8 * MIB
"""What the process of a machine uses, rounded up: these attacks are refused long before its limit of 32 MiB."""

CAUSES = {
    "a giant packet": r"ssh-misbehaved: .* it announced a packet of \d+ bytes; at most 262144 are read",
    "an endless line": r"ssh-misbehaved: .* it wrote more than 64 KiB before its first packet",
    "endless lines": r"ssh-connection-lost: .* exchanging keys",
    "a slow drip": r"ssh-timed-out: exchanging keys",
    "packets without end that do nothing": r"ssh-misbehaved: .* processor time|ssh-timed-out: exchanging keys",
    "extensions without end": r"ssh-misbehaved: .* it announced 4294967295 extensions in a packet of 4 bytes",
    "a folder of four billion files": r"agent-exited",  # SFTP is not used
    "output without end": r"malformed-answer: the program wrote more than 64 KiB",
    "complaints without end": r"ssh-misbehaved: .* processor time|ssh-timed-out: hashing",
    "more output than there is room for": r"ssh-misbehaved|malformed-answer|ssh-timed-out: uploading",
    "no answer": r"ssh-timed-out: hashing",
}
"""The end of the work on each machine: the cause, or what became of it."""


class Memory:
    """The most memory that the processes of the function have used together, shared pages counted once."""

    def __init__(self) -> None:
        self.most = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.1):
            pids = [pid for module in (FUNCTION, FORK_SERVER) for pid in processes.running(module)]
            self.most = max(self.most, sum(map(processes.memory, pids)))


@pytest.fixture
def environment(real_time: Fleet, tmp_path: Path) -> Iterator[Environment]:
    with MachinePool(tmp_path / "pool", 0, boot_seconds=0) as pool:
        environment = Environment(real_time, SystemClock(), pool=pool, folder=tmp_path)
        yield environment
        environment.close()


def provided(environment: Environment, addresses: dict[str, str]) -> dict[str, UUID]:
    """Add machines of these names and addresses to the BMDB and to the provider's list; return their ids."""
    assert environment.folder is not None
    ids = {}
    for name in addresses:
        ids[name] = environment.fleet.provided_machine()
        environment.fleet.change(f"UPDATE machine_provided SET provider_id = '{name}' WHERE machine_id = '{ids[name]}'")
    listing = json.dumps([{"ID": name, "Addr": address} for name, address in addresses.items()])
    (environment.folder / "machines.json").write_text(listing)
    return ids


def settings(environment: Environment) -> dict[str, str]:
    assert environment.folder is not None
    assert environment.pool is not None
    return {
        "SHEPHERD_PROVIDER": "static",
        "SHEPHERD_PROVIDER_MACHINES": str(environment.folder / "machines.json"),
        "SHEPHERD_AGENT_ENDPOINT": "https://127.0.0.1:9",
        "SHEPHERD_SSH_PORT": str(environment.pool.port),
        "SHEPHERD_CONCURRENCY": "20",
    }


def cause(environment: Environment, machine_id: UUID) -> str:
    last = history.read_history(environment.fleet.connection, machine_id)[0]
    return f"{last.kind}: {last.failed_cause}" if last.kind else str(last.event)


def test_no_attack_hurts_the_function_or_its_neighbours(environment: Environment) -> None:
    """Each attack fails alone, by name, within its limits; the healthy machines of the same invocation get agents."""
    pool, key = environment.pool, ssh_keys.generate()
    assert pool is not None
    client = Client(pool)
    client.authorized_key = ssh_keys.public_line(key)
    healthy = [client.rack(f"healthy-{number}") for number in range(HEALTHY)]
    ids = provided(environment, ADDRESSES | {name: pool.address(name) for name in healthy})
    with attackers(pool.port, client.authorized_key), Functions(1, key) as functions, Memory() as memory:
        began = time.monotonic()
        outcome = functions.invoke(environment, "initializer", settings=settings(environment), pace=SLOW)
        seconds = time.monotonic() - began
    ends = {name: cause(environment, machine_id) for name, machine_id in ids.items()}
    assert outcome.status == 0, outcome
    assert {name: ends[name] for name in healthy} == dict.fromkeys(healthy, "Finished")
    assert {name: ends[name] for name in ADDRESSES if not re.match(CAUSES[name], ends[name])} == {}
    assert memory.most < FUNCTION_BYTES + len(ADDRESSES) * PROCESS_BYTES
    assert seconds < 3 * MACHINE_SECONDS, "the invocation did not end in time"
