import base64
import io
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import paramiko
import pytest
from shepherd_core.adapters import ssh_keys
from shepherd_core.adapters.agent_file import OperatorsAgent
from shepherd_core.adapters.ssh.dialer import SshDialer
from shepherd_core.bmdb.agents import host_keys
from shepherd_core.bmdb.machines import lookup
from shepherd_core.bmdb.work import history
from shepherd_core.domain.backoff import Backoff
from shepherd_core.domain.clock import Deadline, SystemClock
from shepherd_core.domain.errors import SourceMissing
from shepherd_core.domain.machine import Machine, ProviderId
from shepherd_core.domain.pb.agent_pb2 import TakeoverInit
from shepherd_core.loops.initializer import Initializer, StartOptions
from shepherd_core.loops.runner import RunLimits
from shepherd_core.providers.static import StaticProvider
from shepherd_core.telemetry import Metric

from simulator.machines.pool import MachinePool
from tests.conftest import log_lines
from tests.support.agents.agent_server import AgentServer
from tests.support.agents.executable import write_agent
from tests.support.agents.installation_key import PUBLIC
from tests.support.agents.machine_client import Client
from tests.support.bmdb.capacity import Edge, failing
from tests.support.bmdb.fleet import HOUR, Fleet, invoke
from tests.support.waiting import eventually

PATH = "/root/agent"

KEY = bytes(range(32))
SOUND = f"""\
#!/usr/bin/env -S python3 -I -S
import sys

def field(number, content):
    return bytes([number << 3 | 2, len(content) & 127 | 128, len(content) >> 7]) + content

init = sys.stdin.buffer.read()
with open(sys.argv[0] + ".init", "wb") as file:
    file.write(init)
sys.stdout.buffer.write(field(1, field(1, init) + field(2, {KEY!r})))
"""
"""An agent that keeps what it was told, answers by hand, and ends, in a tenth of the time that the real one takes."""


@dataclass
class InitializerSetup:
    fleet: Fleet
    client: Client
    key: paramiko.PKey
    dialer: SshDialer
    endpoint: AgentServer
    agent: Path
    """The real one."""
    sound: Path
    """One that only answers."""
    entries: list[dict[str, str]] = field(default_factory=list)
    ca_certificate: bytes = b""

    @property
    def pool(self) -> MachinePool:
        return self.client.pool

    def machine(self) -> tuple[UUID, str]:
        """Add a provided machine that is up; return its machine id, and the provider id, which is its name."""
        machine_id = self.fleet.provided_machine()
        name = f"machine-{len(self.entries) + 1}"
        self.client.rack(name)
        self.entries.append({"ID": name, "Addr": self.pool.address(name)})
        return machine_id, name

    def run(
        self,
        *,
        provider: Any = None,
        agent: Path | None = None,
        answer_seconds: float = 20,
        machine_seconds: float = 20,
        keys: Sequence[bytes] = (),
        require_known_host_key: bool = False,
    ) -> dict[Metric, float]:
        """Run one invocation; *agent* is the executable, unless it need only answer, *keys* those for installations."""
        edge = Edge(StaticProvider(lambda: json.dumps(self.entries).encode()))
        edge.before["list_machines"] = failing(AssertionError("the whole fleet was listed for one machine"))
        loop = Initializer(
            provider or edge,
            self.dialer,
            lambda: (OperatorsAgent(str(agent or self.sound)).fetch(), self.ca_certificate),
            StartOptions(
                path=PATH,
                endpoint=self.endpoint.url,
                answer_seconds=answer_seconds,
                backoff=Backoff(300, 14_400, 1.2),
                installation_keys=lambda: keys,
                require_known_host_key=require_known_host_key,
            ),
        )
        return invoke(loop, self.fleet.connection, SystemClock(), RunLimits(10, machine_seconds, 60), seconds=60)

    def host_key(self, name: str) -> str:
        with self.client.login(name, key=self.key) as ssh:
            transport = ssh.get_transport()
            assert transport is not None
            return f"ssh-ed25519 {base64.b64encode(transport.get_remote_server_key().asbytes()).decode()}"

    def cause(self, machine_id: UUID) -> str:
        last = history.read_history(self.fleet.connection, machine_id)[0]
        return f"{last.kind}: {last.failed_cause}" if last.kind else str(last.event)

    def show(self, machine_id: UUID) -> lookup.ShownMachine:
        return lookup.show_machine(self.fleet.connection, machine_id)

    def lose_agent(self, machine_id: UUID) -> None:
        self.fleet.change(f"DELETE FROM machine_agent_started WHERE machine_id = '{machine_id}'")


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("agent") / "agent"
    write_agent(path)
    return path


