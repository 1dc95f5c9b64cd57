import ast
import datetime as dt
import fcntl
import os
import py_compile
import re
import shutil
import ssl
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from py_compile import PycInvalidationMode

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from shepherd_core.adapters.agent_file import our_agent
from shepherd_core.domain.pb.agent_pb2 import TakeoverInit, TakeoverResponse
from shepherd_core.domain.pb.callback_pb2 import HeartbeatResponse, OSInstallationRequest

from agent.shepherd_agent.__main__ import main
from agent.shepherd_agent.process import older_agents
from agent.shepherd_agent.reports.endpoint import Endpoint, NotDelivered
from simulator.machines.pool import MachinePool
from tests.support.agents.agent_server import AgentServer, Answer, Request, certificate
from tests.support.agents.executable import write_agent
from tests.support.agents.installation_key import NOW, PUBLIC, signed_request
from tests.support.agents.machine_client import Client, Result
from tests.support.processes import ran
from tests.support.waiting import eventually

PATH = "/root/agent"
INTERVAL, LIMIT = "SHEPHERD_AGENT_HEARTBEAT_SECONDS", "SHEPHERD_AGENT_INSTALL_SECONDS"
GOOD = TakeoverInit(machine_id="id", bmaas_endpoint="http://127.0.0.1:1").SerializeToString()


@pytest.fixture
def server() -> Iterator[AgentServer]:
    with AgentServer() as server:
        yield server


def _wait_for_heartbeats(server: AgentServer) -> None:
    """Wait for two more; of the first, an agent that was replaced may have sent one."""
    wanted = len(server.requests) + 2
    eventually(lambda: len(server.requests) >= wanted)


