"""What agents send to the endpoint, and what they make of the answers."""

import fcntl
import gc
import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidSignature
from shepherd_core.domain.pb.callback_pb2 import (
    HeartbeatResponse,
    MetropolisInstallation,
    OSInstallationReport,
    OSInstallationRequest,
)

from agent.shepherd_agent.ed25519 import PrivateKey
from agent.shepherd_agent.hardware.inventory import Inventory
from agent.shepherd_agent.installation.installer import Installer
from agent.shepherd_agent.installation.permit import Permit
from agent.shepherd_agent.reports.endpoint import Endpoint, NotDelivered
from agent.shepherd_agent.reports.heartbeat import Heartbeats
from agent.shepherd_agent.reports.interval import Interval
from agent.shepherd_agent.reports.reporter import MessageRefused, Reporter, TooOften, Unauthorized
from tests.support.agents.agent_server import AgentServer, Answer
from tests.support.agents.installation_key import signed_request, taught
from tests.support.waiting import eventually

KEY = PrivateKey(b"k" * 32)
YEAR = 365 * 86_400_000
HARDWARE = b"\x12\x05a fan"  # an AgentHardwareReport with one warning
SECONDS = 20.0


@pytest.fixture
def server() -> Iterator[AgentServer]:
    """Return a running server."""
    with AgentServer() as server:
        yield server


class Agent:
    """An agent without its process: its heartbeats are sent by hand."""

    def __init__(self, url: str, command: Path, limit: float = SECONDS) -> None:
        self.command = command
        self.installer = Installer(str(command), limit, Permit(taught(), f"{command}.generation"))
        self.heartbeats = Heartbeats(
            Reporter(Endpoint(url, b""), KEY, "id"),
            Inventory(lambda: HARDWARE),
            self.installer,
            Interval({}, f"{command}.interval"),
        )

    def configure(self, script: str) -> None:
        """Put the operator's command into its place."""
        self.command.write_text(f"#!/bin/sh\n{script}\n")
        self.command.chmod(0o755)

    def outcome(self, server: AgentServer) -> OSInstallationReport:
        """Send heartbeats until one reports on an installation, and return that report."""

        def reported() -> bool:
            self.heartbeats.send()
            return server.requests[-1].heartbeat.HasField("installation_report")

        eventually(reported)
        return server.requests[-1].heartbeat.installation_report


@pytest.fixture
def agent(server: AgentServer, tmp_path: Path) -> Agent:
    """Return an agent of the server's."""
    return Agent(server.url, tmp_path / "agent.install")


def _request(generation: int, parameters: bytes = b"") -> HeartbeatResponse:
    installation = MetropolisInstallation(image_url="https://x/y", node_parameters=parameters)
    request = OSInstallationRequest(generation=generation, metropolis=installation)
    return HeartbeatResponse(installation_request=signed_request(request))


def _asking(generation: int, parameters: bytes = b"") -> Answer:
    return Answer(200, _request(generation, parameters))


# --- signatures and time ---


def test_every_request_is_signed(server: AgentServer) -> None:
    """Over the path as it was requested, the time, and every byte."""
    reporter = Reporter(Endpoint(f"{server.url}/prod/", b""), KEY, "id")
    for body in (b"", b"one\n", bytes(range(256)) * 100):
        reporter.send("heartbeat", body)
        request = server.requests[-1]
        assert (request.path, request.body) == ("/prod/heartbeat", body)
        request.verify(KEY.public)
        for forged in (
            request._replace(body=body + b"x"),
            request._replace(time=str(int(request.time) + 1)),
            request._replace(path="/prod/heartbeat/"),
        ):
            with pytest.raises(InvalidSignature):
                forged.verify(KEY.public)
    times = [int(request.time) for request in server.requests]
    assert times == sorted(set(times))


@pytest.mark.parametrize("time", ["", "soon", "-1", "9" * 100, "\u00b2"])
def test_a_server_that_does_not_tell_the_time_changes_nothing(server: AgentServer, time: str) -> None:
    """It may be something else that answers 401."""
    server.answer = lambda _: Answer(401, time=time)
    reporter = Reporter(Endpoint(server.url, b""), KEY, "id", lambda: YEAR)
    for _ in range(2):
        with pytest.raises(Unauthorized, match="401"):
            reporter.send("heartbeat", b"")
    assert [int(request.time) for request in server.requests] == [YEAR, YEAR + 1]


