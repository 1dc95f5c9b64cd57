"""The look at a machine before it is interrupted: real SSH, a real process in place of the agent."""

import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TextIO

import asyncssh
import pytest
from shepherd_core.adapters import ssh_keys
from shepherd_core.adapters.ssh.dialer import SshDialer
from shepherd_core.agent.takeover import Dialer, MachineConnection
from shepherd_core.bmdb.recovery import budget
from shepherd_core.domain.clock import Deadline
from shepherd_core.domain.errors import SecretMissing, ShepherdError, TimeLimitExceeded
from shepherd_core.domain.errors.machine import SshForkServerLost, SshUploadFailed
from shepherd_core.domain.remediation import AgentState
from shepherd_core.loops.look import Look
from shepherd_core.telemetry import Metric

from tests.conftest import ManualClock
from tests.support.agents.heartbeats import record_heartbeat
from tests.support.agents.ssh_server import KEY, SshServer
from tests.support.bmdb.fleet import HOUR, PROVIDER, Fleet
from tests.support.bmdb.recovery import MINUTE, TICK_MINUTES, OneMachine

RUNS, ENDED, INSTALLS = AgentState.RUNS, AgentState.ENDED, AgentState.INSTALLS


class LookSetup(OneMachine):
    host_key = None

    def __init__(self, fleet: Fleet, clock: ManualClock, server: SshServer, folder: Path) -> None:
        super().__init__(fleet, clock)
        self.server = server
        self.agent = folder / "agent"
        self.processes: list[subprocess.Popen[bytes]] = []
        self.error: ShepherdError | None = None
        """Why the Initializer cannot start an agent on the machine; None: it can."""
        self.at("127.0.0.1", server.public_host_keys[0])
        self.look_with()

    def look_with(
        self,
        *,
        key: str = KEY,
        port: int | None = None,
        dialer: Dialer | None = None,
        seconds: float = 5,
        prepare: Callable[[Deadline], object] = lambda _: None,
    ) -> None:
        usual = SshDialer(key, "root", port or self.server.port, connect_timeout=5)
        self.look = Look(dialer or usual, str(self.agent), seconds, prepare)

    def at(self, address: str | None, host_key: str | None) -> None:
        self.fleet.sql(
            "UPDATE machine_provided SET provider_ip_address = :at WHERE machine_id = :id", at=address, id=self.machine
        )
        self.fleet.sql("DELETE FROM machine_host_key WHERE machine_id = :id", id=self.machine)
        if host_key is not None:
            self.fleet.sql("INSERT INTO machine_host_key VALUES (:id, :key, now())", id=self.machine, key=host_key)

    def run_as_command(self, install: TextIO | None = None) -> None:
        """Start a Python program at the agent's path that has *install* open, as during an installation."""
        self.agent.write_text("import time\ntime.sleep(600)\n")
        self.processes.append(subprocess.Popen([sys.executable, self.agent], stdin=install))

    def run_agent(self, install: TextIO | None = None) -> subprocess.Popen[bytes]:
        """Start a process that holds the agent's file and *install* open, as the agent does, and name it there."""
        pid_file = self.agent.with_name("agent.pid")
        with pid_file.open("wb", buffering=0) as file:
            process = subprocess.Popen(["sleep", "600"], stdin=install, stdout=file)
            file.write(b"%-20d\n" % process.pid)
        self.processes.append(process)
        return process

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()

    def watch_and_start(self, minutes: int) -> int:
        starts = 0
        for _ in range(0, minutes, TICK_MINUTES):
            self.watch(TICK_MINUTES)
            starts += self.start_agent(error=self.error)
        return starts

    @property
    def causes(self) -> list[str | None]:
        return [cause for event, _, cause in self.lines() if event == "Looked"]


@pytest.fixture
def env(fleet: Fleet, clock: ManualClock, tmp_path: Path) -> Iterator[LookSetup]:
    with SshServer(ssh_keys.public_line(KEY)) as server:
        env = LookSetup(fleet, clock, server, tmp_path)
        yield env
        env.stop()