@pytest.fixture(scope="module")
def executable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of the built agent, with its bytecode: to compile it takes most of the time of its start."""
    path = tmp_path_factory.mktemp("agent") / "agent"
    write_agent(path)
    with zipfile.ZipFile(path, "a") as archive:
        for name in archive.namelist():
            source, compiled = path.with_name("source.py"), path.with_name("compiled.pyc")
            source.write_bytes(archive.read(name))
            py_compile.compile(str(source), str(compiled), name, invalidation_mode=PycInvalidationMode.UNCHECKED_HASH)
            archive.write(compiled, f"{name}c")
    return path


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with MachinePool(tmp_path / "pool", 0, boot_seconds=0, agent_environment={INTERVAL: "0.05"}) as pool:
        yield Client(pool)


@pytest.fixture
def machine(client: Client, executable: Path) -> str:
    client.rack("crate")
    client.upload("crate", PATH, executable.read_bytes())
    return "crate"


def _start(client: Client, machine: str, endpoint: str, machine_id: str = "id", ca: bytes = b"") -> TakeoverResponse:
    init = TakeoverInit(
        machine_id=machine_id, bmaas_endpoint=endpoint, ca_certificate=ca, installation_key=[PUBLIC], time=NOW
    )
    result = client.run(machine, PATH, init.SerializeToString())
    assert (result.status, result.errors) == (0, b"")
    answer = TakeoverResponse.FromString(result.output)
    assert answer.success.init_message == init
    return answer


def _refusal(result: Result) -> str:
    reason = TakeoverResponse.FromString(result.output).error.message
    assert (result.status, result.errors) == (1, f"shepherd-agent: {reason}\n".encode())
    return reason


def test_the_agent_lets_go_of_the_session(client: Client, machine: str) -> None:
    """It keeps only its lock open, has no parent, and does not write its memory, with the key, to disk."""
    client.upload(machine, "/root/start", b'#!/bin/sh\necho $$ >"$HOME/starter"\nexec "$HOME/agent"\n')
    assert client.run(machine, "/root/start", GOOD).status == 0
    starter = int((client.pool.disk(machine) / "root/starter").read_text())
    (pid,) = client.pool.agents(machine)
    open_files = {Path(f"/proc/{pid}/fd/{number}").readlink() for number in range(3)}
    assert open_files == {Path(os.devnull)}
    assert os.getsid(pid) not in (pid, starter)
    assert Path(f"/proc/{pid}/cwd").readlink() == Path("/")
    assert "Max core file size        0                    0" in Path(f"/proc/{pid}/limits").read_text()


@pytest.mark.parametrize("hangs", [False, True])
def test_the_newer_agent_replaces_the_older(client: Client, machine: str, server: AgentServer, hangs: bool) -> None:
    """Only the last key is on record. A stopped process does not answer signals, save one."""
    first = _start(client, machine, server.url, "first")
    (older,) = client.pool.agents(machine)
    if hangs:
        client.pool.stop_agents(machine)
    second = _start(client, machine, server.url, "second")
    (newer,) = client.pool.agents(machine)
    assert newer != older
    assert first.success.key != second.success.key
    eventually(lambda: server.requests and server.requests[-1].heartbeat.machine_id == "second")


def test_of_agents_that_start_together_one_is_left(client: Client, machine: str) -> None:
    """Two Initializers may meet on one machine; each start either takes over or is killed."""
    with ThreadPoolExecutor(4) as pool:
        statuses = set(pool.map(lambda _: client.run(machine, PATH, GOOD).status, range(4)))
    assert 0 in statuses
    assert statuses <= {0, -1}
    eventually(lambda: len(client.pool.agents(machine)) == 1)


def test_a_process_that_is_no_agent_is_never_killed(client: Client, machine: str, server: AgentServer) -> None:
    """The number in the pid file may belong to another process by now."""
    pid_file = client.pool.disk(machine) / f"{PATH}.pid".lstrip("/")
    with subprocess.Popen(["sleep", "1000"]) as bystander, pid_file.open("w") as file:
        try:
            file.write(f"{bystander.pid}\n")
            file.flush()
            fcntl.flock(file, fcntl.LOCK_EX)
            starting = threading.Thread(target=_start, args=(client, machine, server.url))
            starting.start()
            eventually(lambda: _sleeps_with_open(pid_file))
            fcntl.flock(file, fcntl.LOCK_UN)
            starting.join()
            assert len(client.pool.agents(machine)) == 1
            assert bystander.poll() is None
        finally:
            bystander.kill()


def _sleeps_with_open(path: Path) -> bool:
    """Return whether a process other than this one has *path* open and waits for something: it has looked at it."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if int(process.name) != os.getpid() and any(fd.samefile(path) for fd in (process / "fd").iterdir()):
                return (process / "stat").read_text().rpartition(")")[2].split()[0] == "S"
        except OSError:
            continue
    return False


def test_an_agent_that_cannot_write_its_pid_file_says_so(client: Client, machine: str, server: AgentServer) -> None:
    (client.pool.disk(machine) / f"{PATH}.pid".lstrip("/")).mkdir()
    (warning,) = _start(client, machine, server.url).success.warning
    assert "no record of this agent's process" in warning
    _wait_for_heartbeats(server)
    (older,) = older_agents(str(client.pool.disk(machine) / PATH.lstrip("/")))
    _start(client, machine, server.url)
    (newer,) = older_agents(str(client.pool.disk(machine) / PATH.lstrip("/")))
    assert newer != older


def test_a_new_agent_does_not_end_an_installation(client: Client, machine: str) -> None:
    """It is refused until the installation has ended, or has taken longer than any may."""
    root = client.pool.disk(machine) / "root"
    client.upload(machine, "/root/agent.install", b'#!/bin/sh\nwhile [ ! -e "$HOME/go" ]; do sleep 0.1; done\n')
    wish = signed_request(OSInstallationRequest(generation=1))
    with AgentServer(lambda _: Answer(200, HeartbeatResponse(installation_request=wish))) as server:
        _start(client, machine, server.url)
        eventually((root / "agent.generation").exists)
        (older,) = older_agents(str(root / "agent"))
        assert "carries out an installation" in _refusal(client.run(machine, PATH, GOOD))
        assert older_agents(str(root / "agent")) == [older]
        begun = (root / "agent.generation").stat().st_mtime
        os.utime(root / "agent.generation", (begun - 3600, begun - 3600))
        _start(client, machine, server.url)
        assert older not in older_agents(str(root / "agent"))
        (root / "go").touch()