@pytest.mark.parametrize(("status", "refused"), [(400, True), (413, True), (404, False), (500, False), (302, False)])
def test_a_refused_message_and_an_outage_differ(server: AgentServer, status: int, refused: bool) -> None:
    """After an outage the same message is tried again."""
    server.answer = lambda _: Answer(status)
    with pytest.raises(NotDelivered, match=str(status)) as failure:
        Reporter(Endpoint(server.url, b""), KEY, "id").send("heartbeat", b"")
    assert isinstance(failure.value, MessageRefused) == refused


# --- heartbeats and hardware ---


def test_the_hardware_comes_with_the_first_heartbeat_alone(server: AgentServer, agent: Agent) -> None:
    """A plain heartbeat is cheap for the endpoint."""
    for _ in range(3):
        agent.heartbeats.send()
    first, *rest = (request.heartbeat for request in server.requests)
    assert list(first.hardware_report.warning) == ["a fan"]
    assert all(heartbeat.machine_id == "id" for heartbeat in (first, *rest))
    assert not any(heartbeat.HasField("hardware_report") for heartbeat in rest)


def test_the_hardware_is_sent_until_it_arrives(server: AgentServer, agent: Agent) -> None:
    """The endpoint may be away, or the key not be on record yet."""
    answered = []
    for status in (503, 401, 404, 200, 200):
        server.answer = lambda _, status=status: Answer(status)  # type: ignore[misc]  # a lambda with a default
        try:
            agent.heartbeats.send()
        except NotDelivered as error:
            answered.append(error.answered)
    assert answered == [True, True, True]  # it is not sent again sooner than usual
    sent = [request.heartbeat.HasField("hardware_report") for request in server.requests]
    assert sent == [True, True, True, True, False]


def test_a_heartbeat_says_how_many_attempts_failed_before_it(server: AgentServer, agent: Agent) -> None:
    """Attempts that the endpoint could not record count too; wrong signatures and reports are no losses."""
    for status in (503, 429, 500, 401, 413, 200, 200):
        server.answer = lambda _, status=status: Answer(status)  # type: ignore[misc]  # a lambda with a default
        with suppress(NotDelivered):
            agent.heartbeats.send()
    assert [request.heartbeat.failed_attempts for request in server.requests] == [0, 1, 2, 3, 3, 3, 0]


def test_a_heartbeat_that_had_arrived_already_is_no_loss(server: AgentServer, agent: Agent) -> None:
    """Its answer was lost, and the agent API refused it the second time. A 429 of AWS has no such time."""
    agent.heartbeats.send()
    for answer in (Answer(503), Answer(429, time="1"), Answer(429, time="1"), Answer(429), Answer(200)):
        server.answer = lambda _, answer=answer: answer  # type: ignore[misc]  # a lambda with a default
        with suppress(NotDelivered):
            agent.heartbeats.send()
    assert [request.heartbeat.failed_attempts for request in server.requests] == [0, 0, 1, 0, 0, 1]


def test_the_agent_goes_by_the_interval_of_the_answer_and_says_so(server: AgentServer, agent: Agent) -> None:
    """Shepherd waits by it for the machine; an answer without one changes nothing."""
    changed = []
    for told in (240, 240, 0, 3600):
        server.answer = lambda _, told=told: Answer(message=HeartbeatResponse(report_interval_seconds=told))  # type: ignore[misc]  # a lambda with a default
        changed.append(agent.heartbeats.send())
    assert changed == [True, False, False, True]
    sent = [request.heartbeat.report_interval_seconds for request in server.requests]
    assert sent == [60, 240, 240, 240]
    assert agent.heartbeats.interval.seconds == 3600


def test_hardware_that_comes_too_often_does_not_keep_the_heartbeats_out(server: AgentServer, agent: Agent) -> None:
    """The endpoint limits hardware reports, and a machine without heartbeats is rebooted."""
    server.answer = lambda request: Answer(429 if request.heartbeat.HasField("hardware_report") else 200)
    for _ in range(2):
        with pytest.raises(TooOften):
            agent.heartbeats.send()
        agent.heartbeats.send()
    server.answer = lambda _: Answer()
    agent.heartbeats.send()
    assert server.requests[-1].heartbeat.HasField("hardware_report")


