"""What the agents' endpoint refuses by itself: none of it reaches the BMDB, or needs to know who sent it."""

from __future__ import annotations

import json
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from shepherd_core.agent.endpoint import AgentApi, AgentRequest
from shepherd_core.domain.pb.agent_pb2 import CPU, BlockDevice, Node
from shepherd_core.domain.pb.callback_pb2 import AgentHardwareReport, HeartbeatRequest, OSInstallationReport

if TYPE_CHECKING:
    from shepherd_core.agent.endpoint import AgentResponse

MACHINE = "c0ffee00-0000-4000-8000-000000000001"
HEARTBEAT = HeartbeatRequest(machine_id=MACHINE).SerializeToString()
LIMIT = 1024
WIRE = Path(__file__).parents[2] / "data" / "wire"


class NoConnection:
    """A connection that must not be used."""


def answer(body: bytes = HEARTBEAT, method: str = "POST", path: str = "/heartbeat") -> AgentResponse:
    """Return the answer to an unsigned request."""
    api = AgentApi(NoConnection(), max_body_bytes=LIMIT, stale_seconds=300)  # type: ignore[arg-type]  # never used
    return api.handle(AgentRequest(method, path, {}, body, 1_700_000_000_000))


@pytest.mark.parametrize("path", ["/", "/heartbeats", "/heartbeat/", "/heartbeat/x", "heartbeat", "/Heartbeat", ""])
def test_there_is_one_path(path: str) -> None:
    """Whatever else is asked for gets no further; what stands before it is the deployment's."""
    assert answer(path=path).status == HTTPStatus.NOT_FOUND


@pytest.mark.parametrize("method", ["GET", "PUT", "HEAD", "post"])
def test_there_is_one_method(method: str) -> None:
    """The method is not in the request's hands: its signature is over POST."""
    refused = answer(method=method, path="/prod/heartbeat")
    assert (refused.status, refused.headers["allow"]) == (HTTPStatus.METHOD_NOT_ALLOWED, "POST")


def test_a_body_over_the_limit_is_not_looked_at() -> None:
    """The sender is not verified yet, and decoding costs time."""
    refused = answer(b"x" * (LIMIT + 1))
    assert refused.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    assert str(LIMIT) in refused.body.decode()
    assert answer(b"x" * LIMIT).status == HTTPStatus.BAD_REQUEST


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "the machine_id is not a UUID"),
        (b"\xff", "the body is not a HeartbeatRequest"),
        (b"<html>", "the body is not a HeartbeatRequest"),
        (HEARTBEAT[:-1], "the body is not a HeartbeatRequest"),
        (b"\x0a\x02\xff\xfe", "the body is not a HeartbeatRequest"),
        (HeartbeatRequest(machine_id="7").SerializeToString(), "the machine_id is not a UUID"),
        (HeartbeatRequest(machine_id=MACHINE + "0").SerializeToString(), "the machine_id is not a UUID"),
    ],
    ids=["empty", "no message", "a page", "cut off", "no text", "no UUID", "too long"],
)
def test_an_invalid_heartbeat_is_refused_as_such(body: bytes, reason: str) -> None:
    """An agent with another version of the protocol must be noticed, and does not report that itself."""
    refused = answer(body)
    assert (refused.status, refused.body.decode()) == (HTTPStatus.BAD_REQUEST, f"{reason}\n")


@pytest.mark.parametrize(
    "message",
    [
        HeartbeatRequest(installation_report=OSInstallationReport(generation=1)),
        HeartbeatRequest(hardware_report=AgentHardwareReport(report=Node(memory_installed_bytes=-1))),
        HeartbeatRequest(hardware_report=AgentHardwareReport(report=Node(cpu=[CPU(hardware_threads=-1)]))),
        HeartbeatRequest(
            hardware_report=AgentHardwareReport(report=Node(block_device=[BlockDevice(capacity_bytes=2**63 - 1)] * 2))
        ),
    ],
    ids=["no result", "negative memory", "negative threads", "more than there is"],
)
def test_a_report_that_cannot_be_is_refused(message: HeartbeatRequest) -> None:
    """The agent then leaves the report out; after an outage it would repeat it without end."""
    message.machine_id = MACHINE
    assert answer(message.SerializeToString()).status == HTTPStatus.BAD_REQUEST


def test_every_refusal_has_the_time_in_a_line_of_text() -> None:
    """People look at them with curl; agents set their clocks by them."""
    for refused in (answer(path="/"), answer(method="GET"), answer(b"x" * 2000), answer(b"\xff")):
        assert refused.headers["shepherd-time"] == "1700000000000"
        assert refused.headers["content-type"] == "text/plain; charset=utf-8"
        assert refused.body.decode().count("\n") == 1
        assert len(refused.body) < 100


def test_a_refusal_is_one_short_line_in_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    """The sender decides how many there are, and they may hold secrets or attack a reader."""
    body = (WIRE / "cloud.bmaas.server.api.HeartbeatRequest.bin").read_bytes()
    marker = b"ES0001234"
    assert marker in body
    answer(body[:-1])
    answer(HeartbeatRequest(machine_id="x" * 900).SerializeToString())
    answer(HeartbeatRequest(machine_id=MACHINE, installation_report=OSInstallationReport()).SerializeToString())
    output = capsys.readouterr().out
    lines = [json.loads(line) for line in output.splitlines()]
    assert [(line["level"], line["status"], line["machine_id"]) for line in lines] == [
        ("WARNING", 400, None),
        ("WARNING", 400, None),
        ("WARNING", 400, MACHINE),
    ]
    assert lines[2]["why"] == "the installation report has no result"
    assert marker.decode() not in output
    assert "xxx" not in output
    assert max(map(len, output.splitlines())) < 400