def test_the_agent_proves_itself_reports_and_installs(client: Client, machine: str) -> None:
    client.upload(
        machine,
        f"{PATH}.install",
        b'#!/bin/sh\ncat >"$HOME/request"; echo $SHEPHERD_AGENT_INSTALL_GENERATION; exit 1\n',
    )
    wish = OSInstallationRequest(generation=3)
    wish.metropolis.image_url = "https://images.example.com/image"
    outage = [503] * 3

    def answer(request: Request) -> Answer:
        if outage:
            return Answer(outage.pop())  # it does not end the agent
        done = request.heartbeat.HasField("installation_report")
        return Answer(200, HeartbeatResponse(installation_request=None if done else signed_request(wish)))

    with AgentServer(answer) as server:
        key = _start(client, machine, server.url).success.key
        eventually(lambda: any(request.heartbeat.HasField("installation_report") for request in server.requests))
        client.pool.power_off(machine)
    for request in server.requests:
        request.verify(key)
        assert request.heartbeat.machine_id == "id"
    assert server.requests[0].heartbeat.hardware_report.report.cpu
    reports = [each.heartbeat.installation_report for each in server.requests]
    (error,) = {report.error.error for report in reports if report.generation == 3}
    assert error == "the installation command ended with status 1: 3"
    assert OSInstallationRequest.FromString((client.pool.disk(machine) / "root/request").read_bytes()) == wish
    assert (client.pool.disk(machine) / "root/agent.generation").read_text().split() == ["id", "3"]


@pytest.mark.parametrize(
    ("init", "environment", "reason"),
    [
        (b"", {}, "the TakeoverInit has no machine_id"),
        (b"\x22" + b"\xff" * (1 << 20), {}, "the standard input is longer than 1048576 bytes"),
        (GOOD, {INTERVAL: "often"}, f"{INTERVAL} is 'often'; set it to a positive number of seconds"),
        (GOOD, {LIMIT: "often"}, f"{LIMIT} is 'often'; set it to a positive number of seconds"),
    ],
    ids=["empty", "endless", "interval", "limit"],
)
def test_a_bad_takeover_is_refused_and_starts_nothing(
    executable: Path, init: bytes, environment: dict[str, str], reason: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", executable], input=init, capture_output=True, check=False, env=environment
    )
    assert _refusal(Result(done.returncode, done.stdout, done.stderr)) == reason
    assert older_agents(str(executable)) == []


def test_an_agent_whose_answer_is_not_read_exits(client: Client, machine: str) -> None:
    """Its key would not be recorded."""
    client.upload(machine, "/root/deaf", b'#!/bin/sh\nexec "$HOME/agent" >/dev/full\n')
    assert client.run(machine, "/root/deaf", GOOD).status not in (0, -1)
    assert client.pool.agents(machine) == []


def _ca(begins: dt.timedelta) -> bytes:
    key = generate_private_key(SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "endpoint")])
    begin = dt.datetime.now(dt.UTC) + begins
    return (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + dt.timedelta(days=2))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, SHA256())
        .public_bytes(Encoding.DER)
    )


def test_the_given_ca_alone_is_trusted(client: Client, machine: str, tmp_path: Path) -> None:
    """An endpoint needs no certificate that the world trusts, and no other server can pose as it."""
    tls, ca = certificate(tmp_path)
    with AgentServer(tls=tls) as server:
        for wrong in (_ca(dt.timedelta(days=-1)), b""):
            with pytest.raises(NotDelivered, match="certificate verify failed"):
                Endpoint(server.url, wrong).post("heartbeat", b"", dict)
        assert not server.requests
        assert not _start(client, machine, server.url.removeprefix("https://"), ca=ca).success.warning
        _wait_for_heartbeats(server)