def test_a_refused_report_does_not_keep_the_heartbeats_out(server: AgentServer, agent: Agent) -> None:
    """Otherwise a machine with too long a report would be rebooted without end."""
    server.answer = lambda request: Answer(413 if request.heartbeat.HasField("hardware_report") else 200)
    with pytest.raises(MessageRefused):
        agent.heartbeats.send()
    agent.heartbeats.send()


def test_an_answer_that_is_none_is_an_outage(server: AgentServer, agent: Agent) -> None:
    """A captive portal answers 200 to everything; the report is not delivered by that."""
    server.answer = lambda _: Answer(200, b"<html>")
    with pytest.raises(NotDelivered, match="not a HeartbeatResponse"):
        agent.heartbeats.send()
    server.answer = lambda _: Answer()
    agent.heartbeats.send()
    assert server.requests[-1].heartbeat.HasField("hardware_report")


def test_an_outage_of_days_leaves_nothing_behind(tmp_path: Path) -> None:
    """A heartbeat a minute makes thousands of failures; none may cost memory or an open file."""
    with AgentServer() as server:
        url = server.url
    agent = Agent(url, tmp_path / "agent.install")

    def fail(times: int) -> tuple[int, int, int]:
        for _ in range(times):
            with pytest.raises(NotDelivered):
                agent.heartbeats.send()
        gc.collect()
        return len(list(Path("/proc/self/fd").iterdir())), threading.active_count(), sys.getallocatedblocks()

    files, threads, blocks = fail(20)
    later_files, later_threads, later_blocks = fail(100)
    assert later_files <= files  # what earlier tests left may end meanwhile
    assert later_threads <= threads
    assert later_blocks - blocks < 100  # not even one object each


# --- installations ---


