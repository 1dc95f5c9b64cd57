"""Machines in memory: their provider, their SSH, and the agents that were started on them."""

import hashlib
import io
from base64 import b64encode
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import BinaryIO
from uuid import UUID

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from shepherd_core.agent.endpoint import AgentRequest
from shepherd_core.agent.takeover import AgentProgram, RunResult
from shepherd_core.domain.clock import Clock, Deadline, Permission
from shepherd_core.domain.errors.machine import SshTimedOut
from shepherd_core.domain.errors.provider import MachineNotFound, ProviderUnavailable
from shepherd_core.domain.machine import Availability, Machine, ProviderId, ProviderStatus
from shepherd_core.domain.pb.agent_pb2 import TakeoverInit, TakeoverResponse, TakeoverSuccess
from shepherd_core.domain.pb.callback_pb2 import HeartbeatRequest
from shepherd_core.domain.provider import Capability, Provider
from shepherd_core.domain.remediation import AgentState

BOOT_SECONDS = 180.0
_RACK = 20


@dataclass(frozen=True)
class Ailment:
    """What is wrong with a machine, and what mends it."""

    name: str
    share: float
    """Of all failures."""
    mended_by: frozenset[str]
    answers: bool = False
    """Over SSH."""


AILMENTS = (
    Ailment("hangs", 0.6, frozenset({"reboot", "power-cycle"})),
    Ailment("its agent ends", 0.25, frozenset({"agent start", "reboot", "power-cycle"}), answers=True),
    Ailment("hangs until its power is cut", 0.1, frozenset({"power-cycle"})),
    Ailment("is broken", 0.05, frozenset()),
)
"""Of a machine that fails. The shares are assumed."""


class OurAgent:
    """The bytes of an agent that nobody runs."""

    content = b"an agent"
    sha256 = hashlib.sha256(content).hexdigest()
    size = len(content)

    def open(self) -> BinaryIO:
        """Return the file."""
        return io.BytesIO(self.content)


class SimulatedMachine:
    """One machine, which answers its SSH itself (a ``takeover.MachineConnection``)."""

    host_key = "ssh-ed25519 AAAA"

    def __init__(self, number: int, clock: Clock) -> None:
        """Be off. *number* is also the minute in its interval at which it reports."""
        self.number = number
        self.provider_id = ProviderId(f"machine-{number}")
        self.address = ip_address(0x0A000000 + number)
        self.location = f"rack-{number // _RACK}"
        self.ailment: Ailment | None = None
        self.starts = 0
        self.owes_report = False
        """Its last request failed, or its agent has just been started: it sends the next one within a minute."""
        self._clock = clock
        self._boots_until = 0.0
        self._machine_id = ""
        self._key: Ed25519PrivateKey | None = None

    @property
    def answers(self) -> bool:
        """Whether it answers over SSH."""
        return (self.ailment is None or self.ailment.answers) and self._clock.monotonic() >= self._boots_until

    @property
    def healthy(self) -> bool:
        """Whether its agent runs."""
        return self.ailment is None and self.answers and self._key is not None

    def take(self, step: str) -> None:
        """Boot it, by a *step* which may mend it."""
        self._key = None
        self._boots_until = self._clock.monotonic() + BOOT_SECONDS
        self.mend(step)

    def mend(self, how: str) -> None:
        """End its ailment if *how* does that."""
        if self.ailment is not None and how in self.ailment.mended_by:
            self.ailment = None

    def heartbeat(self) -> AgentRequest:
        """Return the next request of its agent."""
        assert self._key is not None
        time = self._clock.time_of_day()
        message = HeartbeatRequest(machine_id=self._machine_id).SerializeToString()
        signed = b"\n".join((b"shepherd-agent-v1", b"POST", b"/heartbeat", str(time).encode(), message))
        headers = {
            "shepherd-machine": self._machine_id,
            "shepherd-time": str(time),
            "shepherd-signature": b64encode(self._key.sign(signed)).decode(),
        }
        return AgentRequest("POST", "/heartbeat", headers, message, time, str(self.address))

    def start(self, program: AgentProgram, stdin: bytes, deadline: Deadline) -> RunResult:  # noqa: ARG002 - as the protocol
        """Start the agent, which makes its key."""
        init = TakeoverInit.FromString(stdin)
        self._machine_id, self._key = init.machine_id, Ed25519PrivateKey.generate()
        self.mend("agent start")
        self.starts += 1
        self.owes_report = True
        success = TakeoverSuccess(init_message=init, key=self._key.public_key().public_bytes_raw())
        return RunResult(TakeoverResponse(success=success).SerializeToString(), b"", 0)

    def agent_state(self, path: str, deadline: Deadline) -> AgentState:  # noqa: ARG002
        """Return whether the agent runs."""
        return AgentState.RUNS if self.healthy else AgentState.ENDED

    def close(self) -> None:
        """Close the connection."""


