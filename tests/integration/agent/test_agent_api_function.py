import json
from base64 import b64decode, b64encode
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from shepherd_core.agent.endpoint import AgentRequest
from shepherd_core.domain.errors import ConfigError
from shepherd_core.domain.pace import Pace
from shepherd_core.domain.pb.callback_pb2 import HeartbeatResponse
from shepherd_core.wiring import agent_endpoint, pace

from functions.agent_api.app import lambda_handler
from tests.conftest import log_lines
from tests.support.agents.signed_agent import SignedAgent
from tests.support.bmdb.fleet import Fleet
from tests.support.deployment import function_process

ROOT = Path(__file__).parents[3]
SAMPLE: dict[str, Any] = json.loads((ROOT / "events" / "agent_api.json").read_text())
"""As a function URL sends it."""
HTTP_API_SAMPLE: dict[str, Any] = json.loads((ROOT / "tests" / "data" / "agent_api_http_api.json").read_text())
EVERY_SAMPLE = pytest.mark.parametrize("sample", [SAMPLE, HTTP_API_SAMPLE], ids=["function-url", "http-api"])
PREFIX = SAMPLE["rawPath"].rpartition("/")[0]


@pytest.fixture(autouse=True)
def _environment(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Configure the function for this test's database, in a process that has not built it yet."""
    function_process.end()
    for name, value in fleet.variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(pace, "current", Pace(report_seconds=0, hardware_report_seconds=0))
    yield
    function_process.end()


def invoke(event: dict[str, Any]) -> dict[str, Any]:
    context: Any = SimpleNamespace(aws_request_id="a-request")
    answer: dict[str, Any] = json.loads(json.dumps(lambda_handler(json.loads(json.dumps(event)), context)))
    return answer


def event_of(request: AgentRequest, sample: dict[str, Any] = SAMPLE) -> dict[str, Any]:
    return {
        **sample,
        "rawPath": request.path,
        "headers": {**sample["headers"], **request.headers},
        "body": b64encode(request.body).decode(),
    }


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


@EVERY_SAMPLE
def test_a_signed_request_is_taken(fleet: Fleet, sample: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHEPHERD_PATH_PREFIX", PREFIX)
    agent = SignedAgent(fleet)
    fleet.request_installation(agent.machine_id, 1)
    answer = invoke(event_of(agent.request(path=sample["rawPath"]), sample))
    assert answer["statusCode"] == 200
    assert answer["headers"]["content-type"] == "application/x-protobuf"
    assert answer["isBase64Encoded"] is True
    assert HeartbeatResponse.FromString(b64decode(answer["body"])).installation_request.generation == 1
    assert fleet.facts(agent.machine_id) == {"agent_started", "agent_heartbeat"}


@pytest.mark.parametrize("path", ["/heartbeat", "/other/heartbeat", "//heartbeat", f"{PREFIX}/x/heartbeat", "/", ""])
def test_a_path_of_another_deployment_is_refused_unread(
    path: str, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function URL starts the function for every path; who only found the host learns nothing."""
    monkeypatch.setenv("SHEPHERD_PATH_PREFIX", PREFIX)
    monkeypatch.setenv("SHEPHERD_BMDB_HOST", "/nowhere")
    answer = invoke(event_of(SignedAgent(fleet).request(path=path)))
    assert (answer["statusCode"], b64decode(answer["body"])) == (404, b"not found\n")


def test_faults_of_the_settings_fail_the_invocation_until_corrected(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that cannot be right must not tell agents that they are wrong."""
    wrong = {"SHEPHERD_HEARTBEAT_INTERVAL_SECONDS": "many", "SHEPHERD_BMDB_PORT": "0"}
    for name, value in wrong.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as caught:
        invoke(SAMPLE)
    assert {fault.split()[0] for fault in caught.value.faults} == wrong.keys()
    for name in wrong:
        monkeypatch.delenv(name)
    assert invoke(SAMPLE)["statusCode"] == 401


@pytest.mark.parametrize(("interval", "least"), [("240", 5), ("6", 3)])
def test_an_agent_may_report_twice_in_an_interval(monkeypatch: pytest.MonkeyPatch, interval: str, least: float) -> None:
    monkeypatch.setattr(pace, "current", Pace())
    monkeypatch.setenv("SHEPHERD_HEARTBEAT_INTERVAL_SECONDS", interval)
    assert agent_endpoint.build()._limits.report_seconds == least


def test_a_warm_function_uses_the_connection_that_is_open(fleet: Fleet) -> None:
    agent = SignedAgent(fleet)
    fleet.connection.close()
    for _ in range(3):
        assert invoke(event_of(agent.request()))["statusCode"] == 200
    connections = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'shepherd'"
    )
    assert fleet.sql(connections) == [[1]]