@pytest.mark.parametrize(
    ("scheme", "beginning"),
    [
        ("http", b""),
        ("http", b"HTTP/1.1 200 OK\r\nX: "),
        ("http", b"HTTP/1.1 200 OK\r\n\r\n"),
        ("https", b"\x16\x03\x03\x02\x58"),
    ],
    ids=["status line", "header", "body", "TLS handshake"],
)
def test_a_request_has_a_time_limit_as_a_whole(scheme: str, beginning: bytes) -> None:
    """An endpoint that gives a byte now and then must not hold the agent, though no wait for a byte is long."""
    gone = threading.Event()

    def drip() -> None:
        with listener.accept()[0] as connection, suppress(OSError):
            connection.sendall(beginning)
            for _ in range(600):
                connection.sendall(b"x")
                gone.wait(0.02)
            connection.sendall(b"\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip)
        thread.start()
        url = f"{scheme}://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(NotDelivered, match=r"no answer within 0\.2 s") as failure:
            Endpoint(url, b"", seconds=0.2).post("heartbeat", b"", dict)
        gone.set()
        thread.join()
    assert not failure.value.answered


def test_a_name_that_is_looked_up_for_too_long_is_left_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The resolver has time limits of its own, longer ones; a lookup that never ends must not become one more each."""
    over, looked_up = threading.Event(), []

    def resolver(*asked: object, **_: object) -> list[object]:
        looked_up.append(asked)
        over.wait(20)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", resolver)
    endpoint = Endpoint("agents.example.com", b"", seconds=0.2)
    for _ in range(2):
        with pytest.raises(NotDelivered, match=r"no answer within 0\.2 s"):
            endpoint.post("heartbeat", b"", dict)
    assert not over.is_set()
    assert len(looked_up) == 1
    over.set()
    with pytest.raises(NotDelivered, match="the name has no address"):
        Endpoint("agents.example.com", b"").post("heartbeat", b"", dict)


def test_an_installation_is_run_and_reported_once(server: AgentServer, agent: Agent, tmp_path: Path) -> None:
    """The command gets the request as it was signed."""
    parameters = b"secret" * 50_000
    server.answer = lambda request: (
        Answer() if request.heartbeat.HasField("installation_report") else _asking(7, parameters)
    )
    agent.configure(
        f'cat >{tmp_path}/request; echo "$SHEPHERD_AGENT_INSTALL_GENERATION" >>{tmp_path}/runs; echo installed'
    )
    agent.heartbeats.send()
    report = agent.outcome(server)
    assert (report.generation, report.WhichOneof("result")) == (7, "success")
    request = OSInstallationRequest.FromString((tmp_path / "request").read_bytes())
    metropolis = MetropolisInstallation(image_url="https://x/y", node_parameters=parameters)
    assert request == OSInstallationRequest(generation=7, metropolis=metropolis)
    server.answer = lambda _: Answer()
    agent.heartbeats.send()
    assert not server.requests[-1].heartbeat.HasField("installation_report")
    assert (tmp_path / "runs").read_text() == "7\n"


def test_an_outcome_is_sent_until_it_is_accepted(server: AgentServer, agent: Agent) -> None:
    """An installation may end while the endpoint is away."""
    agent.configure("exit 3")
    agent.heartbeats.send()
    server.answer = lambda _: _asking(1)
    agent.heartbeats.send()
    eventually(agent.installer.report)
    server.answer = lambda _: Answer(500)
    for _ in range(2):
        with pytest.raises(NotDelivered):
            agent.heartbeats.send()
        assert server.requests[-1].heartbeat.HasField("installation_report")
    server.answer = lambda _: Answer()
    assert agent.outcome(server).error.error == "the installation command ended with status 3"


def test_a_generation_that_was_done_is_reported_again_and_not_run_again(
    server: AgentServer, agent: Agent, tmp_path: Path
) -> None:
    """The endpoint asks again when it lost the report; an older wish it has given up."""
    agent.configure(f"echo run >>{tmp_path}/runs")
    server.answer = lambda _: _asking(5)
    agent.heartbeats.send()
    for _ in range(3):
        assert agent.outcome(server).generation == 5
    server.answer = lambda _: _asking(4)
    agent.outcome(server)
    agent.heartbeats.send()
    agent.heartbeats.send()
    assert not server.requests[-1].heartbeat.HasField("installation_report")
    server.answer = lambda _: _asking(6)
    agent.heartbeats.send()
    assert agent.outcome(server).generation == 6
    assert (tmp_path / "runs").read_text() == "run\nrun\n"


def test_a_refused_outcome_does_not_keep_the_heartbeats_out(server: AgentServer, agent: Agent) -> None:
    """The request may have been withdrawn meanwhile."""
    agent.configure("true")
    agent.heartbeats.send()
    server.answer = lambda _: _asking(1)
    agent.heartbeats.send()
    eventually(agent.installer.report)
    server.answer = lambda request: Answer(400 if request.heartbeat.HasField("installation_report") else 200)
    with pytest.raises(MessageRefused):
        agent.heartbeats.send()
    agent.heartbeats.send()


def test_heartbeats_go_on_during_an_installation(server: AgentServer, agent: Agent, tmp_path: Path) -> None:
    """It may take an hour, and a machine without heartbeats is rebooted."""
    os.mkfifo(tmp_path / "gate")
    agent.configure(f"cat {tmp_path}/gate")
    server.answer = lambda _: _asking(1)
    for _ in range(5):
        agent.heartbeats.send()
    assert not server.requests[-1].heartbeat.HasField("installation_report")
    with (tmp_path / "gate").open("w"):
        pass
    assert agent.outcome(server).HasField("success")


def test_without_a_command_the_reason_is_reported(server: AgentServer, agent: Agent) -> None:
    """A file that is not executable is none; as soon as there is one the next wish is granted."""
    agent.command.write_text("#!/bin/sh\n")
    server.answer = lambda _: _asking(1)
    agent.heartbeats.send()
    error = agent.outcome(server).error.error
    assert error.startswith("no installation command is configured")
    assert str(agent.command) in error
    agent.configure("true")
    server.answer = lambda _: _asking(2)
    agent.heartbeats.send()
    eventually(lambda: agent.outcome(server).generation == 2)


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("echo no disk; echo none at all >&2; exit 4", "ended with status 4: no disk\nnone at all"),
        ("kill -9 $$", "was killed by signal 9"),
        ("exec /nowhere", "ended with status 127: "),
        ("printf '\\377\\376'; exit 1", "ended with status 1: \ufffd\ufffd"),
    ],
    ids=["status", "signal", "not found", "not text"],
)
def test_a_failed_installation_reports_its_output(server: AgentServer, agent: Agent, script: str, error: str) -> None:
    """The machine's terminal is not visible to an operator."""
    agent.configure(script)
    server.answer = lambda _: _asking(1)
    agent.heartbeats.send()
    assert agent.outcome(server).error.error.startswith(f"the installation command {error}")


def test_a_command_that_cannot_be_started_is_reported(server: AgentServer, agent: Agent) -> None:
    """Its interpreter may be missing."""
    agent.configure("")
    agent.command.write_text("#!/nowhere\n")
    server.answer = lambda _: _asking(1)
    agent.heartbeats.send()
    assert "could not be run" in agent.outcome(server).error.error


@pytest.mark.parametrize("place", ["agent.install", "below"])
@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777])
def test_a_command_that_others_can_change_is_not_run(
    server: AgentServer, tmp_path: Path, place: str, mode: int
) -> None:
    """It runs as root: anyone who can write it or put another file in its place would be root."""
    folder = tmp_path / "below"
    folder.mkdir(mode=0o755)
    ran = tmp_path / "ran"
    agent = Agent(server.url, folder / "agent.install")
    agent.configure(f"touch {ran}")
    changed = {"agent.install": agent.command, "below": folder}[place]
    changed.chmod(mode)
    server.answer = lambda _: _asking(1)
    agent.heartbeats.send()
    error = agent.outcome(server).error.error
    assert error.endswith(f"not safe to run: {changed} is writable by others (mode {mode:04o})")
    changed.chmod(0o755)
    server.answer = lambda _: _asking(2)
    agent.heartbeats.send()
    assert agent.outcome(server).HasField("success")
    assert ran.exists()


