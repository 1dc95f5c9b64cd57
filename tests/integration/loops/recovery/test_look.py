"""The look at a machine before it is interrupted: real SSH, a real process in place of the agent."""

import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

import asyncssh
import pytest
from shepherd_core.adapters import ssh_keys
from shepherd_core.adapters.ssh.dialer import SshDialer
from shepherd_core.agent.takeover import Dialer, MachineConnection
from shepherd_core.bmdb.recovery import remediation, suspension
from shepherd_core.bmdb.work import work
from shepherd_core.bmdb.work.work import AgentStarted, Failure
from shepherd_core.domain.clock import Deadline
from shepherd_core.domain.errors import Fault, SecretMissing, TimeLimitExceeded
from shepherd_core.domain.errors.machine import SshForkServerLost
from shepherd_core.domain.machine import Process
from shepherd_core.loops.base import Task
from shepherd_core.loops.look import Look
from shepherd_core.telemetry import Metric

from tests.conftest import ManualClock
from tests.support.agents.heartbeats import record_heartbeat
from tests.support.agents.ssh_server import KEY, SshServer
from tests.support.bmdb.fleet import HOUR, PROVIDER, Fleet, claimed
from tests.support.bmdb.recovery import MINUTE, RecoveryEnvironment

LOOK = 4
"""Minutes between two runs."""
RUNS = "it answers over SSH and its agent runs: its reports get lost"
ENDED = "it answers over SSH and its agent has ended"
INSTALLS = "it answers over SSH and an installation goes on"


class World(RecoveryEnvironment):
    """A machine that does not report, but answers over SSH, and one that reports."""

    def __init__(self, fleet: Fleet, clock: ManualClock, server: SshServer, folder: Path) -> None:
        super().__init__(fleet, clock)
        self.server = server
        self.agent = folder / "agent"
        self.processes: list[subprocess.Popen[bytes]] = []
        self.fails: Failure | None = None
        """Why the Initializer cannot start an agent on the machine; None: it can."""
        self.witness = fleet.reporting_machine()
        self.machine = fleet.unhealthy_machine()
        self.at("127.0.0.1", server.public_host_keys[0])
        self.look_with(SshDialer(KEY, "root", server.port, connect_timeout=5))

    def look_with(
        self, dialer: Dialer, seconds: float = 5, prepare: Callable[[Deadline], object] = lambda _: None
    ) -> None:
        """Let the Recoverer look in this way."""
        self.look = Look(dialer, str(self.agent), seconds, prepare)

    def at(self, address: str | None, host_key: str | None) -> None:
        """Let the BMDB have this address and this pinned key of the machine."""
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
        """End the agents."""
        for process in self.processes:
            process.kill()
            process.wait()

    def start_agent(self) -> bool:
        """Do the Initializer's work on the machine; False: it is not due for that."""
        session = self.fleet.open_session()
        found = [held for held in claimed(session, Process.AGENT_START) if held.machine_id == self.machine]
        if found and self.fails is not None:
            work.fail(session, {found[0]: self.fails})
        elif found:
            work.finish_agent_start(session, {found[0]: AgentStarted(bytes(32), None)})
        session.close()
        return bool(found)

    def watch(self, minutes: float) -> int:
        """Let time pass without a report of the machine; return how often its agent was started."""
        starts = 0
        while minutes > 0:
            self.fleet.pass_time(LOOK * MINUTE)
            record_heartbeat(self.fleet.connection, self.witness)
            self.run()
            starts += self.start_agent()
            minutes -= LOOK
        return starts

    @property
    def told(self) -> list[tuple[str, str | None, str | None]]:
        """Return the history of the machine's recovery: events, steps and causes."""
        return [
            (event, step, cause)
            for event, step, cause in self.fleet.sql(
                "SELECT event, step, failed_cause FROM work_history "
                "WHERE machine_id = :id AND process = 'ShepherdRecovery' ORDER BY timestamp",
                id=self.machine,
            )
        ]

    @property
    def causes(self) -> list[str | None]:
        """Return what was seen."""
        return [cause for event, _, cause in self.told if event == "Looked"]


@pytest.fixture
def world(fleet: Fleet, clock: ManualClock, tmp_path: Path) -> Iterator[World]:
    """Return an environment with a machine that is alive."""
    with SshServer(ssh_keys.public_line(KEY)) as server:
        world = World(fleet, clock, server, tmp_path)
        yield world
        world.stop()


