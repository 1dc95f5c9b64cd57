"""The function that agents report to, as its endpoints call it, and real agents that report to it over HTTPS."""

import json
import ssl
import threading
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from shepherd_core.agent.endpoint import AgentRequest
from shepherd_core.domain.errors import ConfigError, EventInvalid
from shepherd_core.domain.pace import Pace
from shepherd_core.domain.pb.callback_pb2 import HeartbeatResponse
from shepherd_core.wiring import agent_endpoint, pace

from agent.shepherd_agent.ed25519 import PrivateKey
from agent.shepherd_agent.hardware.inventory import Inventory
from agent.shepherd_agent.installation.installer import Installer
from agent.shepherd_agent.installation.permit import Permit
from agent.shepherd_agent.reports.endpoint import Endpoint
from agent.shepherd_agent.reports.heartbeat import Heartbeats
from agent.shepherd_agent.reports.interval import Interval
from agent.shepherd_agent.reports.reporter import Reporter, Unauthorized, milliseconds
from functions.agent_api.app import lambda_handler
from simulator.environment import certificate
from simulator.environment.agent_endpoint import AgentEndpoint, function_invoker
from simulator.lambda_.service import Invocation
from tests.conftest import log_lines
from tests.support.agents.installation_key import taught
from tests.support.agents.signed_agent import SignedAgent
from tests.support.bmdb.fleet import Fleet
from tests.support.deployment import function_process

ROOT = Path(__file__).parents[3]
SAMPLE: dict[str, Any] = json.loads((ROOT / "events" / "agent_api.json").read_text())
"""As a function URL sends it."""
HTTP_API_SAMPLE: dict[str, Any] = json.loads((ROOT / "tests" / "data" / "agent_api_http_api.json").read_text())
EVERY_SAMPLE = pytest.mark.parametrize("sample", [SAMPLE, HTTP_API_SAMPLE], ids=["function-url", "http-api"])
PREFIX = SAMPLE["rawPath"].rpartition("/")[0]
HARDWARE = b"\x12\x05a fan"  # an AgentHardwareReport with one warning
YEAR = 365 * 86_400_000


@dataclass(frozen=True)
class Context:
    aws_request_id: str = "a-request"