@pytest.mark.parametrize("linked", ["file", "folder"])
def test_a_command_that_a_link_leads_to_is_not_run(server: AgentServer, tmp_path: Path, linked: str) -> None:
    """Anyone who can turn the link, or one that it goes over, decides what runs."""
    real = tmp_path / "real"
    real.mkdir()
    Agent(server.url, real / "agent.install").configure("")
    link = tmp_path / "link"
    if linked == "folder":
        link.symlink_to(real)
    else:
        link.mkdir()
        (link / "agent.install").symlink_to(real / "agent.install")
    agent = Agent(server.url, link / "agent.install")
    server.answer = lambda _: _asking(1)
    agent.heartbeats.send()
    assert f"reached by a link, and is {real / 'agent.install'}" in agent.outcome(server).error.error


def test_output_is_bounded_to_its_end(server: AgentServer, agent: Agent) -> None:
    """Programs that copy a disk print without end, and the reason comes last."""
    agent.configure("head -c 3000000 /dev/zero | tr '\\0' x; echo; echo the reason; exit 1")
    server.answer = lambda _: _asking(1)
    agent.heartbeats.send()
    error = agent.outcome(server).error.error
    assert error.endswith("x\nthe reason")
    assert len(error) < 5000


@pytest.mark.parametrize("script", ["sleep 1000", "yes", "exec >&- 2>&-; sleep 1000"], ids=["silent", "loud", "closed"])
def test_an_installation_that_takes_too_long_is_killed(server: AgentServer, tmp_path: Path, script: str) -> None:
    """With all that it started, as long as that stayed together."""
    agent = Agent(server.url, tmp_path / "agent.install", limit=0.3)
    agent.configure(f"echo began; {script}")
    server.answer = lambda _: _asking(1)
    agent.heartbeats.send()
    assert "took longer than 0.3 s: " in agent.outcome(server).error.error
    with agent.command.open() as file:
        # Every process of the installation holds this lock.
        eventually(lambda: _locks(file.fileno()))


