"""
The wire contract between the agent and implementations that are not ours.

``tests/data/wire`` holds messages as text and as protoc encoded them (C++, which
shares no code with the agent); a file is named after its message.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import text_format
from shepherd_core.domain.pb import agent_pb2, callback_pb2

from agent.shepherd_agent import messages
from agent.shepherd_agent.hardware import node
from agent.shepherd_agent.wire import encode
from tests.support.agents.installation_key import NOW

ROOT = Path(__file__).parents[3]
WIRE = ROOT / "tests/data/wire"
NAMES = sorted(path.stem for path in WIRE.glob("*.txt"))
AGENT, SERVER = "cloud.agent.api", "cloud.bmaas.server.api"

SOURCES = [
    f"-Ishepherd_core/domain/pb={ROOT / 'proto'}",
    "shepherd_core/domain/pb/agent.proto",
    "shepherd_core/domain/pb/callback.proto",
]


def _protoc(*arguments: str, message: bytes) -> bytes:
    command = [sys.executable, "-m", "grpc_tools.protoc", *arguments]
    return subprocess.run(command, input=message, capture_output=True, check=True).stdout


def _recorded(name: str) -> bytes:
    return (WIRE / f"{name}.bin").read_bytes()


def _text(name: str) -> bytes:
    return (WIRE / f"{name}.txt").read_bytes()


def _hardware() -> node.HardwareReport:
    """Return the report that is recorded."""
    return node.HardwareReport(
        node.Node(
            manufacturer="Example Servers",
            product="ES-2000",
            serial_number="ES0001234",
            memory_installed_bytes=1 << 40,
            memory_usable_ratio=0.984375,
            cpu=[
                node.Cpu(node.X86(6, 106, 6), 32, 64, "GenuineIntel", "Intel(R) Xeon(R) Gold 6338 CPU @ 2.00GHz"),
                node.Cpu(None, 1, 1),
            ],
            block_device=[
                node.BlockDevice(
                    vendor="SEAGATE",
                    device_model="ST12000NM0027",
                    serial_number="ZJV0ABCD",
                    wwn=bytes.fromhex("5000c500a1b2c3d4"),
                    rotational=True,
                    capacity_bytes=12000138625024,
                    logical_block_size_bytes=512,
                    physical_block_size_bytes=4096,
                    protocol=node.Protocol.SCSI,
                )
            ],
            network_interface=[
                node.NetworkInterface(
                    bytes.fromhex("020000000011"), "ice", [125_000_000, 3_125_000_000], True, 3_125_000_000
                )
            ],
            efi_support=node.EfiSupport.ENABLED,
        ),
        ["something could not be read"],
    )


def _agents_answer() -> bytes:
    init = messages.TakeoverInit.decode(_recorded(f"{AGENT}.TakeoverInit"))
    return messages.takeover_success(init, bytes(range(32)), ["a warning", "w\u00e4rning"])


def _agents_heartbeat() -> bytes:
    return messages.heartbeat_request(
        "c0ffee00-0000-4000-8000-000000000001",
        hardware=encode(_hardware()),
        installation=messages.installation_report(2**53 + 1, "the installation command ended with status 4"),
        failed_attempts=3,
        interval=240,
    )


@pytest.mark.parametrize("name", NAMES)
def test_recorded_messages_equal_the_output_of_protoc(name: str) -> None:
    """After a change of the text, record the message again with this command."""
    assert _protoc(f"--encode={name}", *SOURCES, message=_text(name)) == _recorded(name)


@pytest.mark.parametrize("name", NAMES)
def test_our_code_reads_what_protoc_wrote(name: str) -> None:
    """The functions decode with it."""
    module = agent_pb2 if name.startswith(AGENT) else callback_pb2
    message_type = getattr(module, name.rpartition(".")[2])
    expected = text_format.Parse(_text(name), message_type())
    assert message_type.FromString(_recorded(name)) == expected


def test_the_agent_reads_a_takeover_that_protoc_wrote() -> None:
    """An Initializer in another language may start it."""
    recorded = _recorded(f"{AGENT}.TakeoverInit")
    assert messages.TakeoverInit.decode(recorded) == messages.TakeoverInit(
        "c0ffee00-0000-4000-8000-000000000001",
        "agents.example.com:443",
        b"0\x82\x01\x00\x00\xff",
        recorded,
        (bytes(range(32)),),
        NOW,
    )


def test_the_agent_reads_a_request_that_protoc_wrote() -> None:
    """And passes it on as it came in."""
    response = messages.HeartbeatResponse.decode(_recorded(f"{SERVER}.HeartbeatResponse"))
    assert response.interval == 300
    request = response.installation
    assert request is not None
    assert (request.generation, request.signed, request.signature) == (2**53 + 1, b"\n\x02id", b"\0\1\2\3")
    metropolis = callback_pb2.OSInstallationRequest.FromString(request.received).metropolis
    assert metropolis.image_sha256 == bytes(range(32))


def test_the_agent_writes_what_protoc_writes() -> None:
    """Byte for byte, so that nothing hides in what decoders forgive."""
    assert _agents_answer() == _recorded(f"{AGENT}.TakeoverResponse")
    assert _agents_heartbeat() == _recorded(f"{SERVER}.HeartbeatRequest")


@pytest.mark.parametrize(
    ("name", "message"),
    [(f"{AGENT}.TakeoverResponse", _agents_answer), (f"{SERVER}.HeartbeatRequest", _agents_heartbeat)],
)
def test_protoc_reads_what_the_agent_wrote(name: str, message: object) -> None:
    """With the contract, and by its generic decoder, which knows none."""
    assert callable(message)
    assert _protoc(f"--decode={name}", *SOURCES, message=message()) == _text(name)
    raw = _protoc("--decode_raw", message=message())
    assert raw == _protoc("--decode_raw", message=_recorded(name))
    assert raw.startswith(b"1")


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


def test_a_response_that_asks_for_nothing_is_empty() -> None:
    """So are fields of a later version."""
    assert messages.HeartbeatResponse.decode(b"") == messages.HeartbeatResponse(None, 0)
    assert messages.HeartbeatResponse.decode(b"\x12\x03new\x18\x07") == messages.HeartbeatResponse(None, 0)
