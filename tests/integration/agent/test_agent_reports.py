import fcntl
import gc
import os
import re
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
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
from agent.shepherd_agent.reports.reporter import Reporter, Unauthorized
from tests.support.agents.agent_server import AgentServer, Answer
from tests.support.agents.installation_key import signed_request, taught
from tests.support.waiting import eventually

KEY = PrivateKey(b"k" * 32)
YEAR = 365 * 86_400_000
HARDWARE = b"\x12\x05a fan"  # an AgentHardwareReport with one warning
SECONDS = 20.0


@pytest.fixture
def server() -> Iterator[AgentServer]:
    with AgentServer() as server:
        yield server


class Agent:
    """An agent without its process: its heartbeats are sent by hand."""

    def __init__(self, server: AgentServer, command: Path, limit: float = SECONDS) -> None:
        self.server = server
        self.command = command
        self.installer = Installer(str(command), limit, Permit(taught(), f"{command}.generation"))
        self.heartbeats = Heartbeats(
            Reporter(Endpoint(server.url, b""), KEY, "id"),
            Inventory(lambda: HARDWARE),
            self.installer,
            Interval({}, f"{command}.interval"),
        )

    def configure(self, script: str) -> None:
        self.command.write_text(script if script.startswith("#!") else f"#!/bin/sh\n{script}\n")
        self.command.chmod(0o755)

    def ask(self, generation: int = 1) -> None:
        self.server.answer = lambda _: _asking(generation)
        self.heartbeats.send()

    def install(self, generation: int = 1) -> OSInstallationReport:
        self.ask(generation)
        return self.outcome()

    def outcome(self) -> OSInstallationReport:
        def reported() -> bool:
            self.heartbeats.send()
            return self.reports()

        eventually(reported)
        return self.server.requests[-1].heartbeat.installation_report

    def reports(self) -> bool:
        return self.server.requests[-1].heartbeat.HasField("installation_report")


@pytest.fixture
def agent(server: AgentServer, tmp_path: Path) -> Agent:
    return Agent(server, tmp_path / "agent.install")


@pytest.fixture
def runs(agent: Agent, tmp_path: Path) -> Path:
    agent.configure(f"echo run >>{tmp_path}/runs")
    return tmp_path / "runs"


def _asking(generation: int, parameters: bytes = b"", *, signed: bool = True) -> Answer:
    installation = MetropolisInstallation(image_url="https://x/y", node_parameters=parameters)
    request = OSInstallationRequest(generation=generation, metropolis=installation)
    return Answer(200, HeartbeatResponse(installation_request=signed_request(request) if signed else request))


def test_every_request_is_signed(server: AgentServer) -> None:
    reporter = Reporter(Endpoint(f"{server.url}/prod/", b""), KEY, "id")
    for body in (b"", b"one\n", bytes(range(256)) * 100):
        reporter.send("heartbeat", body)
        request = server.requests[-1]
        assert (request.path, request.body) == ("/prod/heartbeat", body)
        request.verify(KEY.public)
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


def test_a_refusal_tells_a_wrong_clock_the_time(server: AgentServer) -> None:
    """The next request is signed for it, wherever the machine's own clock stands."""
    told = 50 * YEAR
    server.answer = lambda _: Answer(401, time=str(told))
    for wrong in (-40 * YEAR, 20 * YEAR):
        reporter = Reporter(Endpoint(server.url, b""), KEY, "id", lambda wrong=wrong: told + wrong)  # type: ignore[misc]
        for _ in range(2):
            with pytest.raises(Unauthorized):
                reporter.send("heartbeat", b"")
        assert int(server.requests[-1].time) == told


def _told(seconds: int) -> Answer:
    return Answer(message=HeartbeatResponse(report_interval_seconds=seconds))