@pytest.mark.parametrize("stopped", [False, True])
def test_a_machine_that_is_alive_is_not_interrupted(env: LookSetup, stopped: bool) -> None:
    """Its reports get lost: nothing is gained by a reboot, and what runs there would be lost."""
    agent = env.run_agent()
    if stopped:
        agent.send_signal(signal.SIGSTOP)  # the new one ends it
    counts = env.run()
    assert env.provider.asked == []
    assert env.lines() == [("Started", None, None), ("Looked", "restart-agent", RUNS), ("Finished", None, None)]
    assert (counts[Metric.FINISHED], counts[Metric.FOUND_ALIVE]) == (1, 1)
    assert env.start_agent()


def test_a_living_machine_that_takes_no_agent_is_not_interrupted(env: LookSetup) -> None:
    """The restart took its agent's facts, but not its agent: it is still healthy as far as is known."""
    env.run_agent()
    env.error = SshUploadFailed("disk full")
    env.watch_and_start(3 * 60)
    assert len(env.causes) >= 3
    assert set(env.causes) == {RUNS}
    assert env.provider.asked == []


@pytest.mark.parametrize("text", [None, "", "nonsense\n", "0\n"])
def test_an_agent_is_found_without_its_pid_file(env: LookSetup, text: str | None) -> None:
    """The file may be gone, or was never written since the disk was full; the agent runs all the same."""
    env.run_as_command()
    if text is not None:
        env.agent.with_name("agent.pid").write_text(text)
    env.run()
    assert (env.causes, env.provider.asked) == ([RUNS], [])


@pytest.mark.parametrize("shell", ["dash", "bash", "busybox"])
def test_an_agent_is_found_by_any_shell(env: LookSetup, shell: str, tmp_path: Path) -> None:
    if (found := shutil.which(shell)) is None:
        pytest.skip(f"no {shell} here")
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "sh").symlink_to(found)
    env.server.tools = str(tools)
    env.run_as_command()
    env.run()
    assert env.causes == [RUNS]


@pytest.mark.parametrize("as_command", [False, True])
def test_an_installation_is_waited_for(env: LookSetup, as_command: bool) -> None:
    """A new agent would end it, and what it had written to the disk so far would be no system."""
    rebooted_at = env.fleet.sql(
        "INSERT INTO machine_rebooted VALUES (:id, now() - interval '7 hours', now()) RETURNING rebooted_at",
        id=env.machine,
    )
    install = env.agent.with_name("agent.install")
    install.touch()
    with install.open() as opened:
        (env.run_as_command if as_command else env.run_agent)(opened)
    assert env.watch_and_start(2 * 60) == 0
    waited = "SELECT rebooted_at + interval '2 hours' FROM machine_rebooted"
    assert env.fleet.sql(waited) == rebooted_at, "or the budget would count it"
    assert len(env.causes) >= 3
    assert set(env.causes) == {INSTALLS}
    assert env.provider.asked == []
    env.stop()
    env.run_agent()
    assert env.watch_and_start(30) == 1, "its agent is restarted when the installation has ended"
    assert env.provider.asked == []


def test_another_process_with_the_agents_id_is_not_the_agent(env: LookSetup) -> None:
    """Ids are used again, after a boot of the machine above all."""
    env.run_agent()
    other = subprocess.Popen(["sleep", "600"])
    env.processes.append(other)
    env.agent.with_name("agent.pid").write_bytes(b"%-20d\n" % other.pid)
    env.run()
    assert env.causes == [ENDED]


def _refuse(env: LookSetup) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    env.look_with(port=port)


def _hang(env: LookSetup, at: str = "login") -> None:
    env.server.freezes_at = at
    env.look_with(seconds=1)


def _another_key(env: LookSetup) -> None:
    key = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()
    env.at("127.0.0.1", " ".join(key.split()[:2]))


def _no_commands(env: LookSetup) -> None:
    async def words(process: asyncssh.SSHServerProcess[bytes]) -> None:
        process.stdout.write(b'Please login as the user "ubuntu"\n')
        process.exit(142)

    env.server.program = words


@pytest.mark.parametrize(
    ("happens", "seen"),
    [
        (_refuse, "ssh-refused"),
        (_hang, "ssh-timed-out"),
        (partial(_hang, at="program"), "ssh-timed-out"),
        (_another_key, "ssh-host-key-changed"),
    ],
)
def test_a_machine_that_is_not_seen_alive_is_recovered(
    env: LookSetup, happens: Callable[[LookSetup], None], seen: str
) -> None:
    """What answers with another key, or not at all, says nothing about the machine. The history has what was seen."""
    env.run_agent()
    happens(env)
    env.run()
    assert env.provider.asked == ["reboot"]
    assert [(event, step) for event, step, _ in env.lines()] == [
        ("Started", None), ("Looked", None), ("Attempted", "reboot"), ("Finished", "reboot")
    ]  # fmt: skip
    assert env.causes[0] == seen


