"""The wire contract with the agents, which run on machines that were built from it long ago."""

import importlib.resources
from pathlib import Path

import pytest
import shepherd_core.domain.pb
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from shepherd_core.domain.pb import agent_pb2, callback_pb2

ROOT = Path(__file__).parents[2]
FILES = ("agent", "callback")

# Written down by hand from the protocol of Metropolis: message, then number, type and name of each field. The names of
# messages are not on the wire.
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
        "2 NodeParameters node_parameters, 3 string root_device, 4 OSImageRef os_image"
    ),
    "cloud.bmaas.server.api.OSImageRef": (
        "1 string scheme, 2 string host, 3 string repository, 4 string tag, 5 string digest"
    ),
}
# What Shepherd's messages have besides, or declare otherwise: bytes and a message are the same on the wire.
OURS = {
    "cloud.agent.api.TakeoverInit": (
        "1 string machine_id, 2 string bmaas_endpoint, 3 bytes ca_certificate, "
        "1000 repeated bytes installation_key, 1001 int64 time"
    ),
    "cloud.bmaas.server.api.OSInstallationRequest": (
        "1 int64 generation, 2 type: MetropolisInstallation metropolis, 1000 bytes signed, 1001 bytes signature"
    ),
    "cloud.bmaas.server.api.HeartbeatRequest": (
        "1 string machine_id, 2 AgentHardwareReport hardware_report, 3 OSInstallationReport installation_report, "
        "1000 uint32 failed_attempts, 1001 uint32 report_interval_seconds"
    ),
    "cloud.bmaas.server.api.HeartbeatResponse": (
        "1 OSInstallationRequest installation_request, 1000 uint32 report_interval_seconds"
    ),
    "cloud.bmaas.server.api.SignedInstallation": "1 string machine_id, 2 int64 expires_at, 3 bytes request",
    "cloud.bmaas.server.api.MetropolisInstallation": (
        "2 optional bytes node_parameters, 3 string root_device, 4 OSImageRef os_image, "
        "1000 string image_url, 1001 bytes image_sha256"
    ),
}

_SCALARS = {1: "double", 2: "float", 3: "int64", 5: "int32", 8: "bool", 9: "string", 12: "bytes", 13: "uint32"}


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
    assert actual == CONTRACT | OURS


def _protocol() -> DescriptorPool:
    """Return the protocol of ``CONTRACT``, without Shepherd's fields. Enumerations are numbers."""
    file = FileDescriptorProto(name="metropolis.proto", package="m", syntax="proto3")
    file.message_type.add(name="NodeParameters")
    scalars = {name: number for number, name in _SCALARS.items()}
    known = {name.rpartition(".")[2] for name in CONTRACT} | {"NodeParameters"}
    for name, fields in CONTRACT.items():
        message = file.message_type.add(name=name.rpartition(".")[2])
        for field in filter(None, fields.split(", ")):
            number, *label, kind, field_name = field.split()
            added = message.field.add(name=field_name, number=int(number), label=3 if label == ["repeated"] else 1)
            if kind in known:
                added.type, added.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".m.{kind}"
            else:
                added.type = FieldDescriptorProto.Type.ValueType(scalars.get(kind, scalars["int32"]))
    pool = DescriptorPool()
    pool.Add(file)
    return pool


@pytest.mark.parametrize("parameters", [b"", b"\x0a\x03abc"], ids=["none", "some"])
def test_an_agent_of_metropolis_reads_an_installation_request(parameters: bytes) -> None:
    """One field of another type makes it refuse the whole response, and the request never arrives."""
    image = callback_pb2.OSImageRef(scheme="https", host="r.example.com", repository="os", digest="sha256:00")
    response = callback_pb2.HeartbeatResponse()
    response.installation_request.generation = 7
    response.installation_request.signed = b"a SignedInstallation"
    response.installation_request.signature = bytes(64)
    response.installation_request.metropolis.MergeFrom(
        callback_pb2.MetropolisInstallation(
            node_parameters=parameters,
            root_device="nvme0n1",
            os_image=image,
            image_url="https://images.example.com/a",
            image_sha256=bytes(32),
        )
    )
    theirs = GetMessageClass(_protocol().FindMessageTypeByName("m.HeartbeatResponse"))
    read = theirs.FromString(response.SerializeToString()).installation_request  # type: ignore[attr-defined]
    assert read.generation == 7
    assert read.metropolis.HasField("node_parameters")
    assert read.metropolis.node_parameters.SerializeToString() == parameters
    assert read.metropolis.root_device == "nvme0n1"
    assert read.metropolis.os_image.SerializeToString() == image.SerializeToString()


@pytest.mark.parametrize(
    ("enum", "numbers"),
    [
        (agent_pb2.EFISupport.DESCRIPTOR, {"INVALID": 0, "UNKNOWN": 1, "UNSUPPORTED": 2, "SUPPORTED": 3, "ENABLED": 4}),
        (agent_pb2.BlockDevice.Protocol.DESCRIPTOR, {"UNKNOWN": 0, "SCSI": 1, "ATA": 2, "NVME": 3, "MMC": 4}),
    ],
)
def test_no_value_of_the_wire_contract_moved(enum: object, numbers: dict[str, int]) -> None:
    """The same, for what is sent as a number with a name."""
    values = enum.values  # type: ignore[attr-defined]  # the generated stubs call descriptors objects
    assert {value.name.split("_", 1)[1]: value.number for value in values} == numbers


def test_every_source_is_generated_and_nothing_else() -> None:
    assert sorted(file.stem for file in (ROOT / "proto").iterdir()) == sorted(FILES)
    generated = {f"{name}_pb2{suffix}" for name in FILES for suffix in (".py", ".pyi")}
    present = {entry.name for entry in importlib.resources.files(shepherd_core.domain.pb).iterdir()}
    assert present - {"__pycache__"} == generated | {"__init__.py"}
