"""The simulated machines are what the rest of the simulation takes them for."""

import hashlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import paramiko
import pytest

from simulator.machines.pool import MachinePool
from simulator.machines.server import MachineState
from tests.support.agents.machine_client import Client, run
from tests.support.waiting import eventually

SLEEPER = b"#!/bin/sh\nsetsid sleep 1000 </dev/null >/dev/null 2>&1 &\n"
"""Leaves a process behind, as an agent does."""


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[MachinePool]:
    """Return an empty pool whose machines boot fast."""
    with MachinePool(tmp_path / "pool", 0, boot_seconds=0.02, agent_environment={"GREETING": "hello"}) as pool:
        yield pool


@pytest.fixture
def client(pool: MachinePool) -> Client:
    """Return a client of the pool."""
    return Client(pool)


@pytest.fixture
def machine(client: Client) -> str:
    """Return the name of a machine that is up."""
    return client.rack("crate")


@pytest.fixture
def busy(client: Client, machine: str) -> str:
    """Return the name of a machine on which a detached process runs."""
    client.upload(machine, "/root/agent", SLEEPER)
    client.run(machine, "/root/agent")
    eventually(lambda: len(client.pool.agents(machine)) == 1)
    return machine


def _refuses(client: Client, name: str) -> bool:
    try:
        socket.create_connection((client.pool.address(name), client.pool.port)).close()
    except ConnectionRefusedError:
        return True
    return False


def _is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def _is_gone(pid: int) -> bool:
    try:
        return not Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return True


# --- life ---


def test_a_machine_refuses_connections_until_it_is_provisioned(client: Client) -> None:
    """New capacity takes its time, and the Initializer must live with that."""
    client.pool.rack("slow", client.authorized_key, provision_seconds=1000)
    assert client.pool.state("slow") is MachineState.PROVISIONING
    assert _refuses(client, "slow")
    client.pool.rack("fast", client.authorized_key, provision_seconds=0.05)
    client.wait_until_up("fast")
    assert not _refuses(client, "fast")


def test_a_machine_refuses_connections_while_it_boots(client: Client, tmp_path: Path) -> None:
    """After a reboot SSH does not answer for a while."""
    with MachinePool(tmp_path / "other", 0, boot_seconds=1000) as pool:
        slow = Client(pool)
        pool.rack("slow", slow.authorized_key)
        eventually(lambda: pool.state("slow") is MachineState.BOOTING)
        assert _refuses(slow, "slow")


def test_a_reboot_kills_every_process_and_keeps_disk_and_host_key(client: Client, busy: str) -> None:
    """It is the same machine afterwards, without its agent."""
    (process,) = client.pool.agents(busy)
    key = client.host_key(busy)
    client.pool.reboot(busy)
    assert _is_gone(process)
    client.wait_until_up(busy)
    assert client.pool.agents(busy) == []
    assert client.host_key(busy) == key
    assert client.run(busy, "cat /root/agent").output == SLEEPER
    assert (client.pool.reboots(busy), client.pool.runs(busy)) == (1, 1)


def test_a_reboot_closes_open_ssh_sessions(client: Client, machine: str) -> None:
    """A work step that runs into a reboot must see its connection break."""
    client.upload(machine, "/root/endless", b"#!/bin/sh\necho begun\nexec sleep 1000\n")
    with client.login(machine) as ssh:
        _, output, _ = ssh.exec_command("/root/endless", timeout=20)
        assert output.readline() == "begun\n"
        client.pool.reboot(machine)
        assert output.read() == b""
        assert output.channel.recv_exit_status() == -1


def test_a_machine_that_is_off_comes_back_with_its_disk(client: Client, busy: str) -> None:
    """Somebody may pull the plug."""
    (process,) = client.pool.agents(busy)
    client.pool.power_off(busy)
    assert client.pool.state(busy) is MachineState.OFF
    assert _is_gone(process)
    assert _refuses(client, busy)
    client.pool.power_on(busy)
    client.wait_until_up(busy)
    assert client.run(busy, "cat /root/agent").output == SLEEPER
    assert client.pool.reboots(busy) == 1


