"""A provider with the way to its machines: what SSH finds there is what the test says."""

import io
from dataclasses import dataclass
from ipaddress import ip_address
from typing import BinaryIO

from shepherd_core.agent.takeover import RunResult
from shepherd_core.domain.clock import Clock, Deadline
from shepherd_core.domain.errors import ShepherdError
from shepherd_core.domain.machine import Availability, Machine, ProviderId, ProviderStatus
from shepherd_core.domain.pace import Pace
from shepherd_core.domain.pb.agent_pb2 import TakeoverInit, TakeoverResponse, TakeoverSuccess
from shepherd_core.domain.remediation import AgentState
from shepherd_core.loops import runner
from shepherd_core.loops.initializer import Initializer, StartOptions
from shepherd_core.loops.look import Look
from shepherd_core.loops.runner import RunLimits

from tests.support.bmdb.fleet import PROVIDER, Fleet
from tests.support.providers.fake_provider import FakeSteps

OLD, NEW = "https://old.example.com/fleet", "https://new.example.com/fleet"
HOST_KEY = "ssh-ed25519 AAAA"


class AgentFile:
    sha256 = "ab" * 32
    size = 3

    def open(self) -> BinaryIO:
        return io.BytesIO(b"elf")


@dataclass
class _Connection:
    site: "Site"
    address: str
    host_key: str = HOST_KEY

    def start(self, _program: object, stdin: bytes, _deadline: Deadline) -> RunResult:
        """Replace the agent by one that reports to the endpoint that it is told."""
        if self.site.start_error:
            raise self.site.start_error
        init = TakeoverInit.FromString(stdin)
        self.site.endpoints[self.address] = init.bmaas_endpoint
        answer = TakeoverResponse(success=TakeoverSuccess(init_message=init, key=b"\x5e" * 32))
        return RunResult(answer.SerializeToString(), b"", 0)

    def agent_state(self, _path: str, deadline: Deadline) -> AgentState:
        self.site.look_seconds = deadline.left()
        if isinstance(self.site.seen, ShepherdError):
            raise self.site.seen
        return self.site.seen

    def close(self) -> None:
        pass


class Site(FakeSteps):
    """The provider of the machines of a fleet, and the way to them. Each has an address and a pinned host key."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__()
        fleet.sql(
            "UPDATE machine_provided SET provider_ip_address = '192.0.2.' || replace(provider_id, 'machine-', '')"
        )
        fleet.sql(
            "INSERT INTO machine_host_key SELECT machine_id, :key, now() FROM machine_provided ON CONFLICT DO NOTHING",
            key=HOST_KEY,
        )
        found = fleet.sql("SELECT provider_id, provider_ip_address FROM machine_provided")
        self.addresses = dict(found)
        self.endpoints = dict.fromkeys(self.addresses.values(), OLD)
        """Where the agent of each machine reports to, by address."""
        self.seen: AgentState | ShepherdError = AgentState.RUNS
        """What a look sees, or why it sees nothing."""
        self.start_error: ShepherdError | None = None
        """Why no agent can be started."""
        self.status = ProviderStatus.UNKNOWN
        """Of each machine, as the provider says."""
        self.look_seconds: float | None = None
        """How long the last look was given."""

    @property
    def look(self) -> Look:
        return Look(self, "/root/agent", Pace().look_seconds, lambda _: None)

    def start_agents(self, fleet: Fleet, clock: Clock) -> None:
        options = StartOptions(path="/root/agent", endpoint=NEW, answer_seconds=60, backoff=Pace().start_backoff)
        initializer = Initializer(self, self, lambda: (AgentFile(), b""), options)
        limits, deadline = RunLimits(10, 60, 60), Deadline(clock, 600)
        runner.run(initializer, PROVIDER, fleet.connection, clock, limits, deadline=deadline, runtime_info="a test")

    def get_machine(self, provider_id: ProviderId, deadline: Deadline) -> Machine:
        address = ip_address(self.addresses[provider_id])
        return Machine(
            provider_id=provider_id, availability=Availability.KNOWN_USED, address=address, status=self.status
        )

    def dial(self, address: str, pinned_host_key: str | None, deadline: Deadline) -> _Connection:
        assert pinned_host_key == HOST_KEY
        return _Connection(self, address)