def _locks(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def test_processes_left_by_an_installation_do_not_delay_its_outcome(
    server: AgentServer, agent: Agent, tmp_path: Path
) -> None:
    """It may leave a process that starts the new system in a moment; the time limit is far off."""
    agent.configure(f"sleep 1000 & echo $! >{tmp_path}/pid; echo began")
    server.answer = lambda _: _asking(1)
    try:
        agent.heartbeats.send()
        assert agent.outcome(server).HasField("success")
    finally:
        os.kill(int((tmp_path / "pid").read_text()), 9)


def test_two_agents_never_install_at_the_same_time(server: AgentServer, agent: Agent, tmp_path: Path) -> None:
    """An agent that is replaced leaves its installation running; the newer one does not run it again after that."""
    os.mkfifo(tmp_path / "gate")
    agent.configure(f"echo run >>{tmp_path}/runs; cat {tmp_path}/gate")
    server.answer = lambda _: _asking(1)
    agent.heartbeats.send()
    eventually((tmp_path / "runs").exists)
    newer = Agent(server.url, agent.command)
    for _ in range(3):
        newer.heartbeats.send()
    assert (tmp_path / "runs").read_text() == "run\n"
    with (tmp_path / "gate").open("w"):
        pass
    assert agent.outcome(server).HasField("success")
    error = newer.outcome(server).error.error
    assert error == "refused: an earlier agent has started generation 1: request a later one"
    assert (tmp_path / "runs").read_text() == "run\n"


# --- permission ---


def _answering(request: OSInstallationRequest) -> Answer:
    return Answer(200, HeartbeatResponse(installation_request=request))


def test_a_request_that_no_operator_signed_is_refused_and_leaves_nothing_behind(
    server: AgentServer, agent: Agent, tmp_path: Path
) -> None:
    """The endpoint and a proxy can send one. The highest generation there is must not lock out those that follow."""
    agent.configure(f"echo run >>{tmp_path}/runs")
    server.answer = lambda _: _answering(OSInstallationRequest(generation=2**63 - 1))
    agent.heartbeats.send()
    report = agent.outcome(server)
    assert (report.generation, report.error.error) == (2**63 - 1, "refused: the request is not signed")
    server.answer = lambda _: _asking(1)
    agent.heartbeats.send()
    eventually(lambda: agent.outcome(server).HasField("success"))
    assert (tmp_path / "runs").read_text() == "run\n"


def test_a_refusal_does_not_take_the_place_of_an_outcome(server: AgentServer, agent: Agent) -> None:
    """Shepherd must hear of a success, or it recovers the machine."""
    agent.configure("true")
    server.answer = lambda _: _asking(1)
    agent.heartbeats.send()
    eventually(agent.installer.report)
    server.answer = lambda _: _answering(OSInstallationRequest(generation=2))
    reports = [agent.outcome(server) for _ in range(2)]
    assert [(report.generation, report.WhichOneof("result")) for report in reports] == [(1, "success"), (2, "error")]


def test_a_refused_request_is_reported_each_time(server: AgentServer, agent: Agent) -> None:
    """The endpoint repeats it until the report is on record."""
    server.answer = lambda _: _answering(OSInstallationRequest(generation=1))
    agent.heartbeats.send()
    for _ in range(2):
        assert agent.outcome(server).HasField("error")
    server.answer = lambda _: Answer()
    agent.outcome(server)
    agent.heartbeats.send()
    assert not server.requests[-1].heartbeat.HasField("installation_report")


def test_the_machine_is_installed_once_also_by_later_agents(server: AgentServer, agent: Agent, tmp_path: Path) -> None:
    """An old request is refused, also after the agent was started again."""
    agent.configure(f"echo run >>{tmp_path}/runs")
    server.answer = lambda _: _asking(2)
    agent.heartbeats.send()
    assert agent.outcome(server).HasField("success")
    for generation in (2, 1):
        newer = Agent(server.url, agent.command)
        server.answer = lambda _, generation=generation: _asking(generation)  # type: ignore[misc]  # a lambda with a default
        newer.heartbeats.send()
        report = newer.outcome(server)
        assert report.generation == generation
        assert report.error.error == "refused: an earlier agent has started generation 2: request a later one"
    server.answer = lambda _: _asking(3)
    newer.heartbeats.send()
    eventually(lambda: newer.outcome(server).generation == 3)
    assert (tmp_path / "runs").read_text() == "run\nrun\n"


def test_without_a_record_nothing_is_installed(server: AgentServer, agent: Agent, tmp_path: Path) -> None:
    """If it cannot be written, a later agent would run the installation again."""
    agent.configure(f"touch {tmp_path}/ran")
    Path(f"{agent.command}.generation").symlink_to(tmp_path / "elsewhere")
    server.answer = lambda _: _asking(1)
    agent.heartbeats.send()
    assert "could not be run: [Errno 40]" in agent.outcome(server).error.error
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "elsewhere").exists()
