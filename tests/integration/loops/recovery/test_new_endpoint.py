"""A fleet whose endpoint has gone: each machine is found alive, and gets an agent that reports to the new one."""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import BinaryIO

from shepherd_core.agent.takeover import RunResult
from shepherd_core.domain.clock import Deadline
from shepherd_core.domain.machine import Availability, Machine, ProviderId
from shepherd_core.domain.pace import Pace
from shepherd_core.domain.pb.agent_pb2 import TakeoverInit, TakeoverResponse, TakeoverSuccess
from shepherd_core.domain.remediation import AgentState
from shepherd_core.loops import runner
from shepherd_core.loops.initializer import Initializer, StartOptions
from shepherd_core.loops.look import Look
from shepherd_core.loops.runner import RunLimits

from tests.conftest import ManualClock
from tests.support.bmdb.fleet import Fleet
from tests.support.bmdb.recovery import RecoveryEnvironment
from tests.support.providers.fake_provider import FakeSteps

MACHINES = 100
OLD, NEW = "https://old.example.com/fleet", "https://new.example.com/fleet"
HOST_KEY = "ssh-ed25519 AAAA"


class AgentFile:
    """The agent, which is on all machines already."""

    sha256 = "ab" * 32
    size = 3

    def open(self) -> BinaryIO:
        """Return it."""
        return io.BytesIO(b"elf")


@dataclass
class Alive:
    """A connection to a machine whose agent runs."""

    address: str
    endpoints: dict[str, str]
    host_key: str = HOST_KEY

    def has(self, _path: str, _sha256: str, _deadline: Deadline) -> bool:
        """Have it."""
        return True

    def upload(self, binary: object, path: str, deadline: Deadline) -> None:
        """Fail the test."""
        raise NotImplementedError

    def run(self, _path: str, stdin: bytes, _deadline: Deadline) -> RunResult:
        """Replace the agent by one that reports to the endpoint that it is told."""
        init = TakeoverInit.FromString(stdin)
        self.endpoints[self.address] = init.bmaas_endpoint
        answer = TakeoverResponse(success=TakeoverSuccess(init_message=init, key=b"\x5e" * 32))
        return RunResult(answer.SerializeToString(), b"", 0)

    def agent_state(self, _path: str, _deadline: Deadline) -> AgentState:
        """Say that it runs."""
        return AgentState.RUNS

    def close(self) -> None:
        """Do nothing."""


class Site(FakeSteps):
    """The provider of the machines, and the way to them."""

    def __init__(self, addresses: Mapping[str, str]) -> None:
        super().__init__()
        self._addresses = addresses
        self.endpoints = dict.fromkeys(addresses.values(), OLD)
        """Where the agent of each machine reports to, by address."""

    def get_machine(self, provider_id: ProviderId, deadline: Deadline) -> Machine:
        """Return the machine."""
        address = ip_address(self._addresses[provider_id])
        return Machine(provider_id=provider_id, availability=Availability.KNOWN_USED, address=address)

    def dial(self, address: str, pinned_host_key: str | None, deadline: Deadline) -> Alive:
        """Connect."""
        assert pinned_host_key == HOST_KEY
        return Alive(address, self.endpoints)


def test_a_fleet_moves_from_an_endpoint_that_is_gone_without_a_reboot(fleet: Fleet, clock: ManualClock) -> None:
    """Looks find the machines alive, and their agents are started with the endpoint in force; no budget is used."""
    env = RecoveryEnvironment(fleet, clock)
    machines = fleet.machines(MACHINES, started_ago=3 * 3600, reported_ago=0)
    fleet.sql("UPDATE machine_provided SET provider_ip_address = '192.0.2.' || replace(provider_id, 'machine-', '')")
    fleet.sql("INSERT INTO machine_host_key SELECT machine_id, :key, now() FROM machine_provided", key=HOST_KEY)
    rows = fleet.sql("SELECT machine_id, provider_id, provider_ip_address FROM machine_provided")
    address = {machine_id: at for machine_id, _, at in rows}
    env.provider = site = Site({provider_id: at for _, provider_id, at in rows})
    env.look = Look(site, "/root/agent", 10, lambda _: None)
    options = StartOptions(path="/root/agent", endpoint=NEW, answer_seconds=60, backoff=Pace().start_backoff)
    initializer = Initializer(site, site, lambda: (AgentFile(), b""), options)

    def minutes(number: int, alive: str) -> None:
        for _ in range(number):
            env.reporting = [each for each in machines if site.endpoints[address[each]] == alive]
            env.tick()
            deadline = Deadline(clock, 600)
            limits = RunLimits(10, 60, 60)
            runner.run(initializer, env.name, fleet.connection, clock, limits, deadline=deadline, runtime_info="a test")

    minutes(5, OLD)
    minutes(30, NEW)
    assert set(site.endpoints.values()) == {NEW}
    assert env.limited() == {}
    assert site.asked == []
    assert fleet.sql("SELECT DISTINCT step FROM work_history WHERE step IS NOT NULL") == [["restart-agent"]]
    assert fleet.sql("SELECT DISTINCT state FROM machine_states") == [["running"]]
    assert fleet.sql("SELECT count(*) FROM machine_agent_heartbeat") == [[MACHINES]]