@pytest.mark.parametrize(
    ("answers", "field", "sent"),
    [
        # The hardware is sent until it arrives, or is refused; with 429 the next heartbeat goes without it.
        ([Answer(), Answer(), Answer()], "hardware", [True, False, False]),
        ([Answer(status) for status in (503, 401, 404, 302, 500, 200, 200)], "hardware", [True] * 6 + [False]),
        ([Answer(429), Answer(), Answer(429), Answer(), Answer()], "hardware", [True, False, True, False, True]),
        ([Answer(413), Answer()], "hardware", [True, False]),
        ([Answer(400), Answer()], "hardware", [True, False]),
        # A captive portal answers 200 to everything.
        ([Answer(200, b"<html>"), Answer()], "hardware", [True, True]),
        # Attempts that the endpoint could not record count too; wrong signatures and reports are no losses.
        ([Answer(status) for status in (503, 429, 500, 401, 413, 200, 200)], "failed_attempts", [0, 1, 2, 3, 3, 3, 0]),
        # The agent API refuses what had arrived already, whose answer was lost; a 429 of AWS has no such time.
        (
            [Answer(), Answer(503), Answer(429, time="1"), Answer(429, time="1"), Answer(429), Answer()],
            "failed_attempts",
            [0, 0, 1, 0, 0, 1],
        ),
        # The agent goes by the interval of the answer and says so; an answer without one changes nothing.
        ([_told(240), _told(240), _told(0), _told(3600)], "report_interval_seconds", [60, 240, 240, 240]),
    ],
)
def test_what_a_heartbeat_says_follows_from_the_answers_before(
    server: AgentServer, agent: Agent, answers: list[Answer], field: str, sent: list[object]
) -> None:
    """No report may keep the heartbeats out, or a machine is rebooted without end; none may be lost in an outage."""
    remaining = iter(answers)
    server.answer = lambda _: next(remaining)
    changed, answered = [], []
    for _ in answers:
        try:
            changed.append(agent.heartbeats.send())
        except NotDelivered as error:
            answered.append(error.answered)
    assert all(answered)  # it is not sent again sooner than usual
    heartbeats = [request.heartbeat for request in server.requests]
    assert {heartbeat.machine_id for heartbeat in heartbeats} == {"id"}
    if field == "hardware":
        assert [list(heartbeat.hardware_report.warning) == ["a fan"] for heartbeat in heartbeats] == sent
        assert [heartbeat.HasField("hardware_report") for heartbeat in heartbeats] == sent
    else:
        assert [getattr(heartbeat, field) for heartbeat in heartbeats] == sent
    if field == "report_interval_seconds":
        assert changed == [True, False, False, True]
        assert agent.heartbeats.interval.seconds == 3600


def test_an_outage_of_days_leaves_nothing_behind(tmp_path: Path) -> None:
    with AgentServer() as server:
        agent = Agent(server, tmp_path / "agent.install")

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


def test_a_lookup_that_never_ends_is_left_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
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
    parameters = b"secret" * 50_000
    server.answer = lambda request: (
        Answer() if request.heartbeat.HasField("installation_report") else _asking(7, parameters)
    )
    agent.configure(
        f'cat >{tmp_path}/request; echo "$SHEPHERD_AGENT_INSTALL_GENERATION" >>{tmp_path}/runs; echo installed'
    )
    report = agent.outcome()
    assert (report.generation, report.WhichOneof("result")) == (7, "success")
    request = OSInstallationRequest.FromString((tmp_path / "request").read_bytes())
    metropolis = MetropolisInstallation(image_url="https://x/y", node_parameters=parameters)
    assert request == OSInstallationRequest(generation=7, metropolis=metropolis)
    server.answer = lambda _: Answer()
    agent.heartbeats.send()
    assert not agent.reports()
    assert (tmp_path / "runs").read_text() == "7\n"


@pytest.mark.parametrize(("status", "again"), [(500, True), (400, False)])
def test_an_outcome_is_sent_until_it_is_accepted_or_refused(
    server: AgentServer, agent: Agent, status: int, again: bool
) -> None:
    """An installation may end while the endpoint is away; and a request may have been withdrawn meanwhile."""
    agent.configure("exit 3")
    agent.heartbeats.send()
    agent.ask()
    eventually(agent.installer.report)
    server.answer = lambda request: Answer(status if request.heartbeat.HasField("installation_report") else 200)
    for expected in (True, again):
        with suppress(NotDelivered):
            agent.heartbeats.send()
        assert agent.reports() == expected
    if again:
        server.answer = lambda _: Answer()
        assert agent.outcome().error.error == "the installation command ended with status 3"


def test_a_generation_that_was_done_is_only_reported_again(agent: Agent, runs: Path) -> None:
    """The endpoint asks again when it lost the report; an older wish it has given up."""
    agent.ask(5)
    for _ in range(3):
        assert agent.outcome().generation == 5
    for _ in range(3):
        agent.ask(4)
    assert not agent.reports()
    assert agent.install(6).generation == 6
    assert runs.read_text() == "run\nrun\n"


def test_without_a_command_the_reason_is_reported(agent: Agent) -> None:
    """A file that is not executable is none; as soon as there is one the next wish is granted."""
    agent.command.write_text("#!/bin/sh\n")
    error = agent.install().error.error
    assert error.startswith("no installation command is configured")
    assert str(agent.command) in error
    agent.configure("true")
    agent.ask(2)
    eventually(lambda: agent.outcome().generation == 2)


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("echo no disk; echo none at all >&2; exit 4", "ended with status 4: no disk\nnone at all"),
        ("kill -9 $$", "was killed by signal 9"),
        ("exec /nowhere", "ended with status 127: .*"),
        ("printf '\\377\\376'; exit 1", "ended with status 1: \ufffd\ufffd"),
        # Programs that copy a disk print without end, and the reason comes last.
        ("head -c 3000000 /dev/zero | tr '\\0' x; echo; echo end; exit 1", "ended with status 1: x{4000,5000}\nend"),
        ("#!/nowhere", "could not be run: .*"),
    ],
    ids=["status", "signal", "not found", "not text", "long", "no interpreter"],
)
def test_a_failed_installation_reports_its_output(agent: Agent, script: str, error: str) -> None:
    agent.configure(script)
    assert re.fullmatch(f"the installation command {error}", agent.install().error.error)


