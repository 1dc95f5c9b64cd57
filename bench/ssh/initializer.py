"""Initializer throughput: agents per minute, by one function, one at a time, and by OpenSSH's clients."""

import resource
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import psutil
from shepherd_core.adapters.agent_file import OperatorsAgent
from shepherd_core.adapters.ssh.dialer import SshDialer
from shepherd_core.bmdb.connection import Connection
from shepherd_core.domain.backoff import Backoff
from shepherd_core.domain.clock import Deadline, SystemClock
from shepherd_core.domain.pb.agent_pb2 import TakeoverInit, TakeoverResponse
from shepherd_core.loops import runner
from shepherd_core.loops.initializer import Initializer, StartOptions
from shepherd_core.telemetry import Metric

from bench.fleet import PROVIDER
from bench.results import Result, Table
from bench.ssh.pool import BenchPool, machines, provider
from simulator.environment.postgres import Postgres
from tests.support.bmdb.fleet import administrator

AGENT_BYTES = 5_000_000
CONCURRENCY = 10
_FORK_SERVER = "shepherd_core.adapters.ssh.fork_server"

_PLANT = """
WITH new AS (INSERT INTO machines SELECT FROM generate_series(1, {count}) RETURNING machine_id),
numbered AS (SELECT machine_id, row_number() OVER () AS number FROM new)
INSERT INTO machine_provided (machine_id, provider, provider_id)
SELECT machine_id, 'static', (ARRAY[{addresses}])[number] FROM numbered;
"""


def measure(*, quick: bool) -> Result:
    """Return the figures."""
    count, alone = (6, 2) if quick else (200, 30)
    with Postgres() as postgres, machines(2 * count + alone) as machine_pool:
        one, ours, theirs = (
            machine_pool.addresses[:alone],
            machine_pool.addresses[alone : alone + count],
            machine_pool.addresses[alone + count :],
        )
        figures = {
            "one at a time": _ours(postgres, machine_pool, one, 1),
            f"one function, {CONCURRENCY} at a time": _ours(postgres, machine_pool, ours, CONCURRENCY),
            f"sftp and ssh, {CONCURRENCY} at a time": _theirs(machine_pool, theirs),
        }
    result = Result()
    result.tables.append(
        Table(
            f"Agents of {AGENT_BYTES / 1e6:g} MB started over SSH",
            ["way", "machines", "machines per minute", "CPU s per machine"],
            [[way, *figure] for way, figure in figures.items()],
        )
    )
    alone_rate, rate, stock_rate = (figure[1] for figure in figures.values())
    result.at_least("machines per minute, times one at a time", 1, rate / alone_rate)
    result.at_least("machines per minute, times the stock clients", 0.7, rate / stock_rate)
    return result


def _ours(
    postgres: Postgres, machine_pool: BenchPool, addresses: Sequence[str], concurrency: int
) -> tuple[int, float, float]:
    """Return the machines, the machines per minute, and our processor seconds per machine, of one invocation."""
    settings = postgres.new_database()
    quoted = ", ".join(f"'{address}'" for address in addresses)
    with administrator(settings) as admin:
        admin.run(_PLANT.format(count=len(addresses), addresses=quoted))

    clock = SystemClock()
    agent = OperatorsAgent(str(machine_pool.agent(AGENT_BYTES)))
    loop = Initializer(
        provider(machine_pool),
        SshDialer(machine_pool.private_key, "root", machine_pool.port, 10),
        lambda: (agent.fetch(), b""),
        StartOptions(
            path="/root/agent",
            endpoint="agents.example.com:443",
            answer_seconds=60,
            backoff=Backoff(60, 60, 1),
        ),
    )
    limits = runner.RunLimits(concurrency, machine_seconds=120, session_seconds=60)
    connection = Connection(settings, None, clock)
    began, spent = time.perf_counter(), _processor_seconds()
    counts = runner.run(loop, PROVIDER, connection, clock, limits, deadline=Deadline(clock, 1800), runtime_info="bench")
    seconds, spent = time.perf_counter() - began, _processor_seconds() - spent
    connection.close()
    if counts[Metric.FINISHED] != len(addresses):
        raise RuntimeError(counts)
    return len(addresses), 60 * len(addresses) / seconds, spent / len(addresses)


def _theirs(machine_pool: BenchPool, addresses: Sequence[str]) -> tuple[int, float, float]:
    source = machine_pool.agent(AGENT_BYTES)
    init = TakeoverInit(machine_id="bench", bmaas_endpoint="agents.example.com:443")

    def start(address: str) -> None:
        machine_pool.sftp(address, source)
        answer = TakeoverResponse.FromString(machine_pool.ssh(address, init.SerializeToString()))
        if answer.success.init_message != init:
            raise RuntimeError(answer)

    before, began = _children(), time.perf_counter()
    with ThreadPoolExecutor(CONCURRENCY) as pool:
        list(pool.map(start, addresses))
    seconds = time.perf_counter() - began
    return len(addresses), 60 * len(addresses) / seconds, (_children() - before) / len(addresses)


def _children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _processor_seconds() -> float:
    """Return the processor time so far, with that of the processes that talk to machines, once these have ended."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    used = sum(usage.ru_utime + usage.ru_stime for usage in usages)
    for child in psutil.Process().children():
        if _FORK_SERVER in child.cmdline():
            while child.children():
                time.sleep(0.001)
            used += sum(child.cpu_times()[:4])
    return used
