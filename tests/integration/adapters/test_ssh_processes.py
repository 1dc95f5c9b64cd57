import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from shepherd_core.adapters.ssh import messages
from shepherd_core.adapters.ssh.connection import SshConnection
from shepherd_core.adapters.ssh.dialer import SshDialer
from shepherd_core.adapters.ssh.messages import RequestFailed
from shepherd_core.domain.clock import Deadline, SystemClock
from shepherd_core.domain.errors import ShepherdError
from shepherd_core.domain.errors.machine import SshForkServerLost, SshMisbehaved, SshTimedOut
from shepherd_core.domain.remediation import AgentState

from tests.support import processes
from tests.support.agents.hostile_server import AFTER_LOGIN
from tests.support.agents.ssh_server import KEY, SshServer
from tests.support.waiting import eventually

FORK_SERVER = "shepherd_core.adapters.ssh.fork_server"
NONE = "/shepherd-tests/there-is-none"
"""An agent that runs nowhere: the machines are this computer, where other tests run agents."""

DIALS = """
import sys
from shepherd_core.adapters.ssh.dialer import SshDialer
from shepherd_core.domain.clock import Deadline, SystemClock

deadline = Deadline(SystemClock(), 600)
SshDialer(sys.argv[1], "root", int(sys.argv[2]), 60).dial("127.0.0.1", None, deadline).agent_state("hangs", deadline)
"""


def fork_server() -> int:
    (found,) = [pid for pid in processes.running(FORK_SERVER) if processes.parent(pid) == os.getpid()]
    return found


def child() -> int:
    """Return the only process of a machine; that of the test before may still be ending."""
    eventually(lambda: len(processes.below(fork_server())) == 1)
    (found,) = processes.below(fork_server())
    return found


def test_a_process_has_hard_limits_and_no_secret(connection: SshConnection) -> None:
    """The function's environment holds credentials of AWS."""
    soft = {what: resource.prlimit(child(), getattr(resource, f"RLIMIT_{what}"))[0] for what in ("CPU", "FSIZE", "AS")}
    assert 0 < soft["CPU"] <= 6
    assert soft["FSIZE"] == 0
    assert soft["AS"] < processes.size(child()) + messages.MEMORY_BYTES + (1 << 20)
    variables = Path(f"/proc/{child()}/environ").read_bytes().split(b"\0")
    names = {variable.partition(b"=")[0] for variable in variables if variable}
    assert names <= {b"PYTHONPATH", b"MALLOC_ARENA_MAX", b"LD_LIBRARY_PATH"}


def no_memory() -> None:
    resource.prlimit(child(), resource.RLIMIT_AS, (processes.size(child()) + 100_000,) * 2)


def no_time() -> None:
    threading.Timer(0.5, resource.prlimit, (child(), resource.RLIMIT_CPU, (1, -1))).start()


def kill() -> None:
    threading.Timer(0.2, os.kill, (child(), signal.SIGKILL)).start()


def end_before_the_request() -> None:
    pid = child()
    os.kill(pid, signal.SIGXCPU)
    eventually(lambda: not processes.size(pid))


@pytest.mark.parametrize(
    ("happens", "error", "words"),
    [
        (end_before_the_request, SshMisbehaved, "processor time"),
        (no_memory, SshMisbehaved, "more than 32 MiB of memory"),
        (no_time, SshMisbehaved, "processor time"),
        (kill, SshForkServerLost, "may need more memory"),  # else healthy machines would be recovered
    ],
)
def test_the_cause_of_an_end_names_who_is_at_fault(
    server: SshServer,
    connection: SshConnection,
    deadline: Deadline,
    happens: Callable[[], None],
    error: type[ShepherdError],
    words: str,
) -> None:
    vars(server).update(AFTER_LOGIN["complaints without end"])
    happens()
    with pytest.raises(error, match=words):
        connection.agent_state(NONE, deadline)


def test_a_process_ends_with_its_connection_however_it_ends(server: SshServer, connection: SshConnection) -> None:
    first = child()
    server.freezes_at = "program"
    with pytest.raises(SshTimedOut):
        connection.agent_state(NONE, Deadline(SystemClock(), 0.3))
    eventually(lambda: not Path(f"/proc/{first}").exists())
    assert processes.below(fork_server()) == []


def test_a_killed_function_leaves_no_process(server: SshServer) -> None:
    server.freezes_at = "program"
    with subprocess.Popen([sys.executable, "-c", DIALS, KEY, str(server.port)]) as function:
        eventually(lambda: server.sessions == 1)
        left = processes.below(function.pid)
        function.send_signal(signal.SIGKILL)
    assert len(left) == 2
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in left))