def test_a_reinstalled_machine_has_an_empty_disk_and_a_new_host_key(client: Client, busy: str) -> None:
    """This is the one lawful reason for a new host key."""
    key = client.host_key(busy)
    client.pool.reinstall(busy)
    client.wait_until_up(busy)
    assert client.host_key(busy) != key
    assert client.run(busy, "test -e /root/agent").status == 1
    assert client.pool.agents(busy) == []


def test_a_removed_machine_leaves_nothing_behind(client: Client, busy: str) -> None:
    """A released machine is not ours any more, and its address is unused."""
    (process,) = client.pool.agents(busy)
    disk, address = client.pool.disk(busy), client.pool.address(busy)
    client.pool.remove(busy)
    assert _is_gone(process)
    assert not disk.exists()
    assert client.pool.names() == []
    with pytest.raises(KeyError):
        client.pool.state(busy)
    assert client.pool.rack(busy, client.authorized_key) != address


def test_closing_a_pool_kills_its_own_processes_only(client: Client, busy: str, tmp_path: Path) -> None:
    """Two simulations on one computer, with machines of the same names, do not disturb each other."""
    with MachinePool(tmp_path / "other", 0, boot_seconds=0) as pool:
        other = Client(pool)
        other.rack(busy)
        other.upload(busy, "/root/agent", SLEEPER)
        other.run(busy, "/root/agent")
        eventually(lambda: pool.agents(busy))
        (theirs,) = pool.agents(busy)
    assert _is_gone(theirs)
    assert [_is_gone(pid) for pid in client.pool.agents(busy)] == [False]


def test_no_process_outlives_a_pool_that_is_killed(tmp_path: Path) -> None:
    """Otherwise agents of a killed simulation would run without end."""
    script = """
import subprocess, sys, time
from pathlib import Path
from simulator.machines.processes import MARK
from simulator.machines.pool import MachinePool
pool = MachinePool(Path(sys.argv[1]), 0, boot_seconds=0)
process = subprocess.Popen(["sleep", "1000"], env={MARK: pool._id + "/crate"}, start_new_session=True)
print(process.pid, flush=True)
time.sleep(1000)
"""
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]) as killed:
        try:
            assert killed.stdout is not None
            process = int(killed.stdout.readline())
            eventually(lambda: not _is_gone(process))  # at its very beginning it has no environment yet
        finally:
            killed.kill()
    eventually(lambda: _is_gone(process))


def test_two_pools_do_not_share_a_port(pool: MachinePool, tmp_path: Path) -> None:
    """Each would use addresses of the other."""
    with pytest.raises(OSError, match="in use"):
        MachinePool(tmp_path / "other", pool.port, boot_seconds=0)


@pytest.mark.parametrize("name", ["", "a/b", ".", "..", "crate"])
def test_a_machine_needs_a_name_of_its_own(client: Client, machine: str, name: str) -> None:
    """A name is also the name of a folder."""
    with pytest.raises(ValueError, match="cannot be the name"):
        client.pool.rack(name, client.authorized_key)


def test_a_closed_pool_does_nothing(client: Client, machine: str) -> None:
    """The provider's server may outlive it for a moment."""
    client.pool.close()
    with pytest.raises(RuntimeError, match="closed"):
        client.pool.reboot(machine)


def test_many_machines_work_at_the_same_time(client: Client) -> None:
    """One pool holds a fleet."""
    names = [f"crate-{number}" for number in range(30)]
    addresses = {client.pool.rack(name, client.authorized_key) for name in names}
    assert len(addresses) == len(names)

    def visit(name: str) -> bytes:
        client.wait_until_up(name)
        client.upload(name, "/root/name", name.encode())
        return client.run(name, "cat /root/name").output

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(visit, names)) == [name.encode() for name in names]


# --- SSH and SFTP ---


def test_only_root_with_the_authorized_key_gets_in(client: Client, machine: str) -> None:
    """Otherwise a wrong key would go unnoticed in the simulation."""
    for user, key in (("root", paramiko.ECDSAKey.generate()), ("admin", client.key)):
        with pytest.raises(paramiko.AuthenticationException), client.login(machine, user=user, key=key):
            pass