@pytest.fixture
def env(fleet: Fleet, tmp_path: Path, agent: Path) -> Iterator[InitializerSetup]:
    private_key = ssh_keys.generate()
    environment = {"SHEPHERD_AGENT_HEARTBEAT_SECONDS": "0.05"}
    with (
        AgentServer() as endpoint,
        MachinePool(tmp_path / "pool", 0, boot_seconds=0, agent_environment=environment) as pool,
    ):
        client = Client(pool)
        client.authorized_key = ssh_keys.public_line(private_key)
        dialer = SshDialer(private_key, "root", pool.port, connect_timeout=60)
        key = paramiko.Ed25519Key.from_private_key(io.StringIO(private_key))
        sound = tmp_path / "sound"
        sound.write_text(SOUND)
        yield InitializerSetup(fleet, client, key, dialer, endpoint, agent, sound)


def test_an_agent_is_started_and_reports(env: InitializerSetup, capsys: pytest.CaptureFixture[str]) -> None:
    machine_id, name = env.machine()
    env.ca_certificate = b"of no use over plain HTTP"
    assert env.run(agent=env.agent)[Metric.FINISHED] == 1
    shown = env.show(machine_id)
    assert shown.agent_started_at is not None
    assert (shown.host_key, shown.host_key_origin) == (env.host_key(name), "FirstContact")
    assert env.fleet.events(machine_id) == ["Started", "Finished"]
    (line,) = log_lines(capsys)
    assert (line["level"], line["machine_id"]) == ("WARNING", str(machine_id))
    assert line["warnings"] == ["the ca_certificate is not used, because the endpoint is plain HTTP"]
    assert len(env.pool.agents(name)) == 1
    eventually(lambda: env.endpoint.heard == {str(machine_id)})


def test_an_agent_learns_keys_and_time_and_tells_its_key(env: InitializerSetup) -> None:
    """Over SSH: neither its endpoint nor its machine's clock is to be believed."""
    machine_id, name = env.machine()
    before = time.time_ns() // 1_000_000
    env.run(keys=[PUBLIC])
    init = TakeoverInit.FromString((env.pool.disk(name) / "root/agent.init").read_bytes())
    assert (init.machine_id, init.bmaas_endpoint) == (str(machine_id), env.endpoint.url)
    assert list(init.installation_key) == [PUBLIC]
    assert before <= init.time <= time.time_ns() // 1_000_000
    assert env.show(machine_id).agent_public_key == KEY.hex()


def test_a_changed_host_key_fails_until_an_operator_clears_it(env: InitializerSetup) -> None:
    """It is another machine, or somebody in between; nothing is run there, and nothing is pinned anew."""
    machine_id, name = env.machine()
    env.run()
    pinned, runs = env.show(machine_id).host_key, env.pool.runs(name)
    env.pool.change_host_key(name)
    env.lose_agent(machine_id)
    assert env.run()[Metric.FAILED] == 1
    assert env.cause(machine_id).startswith("ssh-host-key-changed: ")
    assert (env.pool.runs(name), env.show(machine_id).host_key) == (runs, pinned)

    assert host_keys.forget_host_key(env.fleet.connection, machine_id, "reinstalled")
    env.fleet.pass_time(HOUR)
    assert env.run()[Metric.FINISHED] == 1
    assert env.show(machine_id).host_key not in {None, pinned}