@pytest.fixture
def _environment(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Configure the function for this test's database, in a process that has not built it yet."""
    function_process.end()
    monkeypatch.setenv("SHEPHERD_BMDB_HOST", fleet.settings.bmdb_host)
    monkeypatch.setenv("SHEPHERD_BMDB_NAME", fleet.settings.bmdb_name)
    monkeypatch.setenv("SHEPHERD_BMDB_USER", fleet.settings.bmdb_user)
    monkeypatch.setenv("SHEPHERD_BMDB_ROLES", fleet.settings.bmdb_roles or "")
    monkeypatch.setattr(pace, "current", Pace(report_seconds=0, hardware_report_seconds=0))
    yield
    function_process.end()


configured = pytest.mark.usefixtures("_environment")


def invoke(event: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(
        json.dumps(lambda_handler(json.loads(json.dumps(event)), Context()))  # type: ignore[arg-type]  # enough of it
    )
    return answer


def event_of(request: AgentRequest, sample: dict[str, Any] = SAMPLE) -> dict[str, Any]:
    return {
        **sample,
        "rawPath": request.path,
        "headers": {**sample["headers"], **request.headers},
        "body": b64encode(request.body).decode(),
    }


# --- as a function URL and an HTTP API call it ---


@configured
@EVERY_SAMPLE
@pytest.mark.parametrize("body", [{}, {"body": None}, {"body": "a text", "isBase64Encoded": False}])
def test_a_sample_request_is_not_believed(
    sample: dict[str, Any], body: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Its machine is unknown; that it is refused shows that function and BMDB are well, with any form of body."""
    event = {name: value for name, value in {**sample, **body}.items() if value is not None}
    answer = invoke(event)
    assert answer["statusCode"] == 401
    assert b64decode(answer["body"]) == b"not authorized\n"
    assert int(answer["headers"]["shepherd-time"]) != sample["requestContext"]["timeEpoch"]
    (line,) = log_lines(capsys)
    assert line["address"] == sample["requestContext"]["http"]["sourceIp"] == "192.0.2.13"
    assert (line["loop"], line["request_id"], line["why"]) == ("agent_api", "a-request", "it has no agent")
    assert "provider" not in line


@configured
@EVERY_SAMPLE
def test_a_signed_request_is_taken(fleet: Fleet, sample: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHEPHERD_PATH_PREFIX", PREFIX)
    agent = SignedAgent(fleet)
    fleet.request_installation(agent.machine_id, 1)
    answer = invoke(event_of(agent.request(path=sample["rawPath"]), sample))
    assert answer["statusCode"] == 200
    assert answer["headers"]["content-type"] == "application/x-protobuf"
    assert answer["isBase64Encoded"] is True
    told = HeartbeatResponse.FromString(b64decode(answer["body"]))
    assert told.installation_request.generation == 1
    assert fleet.facts(agent.machine_id) == {"agent_started", "agent_heartbeat"}


@configured
@pytest.mark.parametrize("path", ["/heartbeat", "/other/heartbeat", "//heartbeat", f"{PREFIX}/x/heartbeat", "/", ""])
def test_a_path_of_another_deployment_is_refused_unread(
    path: str, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function URL starts the function for every path; who only found the host learns nothing."""
    monkeypatch.setenv("SHEPHERD_PATH_PREFIX", PREFIX)
    monkeypatch.setenv("SHEPHERD_BMDB_HOST", "/nowhere")
    answer = invoke(event_of(SignedAgent(fleet).request(path=path)))
    assert (answer["statusCode"], b64decode(answer["body"])) == (404, b"not found\n")


@configured
@pytest.mark.parametrize("change", [{"requestContext": {}}, {"body": "\u00e4"}, {"rawPath": None}, {"headers": None}])
def test_an_event_that_is_no_request_fails_the_invocation(
    change: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Somebody invoked the function by hand, or the API speaks another version of the payload format."""
    event = {name: value for name, value in {**SAMPLE, **change}.items() if value is not None}
    with pytest.raises(EventInvalid, match=r"payload version 2\.0"):
        invoke(event)
    (line,) = log_lines(capsys)
    assert (line["level"], line["loop"], line["request_id"]) == ("ERROR", "agent_api", "a-request")


@configured
def test_faults_of_the_settings_fail_the_invocation_until_corrected(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that cannot be right must not tell agents that they are wrong."""
    monkeypatch.setenv("SHEPHERD_HEARTBEAT_INTERVAL_SECONDS", "many")
    monkeypatch.setenv("SHEPHERD_BMDB_PORT", "0")
    with pytest.raises(ConfigError) as caught:
        invoke(SAMPLE)
    assert {fault.split()[0] for fault in caught.value.faults} == {
        "SHEPHERD_HEARTBEAT_INTERVAL_SECONDS",
        "SHEPHERD_BMDB_PORT",
    }
    monkeypatch.delenv("SHEPHERD_HEARTBEAT_INTERVAL_SECONDS")
    monkeypatch.delenv("SHEPHERD_BMDB_PORT")
    assert invoke(SAMPLE)["statusCode"] == 401


@configured
@pytest.mark.parametrize(("interval", "least"), [("240", 5), ("6", 3)])
def test_an_agent_may_report_twice_in_an_interval(monkeypatch: pytest.MonkeyPatch, interval: str, least: float) -> None:
    monkeypatch.setattr(pace, "current", Pace())
    monkeypatch.setenv("SHEPHERD_HEARTBEAT_INTERVAL_SECONDS", interval)
    assert agent_endpoint.build()._limits.report_seconds == least


@configured
def test_a_warm_function_uses_the_connection_that_is_open(fleet: Fleet) -> None:
    agent = SignedAgent(fleet)
    fleet.connection.close()
    for _ in range(3):
        assert invoke(event_of(agent.request()))["statusCode"] == 200
    connections = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'shepherd'"
    )
    assert fleet.sql(connections) == [[1]]


# --- real agents ---


class InThisProcess:
    """Runs the function as Lambda does in one environment: one request at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def invoke(self, name: str, event: dict[str, Any]) -> Invocation:
        with self._lock:
            return Invocation(name, 0.0, result=invoke(event))


class RealAgent:
    """The agent's own code, without its process: its heartbeats are sent by hand."""

    def __init__(self, fleet: Fleet, url: str, ca: bytes, command: Path, now: Callable[[], int] = milliseconds) -> None:
        key = PrivateKey(bytes(range(32)))
        self.machine_id: UUID = fleet.started_machine()
        fleet.change(f"UPDATE machine_agent_started SET agent_public_key = '\\x{key.public.hex()}'")
        permit = Permit(taught(str(self.machine_id)), f"{command}.generation")
        self.installer = Installer(str(command), 20, permit)
        reporter = Reporter(Endpoint(url, ca), key, str(self.machine_id), now)
        interval = Interval({}, f"{command}.interval")
        self.heartbeats = Heartbeats(reporter, Inventory(lambda: HARDWARE), self.installer, interval)


@pytest.fixture
def served(_environment: None, tmp_path: Path) -> Iterator[tuple[str, bytes]]:
    tls, ca = certificate.make("127.0.0.1", tmp_path)
    service = InThisProcess()
    with AgentEndpoint(function_invoker(lambda: service, "agent_api"), tls=tls) as front:  # type: ignore[arg-type, return-value]  # all of it that is used
        yield front.url, ssl.PEM_cert_to_DER_cert(ca.read_text())


@pytest.mark.parametrize("wrong", [0, -40 * YEAR, 20 * YEAR], ids=["right", "behind", "ahead"])
def test_an_agent_reports_over_https_whatever_its_clock_says(
    fleet: Fleet, served: tuple[str, bytes], tmp_path: Path, wrong: int
) -> None:
    """All but the process is real. A refusal tells it the time of the database, and it is heard the second time."""
    agent = RealAgent(fleet, *served, tmp_path / "agent.install", lambda: milliseconds() + wrong)
    if wrong:
        with pytest.raises(Unauthorized):
            agent.heartbeats.send()
    for _ in range(2):
        agent.heartbeats.send()
    assert fleet.facts(agent.machine_id) == {"agent_started", "agent_heartbeat"}
    assert fleet.sql("SELECT hardware_report_raw FROM machine_hardware_report") == [[HARDWARE]]
