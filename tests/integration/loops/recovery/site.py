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
from shepherd_core.loops.initializer import Initializer, StartOptions
from shepherd_core.loops.look import Look

from tests.support.bmdb.fleet import Fleet, invoke
from tests.support.providers.fake_provider import FakeSteps

HOST_KEY = "ssh-ed25519 AAAA"


class AgentFile:
    sha256 = "ab" * 32
    size = 3

    def open(self) -> BinaryIO:
        return io.BytesIO(b"elf")


@dataclass
class _Connection:
    site: "Site"
    host_key: str = HOST_KEY

    def start(self, _program: object, stdin: bytes, _deadline: Deadline) -> RunResult:
        if self.site.start_error:
            raise self.site.start_error
        init = TakeoverInit.FromString(stdin)
        answer = TakeoverResponse(success=TakeoverSuccess(init_message=init, key=b"\x5e" * 32))
        return RunResult(answer.SerializeToString(), b"", 0)

    def agent_state(self, _path: str, deadline: Deadline) -> AgentState:
        self.site.look_seconds = deadline.left()
        if isinstance(self.site.seen, ShepherdError):
            raise self.site.seen
        return self.site.seen

    def close(self) -> None:
        self.site.open -= 1


class Site(FakeSteps):
    """The provider of the machines of a fleet, and the way to them. Each has an address and a pinned host key."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__()
        fleet.sql("UPDATE machine_provided SET provider_ip_address = '192.0.2.1'")
        fleet.sql(
            "INSERT INTO machine_host_key SELECT machine_id, :key, now() FROM machine_provided ON CONFLICT DO NOTHING",
            key=HOST_KEY,
        )
        self.seen: AgentState | ShepherdError = AgentState.RUNS
        """What a look sees, or why it sees nothing."""
        self.start_error: ShepherdError | None = None
        """Why no agent can be started."""
        self.status = ProviderStatus.UNKNOWN
        """Of each machine, as the provider says."""
        self.look_seconds: float | None = None
        """How long the last look was given."""
        self.open = 0
        """Number of connections."""

    @property
    def look(self) -> Look:
        return Look(self, "/root/agent", Pace().look_seconds, lambda _: None)

    def start_agents(self, fleet: Fleet, clock: Clock) -> None:
        options = StartOptions(path="/root/agent", endpoint="http://?", answer_seconds=60, backoff=Pace().start_backoff)
        invoke(Initializer(self, self, lambda: (AgentFile(), b""), options), fleet.connection, clock)

    def get_machine(self, provider_id: ProviderId, deadline: Deadline) -> Machine:
        used, address = Availability.KNOWN_USED, ip_address("192.0.2.1")
        return Machine(provider_id=provider_id, availability=used, address=address, status=self.status)

    def dial(self, address: str, pinned_host_key: str | None, deadline: Deadline) -> _Connection:
        assert pinned_host_key == HOST_KEY
        self.open += 1
        return _Connection(self)
