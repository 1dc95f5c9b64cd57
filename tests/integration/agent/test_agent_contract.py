"""
The wire contract with implementations that are not ours; that no field moves is in tests/data/stable.txt.

``tests/data/wire`` holds messages as text and as protoc encoded them (C++, which
shares no code with the agent); a file is named after its message.
"""

import importlib.resources
import subprocess
import sys
from pathlib import Path

import pytest
from shepherd_core.domain import pb
from shepherd_core.domain.pb import agent_pb2, callback_pb2

from agent.shepherd_agent import messages
from agent.shepherd_agent.hardware import node
from agent.shepherd_agent.wire import encode

ROOT = Path(__file__).parents[3]
WIRE = ROOT / "tests/data/wire"
NAMES = sorted(path.stem for path in WIRE.glob("*.txt"))
AGENT, SERVER = "cloud.agent.api", "cloud.bmaas.server.api"

SOURCES = [
    f"-Ishepherd_core/domain/pb={ROOT / 'proto'}",
    "shepherd_core/domain/pb/agent.proto",
    "shepherd_core/domain/pb/callback.proto",
]


def _recorded(name: str) -> bytes:
    return (WIRE / f"{name}.bin").read_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_recorded_messages_equal_the_output_of_protoc(name: str) -> None:
    """After a change of the text, record the message again with this command."""
    command = [sys.executable, "-m", "grpc_tools.protoc", f"--encode={name}", *SOURCES]
    text = (WIRE / f"{name}.txt").read_bytes()
    assert subprocess.run(command, input=text, capture_output=True, check=True).stdout == _recorded(name)


def test_the_agent_reads_a_request_that_protoc_wrote() -> None:
    response = messages.HeartbeatResponse.decode(_recorded(f"{SERVER}.HeartbeatResponse"))
    assert response.interval == 300
    request = response.installation
    assert request is not None
    assert (request.generation, request.signed, request.signature) == (2**53 + 1, b"\n\x02id", b"\0\1\2\3")
    metropolis = callback_pb2.OSInstallationRequest.FromString(request.received).metropolis
    assert metropolis.image_sha256 == bytes(range(32))


def test_the_agent_writes_what_protoc_writes() -> None:
    init = messages.TakeoverInit.decode(_recorded(f"{AGENT}.TakeoverInit"))
    answer = messages.takeover_success(init, bytes(range(32)), ["a warning", "w\u00e4rning"])
    assert answer == _recorded(f"{AGENT}.TakeoverResponse")
    recorded = callback_pb2.HeartbeatRequest.FromString(_recorded(f"{SERVER}.HeartbeatRequest"))
    heartbeat = messages.heartbeat_request(
        recorded.machine_id,
        hardware=recorded.hardware_report.SerializeToString(),
        installation=messages.installation_report(2**53 + 1, "the installation command ended with status 4"),
        failed_attempts=3,
        interval=240,
    )
    assert heartbeat == _recorded(f"{SERVER}.HeartbeatRequest")


def test_numbers_of_all_sizes_cross_the_wire() -> None:
    """A generation is an int64, and negative ones are sent in ten bytes."""
    for generation in (0, 1, 127, 128, 2**31, 2**63 - 1, -1, -(2**63)):
        report = messages.installation_report(generation, None)
        assert callback_pb2.OSInstallationReport.FromString(report).generation == generation
        asked = callback_pb2.OSInstallationRequest(generation=generation)
        asked.metropolis.SetInParent()
        response = callback_pb2.HeartbeatResponse(installation_request=asked).SerializeToString()
        request = messages.HeartbeatResponse.decode(response).installation
        assert request is not None
        assert request.generation == generation
    speeds = [0, 125_000_000, 2**63 - 1]
    theirs = agent_pb2.NetworkInterface(supported_speed_bytes=speeds)
    assert encode(node.NetworkInterface(supported_speed_bytes=speeds)) == theirs.SerializeToString()


def test_a_response_that_asks_for_nothing_is_empty() -> None:
    assert messages.HeartbeatResponse.decode(b"") == messages.HeartbeatResponse(None, 0)
    assert messages.HeartbeatResponse.decode(b"\x12\x03new\x18\x07") == messages.HeartbeatResponse(None, 0)


def test_node_parameters_are_sent_even_if_they_are_empty() -> None:
    """To an agent of Metropolis they are a message, which it misses otherwise."""
    assert callback_pb2.MetropolisInstallation(node_parameters=b"").SerializeToString() == b"\x12\x00"


def test_every_source_is_generated_and_nothing_else() -> None:
    sources = {file.stem for file in (ROOT / "proto").iterdir()}
    assert {f"shepherd_core/domain/pb/{name}.proto" for name in sources} == set(SOURCES[1:])
    generated = {f"{name}_pb2{suffix}" for name in sources for suffix in (".py", ".pyi")}
    present = {entry.name for entry in importlib.resources.files(pb).iterdir()}
    assert present - {"__pycache__"} == generated | {"__init__.py"}