def test_a_machine_that_is_alive_is_not_interrupted(world: World) -> None:
    """Its reports get lost: nothing is gained by a reboot, and what runs there would be lost."""
    world.run_agent()
    counts = world.run()
    assert world.provider.asked == []
    assert world.told == [("Started", None, None), ("Looked", "restart-agent", RUNS), ("Finished", None, None)]
    assert (counts[Metric.FINISHED], counts[Metric.FOUND_ALIVE]) == (1, 1)
    assert world.start_agent()


def test_a_machine_that_is_alive_is_never_interrupted(world: World) -> None:
    """Not within three hours without a report, in which only its agent is started anew, at most twice an hour."""
    world.run_agent()
    assert 3 <= world.watch(3 * 60) <= 6
    assert world.provider.asked == []
    assert set(world.causes) == {RUNS}


def test_a_machine_that_is_alive_is_not_interrupted_if_no_agent_can_be_started(world: World) -> None:
    """The restart took its agent's facts, but not its agent: it is still healthy as far as is known."""
    world.run_agent()
    world.fails = Failure("SshUploadFailed: disk full", MINUTE, fault=Fault.MACHINE)
    world.watch(3 * 60)
    assert len(world.causes) >= 3
    assert set(world.causes) == {RUNS}
    assert world.provider.asked == []


def test_an_agent_that_is_stopped_is_started_anew(world: World) -> None:
    """The new one ends it; the machine itself is well."""
    world.run_agent().send_signal(signal.SIGSTOP)
    world.run()
    assert world.causes == [RUNS]
    assert world.provider.asked == []


@pytest.mark.parametrize("text", [None, "", "nonsense\n", "0\n"])
def test_an_agent_is_found_without_its_pid_file(world: World, text: str | None) -> None:
    """The file may be gone, or was never written since the disk was full; the agent runs all the same."""
    world.run_as_command()
    if text is not None:
        world.agent.with_name("agent.pid").write_text(text)
    world.run()
    assert world.causes == [RUNS]
    assert world.provider.asked == []


@pytest.mark.parametrize("shell", ["dash", "bash", "busybox"])
def test_an_agent_is_found_by_any_shell(world: World, shell: str, tmp_path: Path) -> None:
    """A machine has the one that it has."""
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"no {shell} here")
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "sh").symlink_to(found)
    world.server.tools = str(tools)
    world.run_as_command()
    world.run()
    assert world.causes == [RUNS]


@pytest.mark.parametrize("as_command", [False, True])
def test_an_installation_is_waited_for(world: World, as_command: bool) -> None:
    """A new agent would end it, and what it had written to the disk so far would be no system."""
    install = world.agent.with_name("agent.install")
    install.touch()
    with install.open() as opened:
        (world.run_as_command if as_command else world.run_agent)(opened)
    assert world.watch(2 * 60) == 0
    assert len(world.causes) >= 3
    assert set(world.causes) == {INSTALLS}
    assert world.provider.asked == []
    world.stop()
    world.run_agent()
    assert world.watch(30) == 1, "its agent is started anew when the installation has ended"
    assert world.provider.asked == []


def test_an_installation_is_waited_for_after_a_quarantine(world: World) -> None:
    """Its new agent is refused until the installation has ended, which may take longer than the grace."""
    world.fleet.sql(
        "INSERT INTO work_history (machine_id, process, event, step, timestamp) "
        "VALUES (:id, 'ShepherdRecovery', 'Attempted', 'reboot', now() - interval '2 hours')",
        id=world.machine,
    )
    world.fleet.sql(
        "INSERT INTO machine_quarantine (machine_id, quarantined_at, cause, evidence) VALUES (:id, now(), '?', '')",
        id=world.machine,
    )
    assert remediation.unquarantine(world.fleet.connection, world.machine, reason="it is well")
    world.fails = Failure("MachineRefused: an installation goes on", MINUTE, fault=Fault.MACHINE)
    install = world.agent.with_name("agent.install")
    install.touch()
    with install.open() as opened:
        world.run_agent(opened)
    world.watch(3 * 60)
    assert len(world.causes) >= 2
    assert set(world.causes) == {INSTALLS}
    assert world.provider.asked == []


def test_an_installation_is_not_waited_for_without_end(world: World) -> None:
    """An agent that hangs would never be started anew."""
    install = world.agent.with_name("agent.install")
    install.touch()
    with install.open() as opened:
        world.run_agent(opened)
    world.fleet.sql(
        "INSERT INTO work_history (machine_id, process, event, step, failed_cause, timestamp) "
        "SELECT :id, 'ShepherdRecovery', 'Looked', 'await-installation', :seen, now() - n * interval '50 minutes' "
        "FROM generate_series(1, 24) AS n",
        id=world.machine,
        seen=INSTALLS,
    )
    world.run()
    assert world.causes[-1] == f"{INSTALLS}, as 24 times before in the last day"
    assert world.provider.asked == []
    assert world.start_agent()