def test_files_arrive_on_the_machines_disk_and_nowhere_else(client: Client, machine: str) -> None:
    """A machine sees its own disk as the root."""
    content = os.urandom(300_000)
    with client.login(machine) as ssh, ssh.open_sftp() as sftp:
        with sftp.open("/root/file", "wb") as file:
            file.set_pipelined(pipelined=True)
            file.write(content)
        with sftp.open("/../../root/../root/file", "rb") as file:
            assert file.read() == content
        assert sorted(sftp.listdir("/..")) == ["root", "tmp"]
    assert (client.pool.disk(machine) / "root/file").read_bytes() == content


def test_tools_see_the_machines_paths(client: Client, machine: str) -> None:
    """The upload is skipped when the checksum says that the file is there already."""
    client.upload(machine, "/root/a file", b"content")
    digest = hashlib.sha256(b"content").hexdigest()
    assert client.run(machine, "sha256sum '/root/a file'") == (0, f"{digest}  /root/a file\n".encode(), b"")
    assert client.run(machine, "rm '/root/a file'").status == 0
    missing = client.run(machine, "sha256sum '/root/a file'")
    assert missing.status == 1
    assert b"/root/a file" in missing.errors
    assert str(client.pool.disk(machine)).encode() not in missing.errors


@pytest.mark.parametrize(
    ("command", "status"),
    [("true", 0), ("false", 1), ("", 0), ("/root/missing", 127), ("/root/plain", 126), ("mkfs", 127), ("'", 2)],
)
def test_commands_end_with_the_status_that_a_shell_gives(
    client: Client, machine: str, command: str, status: int
) -> None:
    """Callers tell failures apart by it."""
    (client.pool.disk(machine) / "root/plain").write_text("not executable")
    assert client.run(machine, command).status == status


def test_an_uploaded_file_runs_with_its_three_streams(client: Client, machine: str) -> None:
    """The takeover is a conversation over them."""
    client.upload(machine, "/root/echo", b'#!/bin/sh\ncat\necho "$1 $GREETING $PYTEST_CURRENT_TEST" >&2\nexit 3\n')
    message = os.urandom(200_000)
    result = client.run(machine, "/root/echo 'an argument'", message)
    assert result == (3, message, b"an argument hello \n")
    assert client.pool.runs(machine) == 1


def test_a_process_killed_by_a_signal_has_no_exit_status(client: Client, machine: str) -> None:
    """As under sshd."""
    client.upload(machine, "/root/suicide", b"#!/bin/sh\nkill -KILL $$\n")
    assert client.run(machine, "/root/suicide").status == -1


def test_a_process_outlives_a_client_that_leaves(client: Client, machine: str) -> None:
    """Under sshd it does, so that an invocation that dies leaves a started agent behind."""
    client.upload(machine, "/root/late", b"#!/bin/sh\necho begun\ncat\necho late >/$1/late\n")
    with client.login(machine) as ssh:
        _, output, _ = ssh.exec_command(f"/root/late {client.pool.disk(machine)}", timeout=20)
        assert output.readline() == "begun\n"
    eventually((client.pool.disk(machine) / "late").exists)


def test_a_session_lasts_until_the_output_is_closed(client: Client, machine: str) -> None:
    """As under sshd: an agent that does not let go of its streams would hang the Initializer."""
    client.upload(machine, "/root/clings", b"#!/bin/sh\nsetsid sleep 1000 &\n")
    with client.login(machine) as ssh:
        _, output, _ = ssh.exec_command("/root/clings", timeout=0.3)
        with pytest.raises(TimeoutError):
            output.read()


# --- faults ---


def test_stopping_the_agents_of_a_machine_stops_nothing_else(client: Client, busy: str) -> None:
    """SSH is fine on it: only the missing heartbeat tells."""
    (process,) = client.pool.agents(busy)
    client.pool.stop_agents(busy)
    eventually(lambda: _is_stopped(process))
    assert client.run(busy, "true").status == 0
    client.pool.reboot(busy)
    client.wait_until_up(busy)
    client.run(busy, "/root/agent")
    eventually(lambda: client.pool.agents(busy))
    assert not any(_is_stopped(pid) for pid in client.pool.agents(busy))