def test_without_a_pin_the_providers_host_key_counts(env: InitializerSetup) -> None:
    """A reinstall drops the pin. If the provider knows the key, no first contact has to be trusted."""
    machine_id, name = env.machine()
    key = env.host_key(name)
    provider = _Knowing(StaticProvider(lambda: json.dumps(env.entries).encode()), key)
    assert env.run(provider=provider, require_known_host_key=True)[Metric.FINISHED] == 1
    assert (env.show(machine_id).host_key, env.show(machine_id).host_key_origin) == (key, "Provider")
    assert host_keys.forget_host_key(env.fleet.connection, machine_id, "reinstalled")
    env.lose_agent(machine_id)
    env.pool.change_host_key(name)
    assert env.run(provider=provider)[Metric.FAILED] == 1
    assert env.cause(machine_id).startswith("ssh-host-key-changed: ")
    assert env.show(machine_id).host_key is None


def test_a_required_host_key_comes_before_the_first_contact(env: InitializerSetup) -> None:
    """Another machine that answers at its address would get the agent and what belongs to this one."""
    machine_id, name = env.machine()
    assert env.run(require_known_host_key=True)[Metric.FAILED] == 1
    assert env.cause(machine_id).startswith("host-key-unknown: ")
    assert f"machine pin-host-key {machine_id} KEY" in env.cause(machine_id)
    assert env.pool.runs(name) == 0
    assert env.fleet.sql("SELECT fault FROM work_backoff") == [["access"]]  # which no reboot mends
    key = env.host_key(name)
    host_keys.pin_host_key(env.fleet.connection, machine_id, key, reason="read on its console")
    env.fleet.pass_time(HOUR)
    assert env.run(require_known_host_key=True)[Metric.FINISHED] == 1
    assert (env.show(machine_id).host_key, env.show(machine_id).host_key_origin) == (key, "Operator")


class _Knowing(Edge):
    def __init__(self, provider: StaticProvider, host_key: str) -> None:
        super().__init__(provider)
        self._host_key = host_key

    def get_machine(self, provider_id: ProviderId, deadline: Deadline) -> Machine:
        return replace(super().get_machine(provider_id, deadline), host_key=self._host_key)


def test_every_failure_of_ssh_is_recorded_by_name(env: InitializerSetup) -> None:
    """The cause decides whether to look at the machine, its disk, its key or the network; the others go on."""
    faults: dict[str, Callable[[str], None]] = {
        "ssh-refused": env.pool.power_off,
        "ssh-authentication-failed": env.pool.refuse_logins,
        "ssh-upload-failed": env.pool.fill_disk,
        "Finished": lambda _: None,
    }
    machines = {}
    for cause, cause_fault in faults.items():
        machines[cause], name = env.machine()
        cause_fault(name)
    counts = env.run()
    assert (counts[Metric.FINISHED], counts[Metric.FAILED]) == (1, 3)
    machines["ssh-timed-out"], name = env.machine()
    env.pool.hang(name)
    assert env.run(machine_seconds=2)[Metric.FAILED] == 1  # apart: for the others no time is too long
    assert [env.cause(machine_id).split(":")[0] for machine_id in machines.values()] == [*machines]
    for cause, machine_id in machines.items():
        assert (env.show(machine_id).agent_started_at is not None) == (cause == "Finished")


def test_without_an_agent_to_start_no_machine_fails(env: InitializerSetup) -> None:
    machine_id, _ = env.machine()
    with pytest.raises(SourceMissing):
        env.run(agent=Path("/nowhere"))
    assert env.fleet.events(machine_id) == ["Started", "Canceled"]


def test_an_agent_has_its_own_time_to_answer(env: InitializerSetup, tmp_path: Path) -> None:
    """The upload may take minutes; an agent that has not answered in one never will."""
    machine_id, _ = env.machine()
    hanging = tmp_path / "hanging"
    hanging.write_text("#!/bin/sh\nsleep 1000\n")
    assert env.run(agent=hanging, answer_seconds=0.5)[Metric.FAILED] == 1
    assert re.fullmatch(r"ssh-timed-out: running /root/agent at .* took longer than 0\.\d+ s", env.cause(machine_id))
    assert env.fleet.facts(machine_id) == set()