@pytest.mark.parametrize("happens", [lambda env: env.look_with(key=ssh_keys.generate()), _no_commands])
def test_a_machine_that_refuses_our_key_is_not_interrupted(
    env: LookSetup, happens: Callable[[LookSetup], None]
) -> None:
    """It answers, with its own host key. A wrong key of ours would reboot the whole fleet; operators are told."""
    env.run_agent()
    happens(env)
    env.run()
    assert env.provider.asked == []
    assert [event for event, _, _ in env.lines()] == ["Started", "Failed"]
    env.fleet.pass_time(TICK_MINUTES * MINUTE)
    record_heartbeat(env.fleet.connection, env.healthy)
    assert env.run()[Metric.NO_ACCESS] == 1


@pytest.mark.parametrize(("address", "pinned"), [(None, True), ("127.0.0.1", False)])
def test_a_machine_without_address_or_key_is_not_looked_at(env: LookSetup, address: str, pinned: bool) -> None:
    """Without its address there is nothing to look at; without its key, anybody could answer."""
    env.run_agent()
    env.at(address, env.server.public_host_keys[0] if pinned else None)
    env.run()
    assert (env.server.logins, env.provider.asked) == ([], ["reboot"])


def test_a_machine_that_reports_during_the_look_keeps_its_agent(env: LookSetup) -> None:
    env.run_agent()
    connection = env.fleet.connect()

    def report(_: object) -> None:
        record_heartbeat(connection, env.machine)

    env.server.on_login = report
    env.run()
    assert env.lines()[1:] == [("Looked", "restart-agent", RUNS), ("Recovered", None, "no-longer-due")]
    assert not env.start_agent()


class _NoProcess:
    def dial(self, _address: str, _pinned: str | None, _deadline: Deadline) -> MachineConnection:
        raise SshForkServerLost


def _no_key(_: Deadline) -> None:
    raise SecretMissing


@pytest.mark.parametrize("without", ["process", "key"])
def test_a_look_that_fails_by_our_fault_interrupts_nothing(env: LookSetup, without: str) -> None:
    """Nothing is known of the machine, which counts as dead. The step is not on record, so it comes later."""
    env.look_with(dialer=_NoProcess()) if without == "process" else env.look_with(prepare=_no_key)
    env.run()
    assert env.provider.asked == []
    assert [event for event, _, _ in env.lines()] == ["Started", "Failed"]
    assert [each.dead for each in budget.read_fleet(env.fleet.open_session(), PROVIDER)] == [1]
    env.run_agent()
    env.look_with()
    env.watch_and_start(TICK_MINUTES)
    assert env.causes == [RUNS]


def test_a_step_recorded_too_late_leaves_the_host_key(env: LookSetup) -> None:
    """It may be on record nevertheless, with the key deleted; nothing was done to the machine."""
    env.policy = "reinstall,quarantine"
    _refuse(env)
    session = env.fleet.open_session()
    loop, held, task = env.begin(session)

    def ask(decided: object) -> None:
        task.ask(decided)
        assert "host_key" not in env.fleet.facts(env.machine)
        raise TimeLimitExceeded

    assert loop.finish(session, {held: loop.work_on(replace(task, ask=ask))}) == {env.machine}
    assert env.provider.asked == []
    assert "host_key" in env.fleet.facts(env.machine)
    assert [event for event, _, _ in env.lines()][-3:] == ["Attempted", "NotTaken", "Failed"]


def test_a_look_before_the_last_heartbeat_confirms_nothing(env: LookSetup) -> None:
    """After an outage of ours the machine, which was well meanwhile, has its two minutes again."""
    _refuse(env)
    env.after_outage = True
    for _ in range(2):
        env.fleet.pass_time(HOUR)
        for machine in (env.machine, env.healthy):
            record_heartbeat(env.fleet.connection, machine)
        env.fleet.sql("DELETE FROM ticks")
        env.watch(20, every=20)
        assert not env.provider.reboots
    env.fleet.pass_time(2 * MINUTE)
    env.fleet.sql("DELETE FROM ticks")
    env.watch(1)
    assert (len(env.provider.reboots), len(env.causes)) == (1, 3)
