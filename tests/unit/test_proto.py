"""The wire contract with the agents, which run on machines that were built from it long ago."""

from __future__ import annotations

import importlib.resources
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import shepherd_core.domain.pb
from shepherd_core.domain.pb import agent_pb2, callback_pb2

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor

ROOT = Path(__file__).parents[2]
FILES = ("agent", "callback")

# Written down by hand from the contract: message, then number, type and name of each field.
CONTRACT = {
    "cloud.agent.api.TakeoverInit": "1 string machine_id, 2 string bmaas_endpoint, 3 bytes ca_certificate",
    "cloud.agent.api.TakeoverSuccess": "1 TakeoverInit init_message, 2 bytes key, 3 repeated string warning",
    "cloud.agent.api.TakeoverError": "1 string message",
    "cloud.agent.api.TakeoverResponse": "1 result: TakeoverSuccess success, 2 result: TakeoverError error",
    "cloud.agent.api.Node": (
        "1 string manufacturer, 2 string product, 3 string serial_number, 8 int64 memory_installed_bytes, "
        "9 float memory_usable_ratio, 10 repeated CPU cpu, 11 repeated BlockDevice block_device, "
        "12 repeated NetworkInterface network_interface, 13 EFISupport efi_support"
    ),
    "cloud.agent.api.CPU": (
        "1 architecture: X86_64 x86_64, 8 int32 cores, 9 int32 hardware_threads, 10 string vendor, 11 string model"
    ),
    "cloud.agent.api.CPU.X86_64": "1 int32 family, 2 int32 model, 3 int32 stepping",
    "cloud.agent.api.BlockDevice": (
        "1 string vendor, 2 string device_model, 3 string serial_number, 4 bytes wwn, 5 bool rotational, "
        "6 int64 capacity_bytes, 7 int32 logical_block_size_bytes, 8 int32 physical_block_size_bytes, "
        "9 Protocol protocol, 10 bool critical_warning, 11 optional int64 media_errors, "
        "12 optional float available_spare_ratio, 13 optional float usage_ratio"
    ),
    "cloud.agent.api.NetworkInterface": (
        "1 bytes mac, 2 string driver, 3 repeated int64 supported_speed_bytes, 4 bool link_up, "
        "5 int64 current_speed_bytes"
    ),
    "cloud.bmaas.server.api.HeartbeatRequest": (
        "1 string machine_id, 2 AgentHardwareReport hardware_report, 3 OSInstallationReport installation_report"
    ),
    "cloud.bmaas.server.api.HeartbeatResponse": "1 OSInstallationRequest installation_request",
    "cloud.bmaas.server.api.AgentHardwareReport": "1 Node report, 2 repeated string warning",
    "cloud.bmaas.server.api.OSInstallationReport": (
        "1 int64 generation, 2 result: Success success, 3 result: Error error"
    ),
    "cloud.bmaas.server.api.OSInstallationReport.Success": "",
    "cloud.bmaas.server.api.OSInstallationReport.Error": "1 string error",
    "cloud.bmaas.server.api.OSInstallationRequest": "1 int64 generation, 2 type: MetropolisInstallation metropolis",
    "cloud.bmaas.server.api.MetropolisInstallation": (
        "1 string image_url, 2 bytes image_sha256, 3 bytes node_parameters"
    ),
}

_SCALARS = {1: "double", 2: "float", 3: "int64", 5: "int32", 8: "bool", 9: "string", 12: "bytes"}


def _shown(field: FieldDescriptor) -> str:
    named = field.message_type or field.enum_type
    words = f"{named.name if named else _SCALARS[field.type]} {field.name}"
    if field.is_repeated:
        words = f"repeated {words}"
    elif field.containing_oneof and field.containing_oneof.name.startswith("_"):
        words = f"optional {words}"
    elif field.containing_oneof:
        words = f"{field.containing_oneof.name}: {words}"
    return f"{field.number} {words}"


def _messages(found: dict[str, Descriptor]) -> dict[str, str]:
    shown = {}
    for message in found.values():
        shown[message.full_name] = ", ".join(
            _shown(field) for field in sorted(message.fields, key=lambda field: field.number)
        )
        shown |= _messages(dict(message.nested_types_by_name))
    return shown


def test_no_field_of_the_wire_contract_moved() -> None:
    """A changed number or type makes deployed agents and us misunderstand each other silently."""
    actual: dict[str, str] = {}
    for module in (agent_pb2, callback_pb2):
        actual |= _messages(dict(module.DESCRIPTOR.message_types_by_name))
    assert actual == CONTRACT


@pytest.mark.parametrize(
    ("enum", "numbers"),
    [
        (agent_pb2.EFISupport.DESCRIPTOR, {"INVALID": 0, "UNKNOWN": 1, "UNSUPPORTED": 2, "SUPPORTED": 3, "ENABLED": 4}),
        (
            agent_pb2.BlockDevice.Protocol.DESCRIPTOR,
            {"UNKNOWN": 0, "SCSI": 1, "ATA": 2, "NVME": 3, "MMC": 4},
        ),
    ],
)
def test_no_value_of_the_wire_contract_moved(enum: object, numbers: dict[str, int]) -> None:
    """The same, for what is sent as a number with a name."""
    values = enum.values  # type: ignore[attr-defined]  # the generated stubs call descriptors objects
    assert {value.name.split("_", 1)[1]: value.number for value in values} == numbers


def test_generated_code_is_what_the_sources_say(tmp_path: Path) -> None:
    """Detects a change of ``proto/`` without ``make proto``."""
    generate = [sys.executable, "-m", "grpc_tools.protoc", f"-Ishepherd_core/domain/pb={ROOT / 'proto'}"]
    generate += [f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    generate += [f"shepherd_core/domain/pb/{name}.proto" for name in FILES]
    subprocess.run(generate, check=True)
    for new in (tmp_path / "shepherd_core" / "domain" / "pb").iterdir():
        committed = importlib.resources.files(shepherd_core.domain.pb) / new.name
        assert new.read_bytes() == committed.read_bytes(), f"run `make proto`: {new.name} is out of date"


def test_every_source_is_generated_and_nothing_else() -> None:
    """A new file in ``proto/`` must come into the commands that generate and compare."""
    assert sorted(file.stem for file in (ROOT / "proto").iterdir()) == sorted(FILES)
    generated = {f"{name}_pb2{suffix}" for name in FILES for suffix in (".py", ".pyi")}
    present = {entry.name for entry in importlib.resources.files(shepherd_core.domain.pb).iterdir()}
    assert present - {"__pycache__"} == generated | {"__init__.py"}