def test_an_agent_that_has_ended_is_started_anew_three_times_a_day(world: World) -> None:
    """A machine whose agent ends again and again is not well, and must not escape recovery for ever."""
    world.run_agent()
    world.stop()
    world.watch(2 * 60)
    assert world.causes == [*[ENDED] * 3, f"{ENDED}, as 3 times before in the last day"]
    assert world.provider.asked == ["reboot"]


def test_another_process_with_the_id_of_the_agent_is_not_the_agent(world: World) -> None:
    """Ids are used again, after a boot of the machine above all."""
    world.run_agent()
    other = subprocess.Popen(["sleep", "600"])
    world.processes.append(other)
    world.agent.with_name("agent.pid").write_bytes(b"%-20d\n" % other.pid)
    world.run()
    assert world.causes == [ENDED]


def _refuse(world: World) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    world.look_with(SshDialer(KEY, "root", port, connect_timeout=5))


def _hang(world: World) -> None:
    world.server.freezes_at = "login"
    world.look_with(SshDialer(KEY, "root", world.server.port, connect_timeout=5), seconds=1)


def _hang_in_the_command(world: World) -> None:
    world.server.freezes_at = "program"
    world.look_with(SshDialer(KEY, "root", world.server.port, connect_timeout=5), seconds=1)


def _another_key(world: World) -> None:
    key = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()
    world.at("127.0.0.1", " ".join(key.split()[:2]))


def _no_login(world: World) -> None:
    world.look_with(SshDialer(ssh_keys.generate(), "root", world.server.port, connect_timeout=5))


def _no_commands(world: World) -> None:
    async def words(process: asyncssh.SSHServerProcess[bytes]) -> None:
        process.stdout.write(b'Please login as the user "ubuntu"\n')
        process.exit(142)

    world.server.program = words


@pytest.mark.parametrize(
    ("happens", "seen"),
    [
        (_refuse, "SshRefused: "),
        (_hang, "SshTimedOut: "),
        (_hang_in_the_command, "SshTimedOut: "),
        (_another_key, "SshHostKeyChanged: "),
    ],
)
def test_a_machine_that_is_not_seen_alive_is_recovered(
    world: World, happens: Callable[[World], None], seen: str
) -> None:
    """What answers with another key, or not at all, says nothing about the machine. The history has what was seen."""
    world.run_agent()
    happens(world)
    world.run()
    assert world.provider.asked == ["reboot"]
    assert [(event, step) for event, step, _ in world.told] == [
        ("Started", None), ("Looked", None), ("Attempted", "reboot"), ("Finished", None)
    ]  # fmt: skip
    assert (world.causes[0] or "").startswith(seen)


@pytest.mark.parametrize("happens", [_no_login, _no_commands])
def test_a_machine_that_refuses_our_key_is_not_interrupted(world: World, happens: Callable[[World], None]) -> None:
    """It answers, with its own host key. A wrong key of ours would reboot the whole fleet; operators are told."""
    world.run_agent()
    happens(world)
    world.run()
    assert world.provider.asked == []
    assert [event for event, _, _ in world.told] == ["Started", "Failed"]
    world.fleet.pass_time(LOOK * MINUTE)
    record_heartbeat(world.fleet.connection, world.witness)
    assert world.run()[Metric.NO_ACCESS] == 1


@pytest.mark.parametrize(("address", "pinned"), [(None, True), ("127.0.0.1", False)])
def test_a_machine_that_cannot_be_known_again_is_not_looked_at(world: World, address: str, pinned: bool) -> None:
    """Without its address there is nothing to look at; without its key, anybody could answer."""
    world.run_agent()
    world.at(address, world.server.public_host_keys[0] if pinned else None)
    world.run()
    assert world.server.logins == []
    assert world.provider.asked == ["reboot"]


def test_quarantine_and_waiting_need_no_look(world: World) -> None:
    """They interrupt nothing."""
    world.policy = "restart-agent,quarantine"
    world.run()
    assert world.server.logins == []


def test_a_step_for_which_the_provider_is_not_asked_needs_no_look(world: World) -> None:
    """It interrupts nothing, and may call for help also while our SSH key does not work."""
    tickets = world.begin_with_tickets()
    world.run()
    assert (len(tickets), world.server.logins) == (1, [])