@pytest.mark.parametrize(
    ("address", "days", "warned"),
    [
        ("http://127.0.0.1:1", -1, "the ca_certificate is not used, because the endpoint is plain HTTP"),
        ("127.0.0.1:1", -3, "the ca_certificate is valid from .*, but this machine's clock says .*"),
        ("127.0.0.1:1", 1, "the ca_certificate is valid from .*, but this machine's clock says .*"),
    ],
)
def test_a_ca_that_is_of_no_use_is_warned_about(
    client: Client, machine: str, address: str, days: int, warned: str
) -> None:
    """The takeover is the last time that its output is read; no heartbeat would be encrypted, or none arrive."""
    (warning,) = _start(client, machine, address, ca=_ca(dt.timedelta(days=days))).success.warning
    assert re.fullmatch(warned, warning)


def test_one_heartbeat_can_be_sent_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tls, ca = certificate(tmp_path)
    (tmp_path / "ca.der").write_bytes(ca)
    (tmp_path / "ca.pem").write_text(ssl.DER_cert_to_PEM_cert(ca))

    def once(*arguments: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["agent", "--once", "id", *map(str, arguments)])
        status = main()
        shown = capsys.readouterr()
        return status, shown.out + shown.err

    with AgentServer(tls=tls) as server:
        for ca_file in ("ca.der", "ca.pem"):
            assert once(server.url, tmp_path / ca_file) == (0, "accepted\nrequested: nothing\n")
        status, output = once(server.url)
        assert status == 1
        assert "certificate verify failed" in output
        assert once(server.url, tmp_path / "none") == (
            1,
            f"shepherd-agent: the CA cannot be read: [Errno 2] No such file or directory: '{tmp_path / 'none'}'\n",
        )
    wish = HeartbeatResponse(installation_request=OSInstallationRequest(generation=4))
    with AgentServer(lambda _: Answer(200, wish)) as server:
        assert once(server.url) == (0, "accepted\nrequested: installation 4, which was not started\n")
        server.answer = lambda _: Answer(401)
        assert once(server.url) == (1, "shepherd-agent: 401 Unauthorized\n")
    assert once("ftp://x")[0] == 1


ROOT = Path(__file__).parents[3]
SOURCES = sorted((ROOT / "agent").rglob("*.py"))


def test_the_same_sources_give_the_same_bytes(tmp_path: Path) -> None:
    """The upload is skipped when the machine has the file already; so no time and no order of files may be in it."""
    layer = tmp_path / "layer"
    shutil.copytree(ROOT / "agent/shepherd_agent", layer / "shepherd_agent")
    shutil.copytree(ROOT / "layers/shepherd_core/shepherd_core", layer / "shepherd_core")
    (layer / "shepherd_agent/__main__.pyc").write_bytes(b"bytecode")
    told = "from shepherd_core.adapters.agent_file import our_agent; print(our_agent().sha256, end='')"
    assert ran(sys.executable, "-c", told, cwd=layer).stdout == our_agent().sha256


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_the_agent_runs_with_python_3_9_alone(source: Path) -> None:
    """Nothing is installed on the machines for it."""
    tree = ast.parse(source.read_bytes(), feature_version=(3, 9))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            modules = [node.module or ""]
        else:
            continue
        assert {module.partition(".")[0] for module in modules} <= sys.stdlib_module_names


def test_an_older_python_is_named(tmp_path: Path) -> None:
    """It would else fail at the first sentence that it does not understand."""
    write_agent(tmp_path / "agent")
    old = "import runpy, sys; sys.version_info, sys.version = (3, 7, 3), '3.7.3 (default)'; runpy.run_path('agent')"
    ended = ran(sys.executable, "-c", old, cwd=tmp_path, status=1)
    assert ended.stderr == "the agent needs Python 3.9 or newer, and python3 is 3.7.3\n"


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["agent", "--version"], 0, f"shepherd-agent {version('shepherd')}\n"),
        (["agent", "--help"], 0, "TakeoverInit"),
        (["agent", "--dry-run"], 0, '"efi_support": "'),  # the hardware report, for people
        (["agent", "--halp"], 2, "TakeoverInit"),
    ],
)
def test_the_agent_explains_itself(tmp_path: Path, arguments: list[str], status: int, told: str) -> None:
    write_agent(tmp_path / "agent")
    ended = ran(sys.executable, *arguments, cwd=tmp_path, status=status)
    assert told in (ended.stderr if status else ended.stdout)
