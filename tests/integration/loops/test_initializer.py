"""The Initializer, against simulated machines with real SSH, the real agent, and agents that misbehave."""

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
from shepherd_core.agent.takeover import AgentProgram, MachineConnection, RunResult
from shepherd_core.bmdb.agents import host_keys
from shepherd_core.bmdb.machines import lookup
from shepherd_core.bmdb.work import history
from shepherd_core.domain.backoff import Backoff
from shepherd_core.domain.clock import Deadline, SystemClock
from shepherd_core.domain.errors import SourceMissing
from shepherd_core.domain.machine import Machine, ProviderId
from shepherd_core.domain.pb.agent_pb2 import TakeoverResponse
from shepherd_core.loops import runner
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
from tests.support.bmdb.capacity import Edge
from tests.support.bmdb.fleet import HOUR, PROVIDER, Fleet
from tests.support.waiting import eventually

PATH = "/root/agent"

ANSWER = """\
#!/usr/bin/env -S python3 -I -S
import sys

def field(number, content):
    return bytes([number << 3 | 2, len(content)]) + content

init = sys.stdin.buffer.read()
"""
"""The beginning of an agent that answers by hand: fields of its answer are no longer than a byte can tell."""

SOUND = ANSWER + "sys.stdout.buffer.write(field(1, field(1, init) + field(2, bytes(32))))\n"
"""An agent that answers and ends; it starts in a tenth of the real one's time."""


class Ear:
    """A dialer that hears what the agents answer, and who does not hang up."""

    def __init__(self, dialer: SshDialer) -> None:
        self.answers: list[bytes] = []
        self.open: set[MachineConnection] = set()
        self._dialer = dialer

    def dial(self, address: str, pinned_host_key: str | None, deadline: Deadline) -> MachineConnection:
        return _Overheard(self._dialer.dial(address, pinned_host_key, deadline), self)


class _Overheard:
    def __init__(self, connection: MachineConnection, ear: Ear) -> None:
        self._connection = connection
        self._ear = ear
        ear.open.add(connection)

    def start(self, program: AgentProgram, stdin: bytes, deadline: Deadline) -> RunResult:
        result = self._connection.start(program, stdin, deadline)
        self._ear.answers.append(result.stdout)
        return result

    def close(self) -> None:
        self._connection.close()
        self._ear.open.discard(self._connection)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


@dataclass
class InitializerSetup:
    fleet: Fleet
    client: Client
    key: paramiko.PKey
    dialer: Ear
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
        edge.before["list_machines"] = _nobody_may_list
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
        clock = SystemClock()
        return runner.run(
            loop,
            PROVIDER,
            self.fleet.connection,
            clock,
            RunLimits(10, machine_seconds, 60),
            deadline=Deadline(clock, 60),
            runtime_info="a test",
        )

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
        """Let the machine need an agent again, as after a recovery that is long over."""
        self.fleet.change(f"DELETE FROM machine_agent_started WHERE machine_id = '{machine_id}'")


def _nobody_may_list() -> None:
    raise AssertionError("the whole fleet was listed for one machine")


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
        dialer = Ear(SshDialer(private_key, "root", pool.port, connect_timeout=60))
        key = paramiko.Ed25519Key.from_private_key(io.StringIO(private_key))
        sound = tmp_path / "sound"
        sound.write_text(SOUND)
        yield InitializerSetup(fleet, client, key, dialer, endpoint, agent, sound)
        assert not dialer.open


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "script"
        path.write_text(text)
        return path

    return write


def test_an_agent_is_started_and_its_key_recorded(env: InitializerSetup, capsys: pytest.CaptureFixture[str]) -> None:
    """Over SSH it learns keys and time: neither its endpoint nor its machine's clock is to be believed."""
    machine_id, name = env.machine()
    env.ca_certificate = b"of no use over plain HTTP"
    before = time.time_ns() // 1_000_000
    assert env.run(agent=env.agent, keys=[PUBLIC])[Metric.FINISHED] == 1
    (answer,) = env.dialer.answers
    shown = env.show(machine_id)
    success = TakeoverResponse.FromString(answer).success
    assert shown.agent_public_key == success.key.hex()
    assert shown.agent_started_at is not None
    assert list(success.init_message.installation_key) == [PUBLIC]
    assert before <= success.init_message.time <= time.time_ns() // 1_000_000
    assert env.fleet.events(machine_id) == ["Started", "Finished"]
    (line,) = log_lines(capsys)
    assert (line["level"], line["machine_id"]) == ("WARNING", str(machine_id))
    assert line["warnings"] == ["the ca_certificate is not used, because the endpoint is plain HTTP"]
    assert len(env.pool.agents(name)) == 1
    eventually(lambda: env.endpoint.heard == {str(machine_id)})