def test_a_machine_that_reports_during_the_look_keeps_its_agent(world: World) -> None:
    """It is not due any more, as just before any other step."""
    world.run_agent()
    connection = world.fleet.connect()

    def report(_: object) -> None:
        record_heartbeat(connection, world.machine)

    world.server.on_login = report
    world.run()
    assert world.told[1:] == [
        ("Looked", "restart-agent", RUNS), ("Recovered", None, "its agent reports again")
    ]  # fmt: skip
    assert not world.start_agent()


class _NoProcess:
    """A dialer whose process cannot be started."""

    def dial(self, _address: str, _pinned: str | None, _deadline: Deadline) -> MachineConnection:
        """Fail."""
        raise SshForkServerLost


def test_a_look_that_fails_by_our_fault_interrupts_nothing(world: World) -> None:
    """Nothing is known of the machine. The step is not on record, so it is no attempt, and comes later."""
    world.look_with(_NoProcess())
    world.run()
    assert world.provider.asked == []
    assert [event for event, _, _ in world.told] == ["Started", "Failed"]
    world.run_agent()
    world.look_with(SshDialer(KEY, "root", world.server.port, connect_timeout=5))
    world.watch(LOOK)
    assert world.causes == [RUNS]


def test_a_machine_whose_look_failed_by_our_fault_is_still_seen_by_the_limits(world: World) -> None:
    """Nothing is known of it, so it is evidence of an outage as much as before."""
    world.look_with(_NoProcess())
    world.run()
    session = world.fleet.open_session()
    (stats,) = suspension.take_health_snapshot(session, PROVIDER).stats.values()
    session.close()
    assert stats.late.total() == 1
    world.fleet.sql("UPDATE work_backoff SET until = until - interval '1 day'")
    world.fleet.sql("UPDATE machine_due SET not_before = now() WHERE process = 'ShepherdRecovery'")
    session = world.fleet.open_session()
    (stats,) = suspension.take_health_snapshot(session, PROVIDER).stats.values()
    assert stats.due.total() == 1


def test_the_host_key_stays_if_the_time_is_over_before_the_step_is_recorded(world: World) -> None:
    """It may be on record nevertheless, with the key deleted; nothing was done to the machine."""
    world.policy = "reinstall,quarantine"
    _refuse(world)
    session = world.fleet.open_session()
    (held,) = claimed(session, Process.RECOVERY)
    loop = world.loop
    decision = loop.decide(session, [held])[held]
    task = Task(held, Deadline(world.clock, 60), decision=decision)

    def record(decided: object) -> None:
        loop.record(session, {held: decided})  # type: ignore[dict-item]  # it is a step
        raise TimeLimitExceeded

    task.record = record
    with pytest.raises(TimeLimitExceeded):
        loop.work_on(task)
    assert (task.keeps_host_key, task.not_taken) == (True, None)
    assert world.provider.asked == []


def test_without_a_key_nothing_is_interrupted(world: World) -> None:
    """It is the deployment's fault, and says nothing about the machine."""

    def missing(_: Deadline) -> None:
        raise SecretMissing

    world.look_with(_NoProcess(), prepare=missing)
    world.run()
    assert world.provider.asked == []
    assert [event for event, _, _ in world.told] == ["Started", "Failed"]


def test_a_machine_whose_agent_is_gone_is_not_looked_at(world: World) -> None:
    """The Initializer has just failed to reach it: the next step is due."""
    world.server.freezes_at = "login"
    world.look_with(SshDialer(KEY, "root", world.server.port, connect_timeout=5), seconds=1)
    world.run()
    assert world.provider.asked == ["reboot"]
    logins = len(world.server.logins)
    world.fleet.sql("UPDATE machine_grace SET grace_until = now() - interval '1 second'")
    world.fleet.sql("DELETE FROM work_backoff")
    world.fleet.sql(
        "INSERT INTO work_backoff VALUES (:id, 'ShepherdAgentStart', now() + interval '1 hour', 'SshTimedOut: ?', 300,"
        " 'unreached')",
        id=world.machine,
    )
    world.fleet.sql("UPDATE machine_due SET not_before = now() WHERE process = 'ShepherdRecovery'")
    world.run()
    assert world.provider.asked == ["reboot", "reboot"]
    assert len(world.server.logins) == logins


def test_a_look_counts_for_no_attempt(world: World) -> None:
    """After a real failure the policy goes on where it was."""
    world.run_agent()
    world.watch(HOUR / MINUTE)
    world.stop()
    world.server.freezes_at = "login"
    world.look_with(SshDialer(KEY, "root", world.server.port, connect_timeout=5), seconds=1)
    world.watch(20)
    assert [(event, step) for event, step, _ in world.told if event == "Attempted"] == [("Attempted", "reboot")]