@pytest.mark.parametrize(("place", "mode"), [("below/agent.install", 0o775), ("below", 0o1777)])
def test_a_command_that_others_can_change_is_not_run(
    server: AgentServer, tmp_path: Path, place: str, mode: int
) -> None:
    """It runs as root: anyone who can write it or put another file in its place would be root."""
    (tmp_path / "below").mkdir(mode=0o755)
    agent = Agent(server, tmp_path / "below/agent.install")
    agent.configure(f"touch {tmp_path}/ran")
    changed = tmp_path / place
    changed.chmod(mode)
    error = agent.install().error.error
    assert error.endswith(f"not safe to run: {changed} is writable by others (mode {mode:04o})")
    assert not (tmp_path / "ran").exists()
    changed.chmod(0o755)
    assert agent.install(2).HasField("success")


@pytest.mark.parametrize("linked", ["agent.install", "."])
def test_a_command_that_a_link_leads_to_is_not_run(server: AgentServer, tmp_path: Path, linked: str) -> None:
    """Anyone who can turn the link, or one that it goes over, decides what runs."""
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    Agent(server, real / "agent.install").configure("")
    if linked != ".":
        link.mkdir()
    (link / linked).symlink_to(real / linked)
    error = Agent(server, link / "agent.install").install().error.error
    assert f"reached by a link, and is {real / 'agent.install'}" in error


@pytest.mark.parametrize("script", ["sleep 1000", "yes", "exec >&- 2>&-; sleep 1000"], ids=["silent", "loud", "closed"])
def test_an_installation_that_takes_too_long_is_killed(server: AgentServer, tmp_path: Path, script: str) -> None:
    agent = Agent(server, tmp_path / "agent.install", limit=0.3)
    agent.configure(f"echo began; {script}")
    assert "took longer than 0.3 s: " in agent.install().error.error
    with agent.command.open() as file:
        # Every process of the installation holds this lock.
        eventually(lambda: _locks(file.fileno()))


def _locks(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def test_processes_left_by_an_installation_do_not_delay_its_outcome(agent: Agent, tmp_path: Path) -> None:
    """It may leave a process that starts the new system in a moment; the time limit is far off."""
    agent.configure(f"sleep 1000 & echo $! >{tmp_path}/pid; echo began")
    try:
        assert agent.install().HasField("success")
    finally:
        os.kill(int((tmp_path / "pid").read_text()), 9)


def test_two_agents_never_install_at_the_same_time(server: AgentServer, agent: Agent, tmp_path: Path) -> None:
    """An agent that is replaced leaves its installation running, for an hour; without heartbeats it is rebooted."""
    os.mkfifo(tmp_path / "gate")
    agent.configure(f"echo run >>{tmp_path}/runs; cat {tmp_path}/gate")
    agent.ask()
    eventually((tmp_path / "runs").exists)
    newer = Agent(server, agent.command)
    for each in (agent, newer) * 3:
        each.heartbeats.send()
        assert not agent.reports()
    assert (tmp_path / "runs").read_text() == "run\n"
    with (tmp_path / "gate").open("w"):
        pass
    assert agent.outcome().HasField("success")
    assert newer.outcome().error.error == "refused: an earlier agent has started generation 1: request a later one"
    assert (tmp_path / "runs").read_text() == "run\n"


def test_a_request_that_no_operator_signed_leaves_nothing_behind(server: AgentServer, agent: Agent, runs: Path) -> None:
    """The endpoint and a proxy can send one. The highest generation there is must not lock out those that follow."""
    server.answer = lambda _: _asking(2**63 - 1, signed=False)
    report = agent.outcome()
    assert (report.generation, report.error.error) == (2**63 - 1, "refused: the request is not signed")
    agent.ask()
    eventually(lambda: agent.outcome().HasField("success"))
    assert runs.read_text() == "run\n"


def test_a_refusal_does_not_take_the_place_of_an_outcome(server: AgentServer, agent: Agent) -> None:
    """Shepherd must hear of a success, or it recovers the machine. A refusal is reported until that is on record."""
    agent.configure("true")
    agent.ask()
    eventually(agent.installer.report)
    server.answer = lambda _: _asking(2, signed=False)
    reports = [agent.outcome() for _ in range(3)]
    outcomes = [(report.generation, report.WhichOneof("result")) for report in reports]
    assert outcomes == [(1, "success"), (2, "error"), (2, "error")]
    server.answer = lambda _: Answer()
    agent.outcome()
    agent.heartbeats.send()
    assert not agent.reports()


def test_without_a_record_nothing_is_installed(agent: Agent, runs: Path, tmp_path: Path) -> None:
    Path(f"{agent.command}.generation").symlink_to(tmp_path / "elsewhere")
    assert "could not be run: [Errno 40]" in agent.install().error.error
    assert not runs.exists()
    assert not (tmp_path / "elsewhere").exists()