WAITS = """
import os, signal, sys
from shepherd_core.adapters.ssh.dialer import SshDialer
from shepherd_core.adapters.ssh.processes import FORK_SERVER
from shepherd_core.domain.clock import Deadline, SystemClock

clock = SystemClock()
dialer = SshDialer(sys.argv[1], "root", int(sys.argv[2]), 60)
os.kill(FORK_SERVER._pid, signal.SIGSTOP)
try:
    dialer.wait(Deadline(clock, 0.1))
except Exception as error:
    print(type(error).__name__)
os.kill(FORK_SERVER._pid, signal.SIGCONT)
for _ in range(2):
    dialer.wait(Deadline(clock, 600))
dialer.dial("127.0.0.1", None, Deadline(clock, 600)).close()
os.kill(FORK_SERVER._pid, signal.SIGKILL)
os.waitid(os.P_PID, FORK_SERVER._pid, os.WEXITED | os.WNOWAIT)
dialer.wait(Deadline(clock, 600))
dialer.dial("127.0.0.1", None, Deadline(clock, 600)).close()
print("done")
"""


def test_a_function_can_wait_until_the_fork_server_is_ready(server: SshServer) -> None:
    """Its start takes seconds on a busy computer, and must not take them from a look at a machine."""
    ended = subprocess.run([sys.executable, "-c", WAITS, KEY, str(server.port)], capture_output=True, check=True)
    assert ended.stdout.decode().split() == ["SshForkServerLost", "done"]
    assert ended.stderr == b""  # its fork server has ended quietly too


def test_a_fork_server_that_is_gone_is_started_again(
    server: SshServer, connection: SshConnection, deadline: Deadline
) -> None:
    """Connections that it had are lost by our fault; the next one works, and nothing of the old ones is left."""
    gone = [fork_server(), child()]
    os.kill(gone[0], signal.SIGKILL)
    eventually(lambda: not any(processes.size(pid) for pid in gone))
    with pytest.raises(SshForkServerLost):
        connection.agent_state(NONE, deadline)
    with closing(SshDialer(KEY, "root", server.port, connect_timeout=2).dial("127.0.0.1", None, deadline)) as second:
        assert second.agent_state(NONE, deadline) is AgentState.ENDED


def test_a_process_without_its_fork_server_ends_soon(server: SshServer, deadline: Deadline) -> None:
    """A killed fork server ends nothing, and Lambda may not let the kernel do it. The process has the SSH key."""
    with socket.create_connection(("127.0.0.1", server.port)) as machine:
        connection = SshConnection(machine, "machine", "root", grace_seconds=0.3)
    connection.exchange_keys(None, deadline)
    left, stopped = child(), fork_server()
    server.freezes_at = "login"
    os.kill(stopped, signal.SIGSTOP)
    with pytest.raises(SshTimedOut):
        connection.log_in(KEY, Deadline(SystemClock(), 0.2))
    eventually(lambda: not processes.size(left))
    os.kill(stopped, signal.SIGCONT)


def test_a_process_that_cannot_be_made_is_our_fault(connection: SshConnection, deadline: Deadline) -> None:
    files = len(list(Path(f"/proc/{fork_server()}/fd").iterdir()))
    resource.prlimit(fork_server(), resource.RLIMIT_NOFILE, (files + 2, files + 2))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        dialer = SshDialer(KEY, "root", listener.getsockname()[1], connect_timeout=2)
        with pytest.raises(SshForkServerLost, match="no process can be made"):
            dialer.dial("127.0.0.1", None, deadline)
    assert connection.agent_state(NONE, deadline) is AgentState.ENDED
    os.kill(fork_server(), signal.SIGKILL)  # it spares the other tests one with these limits


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\xff",
        b"[" * 100_000,
        b"[]",
        b"1",
        b'{"failure": "none", "text": ""}',
        b'{"failure": "lost"}',
        messages.encode({"failure": "lost", "text": "x" * 100_000}),
        b"{}",
        b'{"host_key": 1}',
        b'{"host_key": "ssh-ed25519"}',
        b'{"host_key": "ssh-ed25519 A A"}',
        b'{"host_key": "ssh\\u0000 AAAA"}',
        b'{"host_key": "\\u001b[2J AAAA"}',
        b'{"stdout": "", "stderr": "", "exit_status": true}',
        b'{"host_key": "ssh-ed25519 A\\u00e9"}',
        messages.encode({"host_key": "ssh-ed25519 " + "A" * messages.HOST_KEY}),
        b'{"stdout": "", "stderr": ""}',
        b'{"stdout": "", "stderr": "", "exit_status": 256}',
        b'{"stdout": "", "stderr": "", "exit_status": "0"}',
        b'{"stdout": [], "stderr": "", "exit_status": 0}',
        b'{"stdout": "$", "stderr": "", "exit_status": 0}',
        messages.encode({"stdout": "AAAA" * messages.STDOUT_BYTES, "stderr": "", "exit_status": 0}),
    ],
)
def test_what_a_process_answers_is_checked(answer: bytes) -> None:
    """A machine may have found a way to write it; its text goes into the history."""
    for read in (messages.host_key, messages.result):
        with pytest.raises(RequestFailed) as caught:
            read(messages.decode(answer))
        assert len(caught.value.text) <= messages.TEXT