def test_a_machine_that_hangs_accepts_connections_and_never_answers(client: Client, busy: str) -> None:
    """The worst case for every time limit: TCP works, and then nothing."""
    (process,) = client.pool.agents(busy)
    with client.login(busy) as ssh:
        client.pool.hang(busy)
        assert client.pool.state(busy) is MachineState.HUNG
        with pytest.raises((TimeoutError, paramiko.SSHException)):
            ssh.exec_command("true", timeout=0.3)
    with socket.create_connection((client.pool.address(busy), client.pool.port), timeout=0.3) as connection:
        connection.sendall(b"SSH-2.0-test\r\n")
        with pytest.raises(TimeoutError):
            connection.recv(1)
    eventually(lambda: _is_stopped(process))


def test_only_a_reboot_cures_a_machine_that_hangs(client: Client, busy: str) -> None:
    """This is what the Recoverer is for."""
    (process,) = client.pool.agents(busy)
    client.pool.hang(busy)
    client.pool.power_on(busy)
    assert client.pool.state(busy) is MachineState.HUNG
    client.pool.reboot(busy)
    assert _is_gone(process)
    client.wait_until_up(busy)
    assert client.run(busy, "true").status == 0


def test_a_command_hangs_when_its_machine_hangs(client: Client, machine: str) -> None:
    """An execution can hang, not only an upload or a connection."""
    client.upload(machine, "/root/chatty", b"#!/bin/sh\nwhile :; do echo line; done\n")
    with client.login(machine) as ssh:
        _, output, _ = ssh.exec_command("/root/chatty", timeout=0.5)
        assert output.readline() == "line\n"
        client.pool.hang(machine)
        with pytest.raises(TimeoutError):
            output.read()


def test_nothing_can_be_written_to_a_full_disk(client: Client, machine: str) -> None:
    """The upload of the agent fails, and the cause must reach the history."""
    client.pool.fill_disk(machine)
    with pytest.raises(OSError, match="No space left on device"):
        client.upload(machine, "/root/agent", b"content")
    client.pool.free_disk(machine)
    client.upload(machine, "/root/agent", b"content")


def test_a_changed_host_key_is_shown_from_the_next_connection_on(client: Client, machine: str) -> None:
    """Somebody may sit in the middle."""
    key = client.host_key(machine)
    with client.login(machine) as ssh:
        client.pool.change_host_key(machine)
        assert run(ssh, "true").status == 0
    assert client.host_key(machine) != key


def test_a_machine_can_stop_accepting_our_key(client: Client, machine: str) -> None:
    """Somebody may have edited authorized_keys."""
    client.pool.refuse_logins(machine)
    with pytest.raises(paramiko.AuthenticationException), client.login(machine):
        pass
    client.pool.accept_logins(machine)
    assert client.run(machine, "true").status == 0


def test_a_fault_of_one_machine_leaves_others_alone(client: Client, busy: str) -> None:
    """Only the machines with a fault may need recovery."""
    other = client.rack("other")
    client.upload(other, "/root/agent", SLEEPER)
    client.run(other, "/root/agent")
    eventually(lambda: client.pool.agents(other))
    (process,) = client.pool.agents(other)
    client.pool.stop_agents(busy)
    client.pool.hang(busy)
    client.pool.reboot(busy)
    client.pool.remove(busy)
    assert client.pool.agents(other) == [process]
    assert not _is_stopped(process)
    assert client.pool.state(other) is MachineState.UP


def test_a_command_that_runs_is_no_agent(client: Client, machine: str) -> None:
    """The one that is just answering to the Initializer must not be stopped or counted."""
    client.upload(machine, "/root/slow", b"#!/bin/sh\necho begun\nsleep 1000\n")
    with client.login(machine) as ssh:
        _, output, _ = ssh.exec_command("/root/slow", timeout=20)
        assert output.readline() == "begun\n"
        assert client.pool.agents(machine) == []


def test_every_agent_of_the_pool_is_found_in_one_pass(client: Client, busy: str) -> None:
    """A live table of a large fleet cannot look at each machine by itself."""
    client.rack("idle")
    assert client.pool.all_agents() == {busy: client.pool.agents(busy), "idle": []}
    os.kill(client.pool.agents(busy)[0], signal.SIGKILL)
    eventually(lambda: client.pool.all_agents() == {busy: [], "idle": []})