class SimulatedFleet(Provider):
    """The machines' provider, and the way to them over SSH (a ``takeover.Dialer``)."""

    name = "redfish"
    capabilities = frozenset({Capability.CREATE, Capability.REBOOT, Capability.POWER_CYCLE})

    def __init__(self, count: int, clock: Clock) -> None:
        """Have *count* machines, which exist already."""
        self.machines = [SimulatedMachine(number, clock) for number in range(count)]
        self._by_id: Mapping[str, SimulatedMachine] = {each.provider_id: each for each in self.machines}
        self._by_address = {str(each.address): each for each in self.machines}
        self.down = False
        """No request of the provider is answered."""
        self.cut_off = False
        """No machine can be reached, nor reach us."""
        self.listed = 0
        """Machines in all listings."""
        self.steps: Counter[str] = Counter()
        self.harmed = 0
        """How many steps interrupted a machine whose agent ran."""

    def list_machines(self, deadline: Deadline) -> list[Machine]:  # noqa: ARG002 - it answers at once
        """Return all machines."""
        self._answer()
        self.listed += len(self.machines)
        return [self._entry(each) for each in self.machines]

    def get_machine(self, provider_id: ProviderId, deadline: Deadline) -> Machine:  # noqa: ARG002
        """Return one machine."""
        self._answer()
        return self._entry(self._found(provider_id))

    def create_machine(self, capacity: Machine, token: UUID, deadline: Deadline) -> Machine:  # noqa: ARG002
        """Return the machine, which exists already."""
        return self.get_machine(capacity.provider_id, deadline)

    def reboot(self, provider_id: ProviderId, permission: Permission) -> None:
        """Restart the machine."""
        self._interrupt("reboot", provider_id, permission)

    def power_cycle(self, provider_id: ProviderId, permission: Permission) -> None:
        """Turn its power off and on."""
        self._interrupt("power-cycle", provider_id, permission)

    def dial(self, address: str, pinned_host_key: str | None, deadline: Deadline) -> SimulatedMachine:  # noqa: ARG002
        """Connect to a machine."""
        machine = self._by_address[address]
        if self.cut_off or not machine.answers:
            message = f"{address} does not answer"
            raise SshTimedOut(message)
        return machine

    def _interrupt(self, step: str, provider_id: ProviderId, permission: Permission) -> None:
        machine = self._found(provider_id)
        self._answer()
        permission.confirm()
        self.steps[step] += 1
        self.harmed += machine.healthy
        machine.take(step)

    def _answer(self) -> None:
        if self.down:
            message = "the provider is down"
            raise ProviderUnavailable(message)

    def _found(self, provider_id: str) -> SimulatedMachine:
        if provider_id not in self._by_id:
            raise MachineNotFound(provider_id)
        return self._by_id[provider_id]

    def _entry(self, machine: SimulatedMachine) -> Machine:
        return Machine(
            provider_id=machine.provider_id,
            availability=Availability.POSSIBLY_USED,
            address=machine.address,
            location=machine.location,
            status=ProviderStatus.RUNNING,
        )
