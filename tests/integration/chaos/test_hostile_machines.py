import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from uuid import UUID

from shepherd_core.adapters import ssh_keys
from shepherd_core.bmdb.work import history

from simulator.machines.pool import MachinePool
from tests.chaos.stage.environment import Environment
from tests.chaos.stage.processes import PACE, Functions, functions
from tests.support import processes
from tests.support.agents.hostile_server import ADDRESSES, attackers
from tests.support.agents.machine_client import Client
from tests.support.bmdb.fleet import Fleet

MIB = 1 << 20
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
    "output without end": r"malformed-answer: the program wrote more than 64 KiB",
    "complaints without end": r"ssh-misbehaved: .* processor time|ssh-timed-out: hashing",
    "more output than there is room for": r"ssh-misbehaved|malformed-answer|ssh-timed-out: uploading",
    "no answer": r"ssh-timed-out: hashing",
}


@contextmanager
def watched(functions: Functions) -> Iterator[list[int]]:
    """Yield the memory that the processes of the function use together, again and again, shared pages counted once."""
    used, over = [0], threading.Event()

    def watch() -> None:
        while not over.wait(0.1):
            if (pid := functions.pid) is not None:
                used.append(sum(map(processes.memory, (pid, *processes.below(pid)))))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield used
    finally:
        over.set()
        thread.join()


def cause(fleet: Fleet, machine_id: UUID) -> str:
    last = history.read_history(fleet.connection, machine_id)[0]
    return f"{last.kind}: {last.failed_cause}" if last.kind else str(last.event)


def test_no_attack_hurts_the_function_or_its_neighbours(real_time: Fleet, tmp_path: Path) -> None:
    """Each attack fails alone, by name, within its limits; the healthy machines of the same invocation get agents."""
    key, listing = ssh_keys.generate(), tmp_path / "machines.json"
    with MachinePool(tmp_path / "pool", 0, boot_seconds=0) as pool, closing(Environment(real_time)) as environment:
        client = Client(pool)
        client.authorized_key = ssh_keys.public_line(key)
        healthy = [client.rack(f"healthy-{number}") for number in range(3)]
        addresses = ADDRESSES | {name: pool.address(name) for name in healthy}
        listing.write_text(json.dumps([{"ID": name, "Addr": address} for name, address in addresses.items()]))
        ids = dict(zip(addresses, real_time.machines(len(addresses)), strict=True))
        for name, machine_id in ids.items():
            real_time.change(f"UPDATE machine_provided SET provider_id = '{name}' WHERE machine_id = '{machine_id}'")
        settings = {
            "SHEPHERD_PROVIDER": "static",
            "SHEPHERD_PROVIDER_MACHINES": str(listing),
            "SHEPHERD_AGENT_ENDPOINT": "https://127.0.0.1:9",
            "SHEPHERD_SSH_PORT": str(pool.port),
            "SHEPHERD_CONCURRENCY": "20",
        }
        with attackers(pool.port, client.authorized_key), functions(key) as function, watched(function) as used:
            began = time.monotonic()
            outcome = function.invoke(environment, "initializer", settings=settings, pace=SLOW)
            seconds = time.monotonic() - began
        ends = {name: cause(real_time, machine_id) for name, machine_id in ids.items()}
    assert outcome.how == "done", outcome
    assert {name: ends[name] for name in healthy} == dict.fromkeys(healthy, "Finished")
    assert {name: ends[name] for name in ADDRESSES if not re.match(CAUSES[name], ends[name])} == {}
    assert max(used) < FUNCTION_BYTES + len(ADDRESSES) * PROCESS_BYTES
    assert seconds < 3 * MACHINE_SECONDS, "the invocation did not end in time"
