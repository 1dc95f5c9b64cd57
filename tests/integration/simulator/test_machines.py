import socket
from collections.abc import Iterator
from pathlib import Path

import paramiko
import pytest

from simulator.machines.pool import MachinePool
from simulator.machines.server import MachineState
from tests.support import processes
from tests.support.agents.machine_client import Client
from tests.support.waiting import eventually

# Leaves a process behind, as an agent does.
SLEEPER = b"#!/bin/sh\nsetsid sleep 1000 </dev/null >/dev/null 2>&1 &\n"


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with MachinePool(tmp_path / "pool", 0, boot_seconds=0.02) as pool:
        yield Client(pool)


@pytest.fixture
def machine(client: Client) -> str:
    return client.rack("crate")


@pytest.fixture
def busy(client: Client, machine: str) -> str:
    client.upload(machine, "/root/agent", SLEEPER)
    client.run(machine, "/root/agent")
    eventually(lambda: len(client.pool.agents(machine)) == 1)
    return machine


def test_a_reboot_keeps_disk_and_host_key_unlike_a_reinstallation(client: Client, busy: str) -> None:
    """It is the same machine after a reboot, without its agent."""
    (process,) = client.pool.agents(busy)
    key = client.host_key(busy)
    client.pool.reboot(busy)
    assert not processes.size(process)
    client.wait_until_up(busy)
    assert (client.pool.agents(busy), client.host_key(busy)) == ([], key)
    assert client.run(busy, "cat /root/agent").output == SLEEPER
    assert (client.pool.reboots(busy), client.pool.runs(busy)) == (1, 1)
    client.pool.reinstall(busy)
    client.wait_until_up(busy)
    assert client.host_key(busy) != key  # the one lawful reason for a new one
    assert client.run(busy, "test -e /root/agent").status == 1


def test_closing_a_pool_kills_its_own_processes_only(client: Client, busy: str, tmp_path: Path) -> None:
    """Two simulations on one computer, with machines of the same names, do not disturb each other."""
    with MachinePool(tmp_path / "other", 0, boot_seconds=0) as pool:
        other = Client(pool)
        other.rack(busy)
        other.upload(busy, "/root/agent", SLEEPER)
        other.run(busy, "/root/agent")
        eventually(lambda: pool.agents(busy))
        (theirs,) = pool.agents(busy)
    assert not processes.size(theirs)
    assert [processes.size(pid) > 0 for pid in client.pool.agents(busy)] == [True]


def test_only_root_with_the_authorized_key_gets_in(client: Client, machine: str) -> None:
    """Otherwise a wrong key would go unnoticed in the simulation."""
    for user, key in (("root", paramiko.ECDSAKey.generate()), ("admin", client.key)):
        with pytest.raises(paramiko.AuthenticationException), client.login(machine, user=user, key=key):
            pass


def test_a_session_lasts_until_the_output_is_closed(client: Client, machine: str) -> None:
    """As under sshd: an agent that does not let go of its streams would hang the Initializer."""
    client.upload(machine, "/root/clings", b"#!/bin/sh\nsetsid sleep 1000 &\n")
    with client.login(machine) as ssh:
        _, output, _ = ssh.exec_command("/root/clings", timeout=0.3)
        with pytest.raises(TimeoutError):
            output.read()


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
    eventually(lambda: Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "T")