def test_an_agent_that_is_there_already_is_not_uploaded_again(env: InitializerSetup) -> None:
    """It may be a hundred megabytes. The new agent replaces the old one, and its key the old key."""
    machine_id, name = env.machine()
    env.run(agent=env.agent)
    first_key, file = env.show(machine_id).agent_public_key, (env.pool.disk(name) / "root/agent").stat()
    env.lose_agent(machine_id)
    assert env.run(agent=env.agent)[Metric.FINISHED] == 1
    assert (env.pool.disk(name) / "root/agent").stat() == file
    assert env.show(machine_id).agent_public_key not in {None, first_key}
    assert len(env.pool.agents(name)) == 1


# --- host keys ---


def test_a_changed_host_key_fails_until_an_operator_clears_it(env: InitializerSetup) -> None:
    """It is another machine, or somebody in between; nothing is run there, and nothing is pinned anew."""
    machine_id, name = env.machine()
    env.run()
    pinned, runs = env.show(machine_id).host_key, env.pool.runs(name)
    env.pool.change_host_key(name)
    env.lose_agent(machine_id)
    assert env.run()[Metric.FAILED] == 1
    assert env.cause(machine_id).startswith("ssh-host-key-changed: ")
    assert env.pool.runs(name) == runs
    assert env.show(machine_id).host_key == pinned

    assert host_keys.forget_host_key(env.fleet.connection, machine_id, "reinstalled")
    env.fleet.pass_time(HOUR)
    assert env.run()[Metric.FINISHED] == 1
    assert env.show(machine_id).host_key not in {None, pinned}


def test_without_a_pin_the_providers_host_key_counts(env: InitializerSetup) -> None:
    """A reinstall drops the pin. If the provider knows the key, no first contact has to be trusted."""
    machine_id, name = env.machine()
    env.run()
    known = str(env.show(machine_id).host_key)
    assert host_keys.forget_host_key(env.fleet.connection, machine_id, "reinstalled")
    env.lose_agent(machine_id)
    provider = _Knowing(StaticProvider(lambda: json.dumps(env.entries).encode()), known)
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


@pytest.mark.parametrize("known", [False, True])
def test_where_a_host_key_is_from_is_recorded(env: InitializerSetup, known: bool) -> None:
    """A key that was trusted at first sight deserves another look; one that the provider named does not."""
    machine_id, name = env.machine()
    provider, key = None, env.host_key(name)
    if known:
        provider = _Knowing(StaticProvider(lambda: json.dumps(env.entries).encode()), key)
    assert env.run(provider=provider, require_known_host_key=known)[Metric.FINISHED] == 1
    shown = env.show(machine_id)
    assert (shown.host_key, shown.host_key_origin) == (key, "Provider" if known else "FirstContact")


class _Knowing(Edge):
    def __init__(self, provider: StaticProvider, host_key: str) -> None:
        super().__init__(provider)
        self._host_key = host_key

    def get_machine(self, provider_id: ProviderId, deadline: Deadline) -> Machine:
        return replace(super().get_machine(provider_id, deadline), host_key=self._host_key)


# --- failures ---


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
    assert {cause: env.cause(machine_id).split(":")[0] for cause, machine_id in machines.items()} == {
        cause: cause for cause in machines
    }
    for cause, machine_id in machines.items():
        assert (env.show(machine_id).agent_started_at is not None) == (cause == "Finished")


def test_without_an_agent_to_start_no_machine_fails(env: InitializerSetup) -> None:
    machine_id, _ = env.machine()
    with pytest.raises(SourceMissing):
        env.run(agent=Path("/nowhere"))
    assert env.fleet.events(machine_id) == ["Started", "Canceled"]


def test_an_agent_has_its_own_time_to_answer(env: InitializerSetup, script: Callable[[str], Path]) -> None:
    """The upload may take minutes; an agent that has not answered in one never will."""
    machine_id, _ = env.machine()
    assert env.run(agent=script("#!/bin/sh\nsleep 1000\n"), answer_seconds=0.5)[Metric.FAILED] == 1
    assert re.fullmatch(r"ssh-timed-out: running /root/agent at .* took longer than 0\.\d+ s", env.cause(machine_id))
    assert env.fleet.facts(machine_id) == set()
