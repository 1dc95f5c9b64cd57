"""The wire contract with the agents, which run on machines that were built from it long ago."""

import importlib.resources
from pathlib import Path

import pytest
import shepherd_core.domain.pb
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from shepherd_core.domain.pb import callback_pb2

ROOT = Path(__file__).parents[2]
FILES = ("agent", "callback")

# What an agent of Metropolis reads of an answer, from its protocol: message, then number, type and name of each field.
# That no field of ours moves is in tests/data/stable.txt.
METROPOLIS = {
    "HeartbeatResponse": "1 OSInstallationRequest installation_request",
    "OSInstallationRequest": "1 int64 generation, 2 MetropolisInstallation metropolis",
    "MetropolisInstallation": "2 NodeParameters node_parameters, 3 string root_device, 4 OSImageRef os_image",
    "OSImageRef": "1 string scheme, 2 string host, 3 string repository, 4 string tag, 5 string digest",
    "NodeParameters": "",
}
SCALARS = {"int64": FieldDescriptorProto.TYPE_INT64, "string": FieldDescriptorProto.TYPE_STRING}


def protocol() -> DescriptorPool:
    file = FileDescriptorProto(name="metropolis.proto", package="m", syntax="proto3")
    for name, fields in METROPOLIS.items():
        message = file.message_type.add(name=name)
        for field in filter(None, fields.split(", ")):
            number, kind, field_name = field.split()
            added = message.field.add(name=field_name, number=int(number), label=1)
            if kind in METROPOLIS:
                added.type, added.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".m.{kind}"
            else:
                added.type = SCALARS[kind]
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
    theirs = GetMessageClass(protocol().FindMessageTypeByName("m.HeartbeatResponse"))
    read = theirs.FromString(response.SerializeToString()).installation_request  # type: ignore[attr-defined]
    assert read.generation == 7
    assert read.metropolis.HasField("node_parameters")
    assert read.metropolis.node_parameters.SerializeToString() == parameters
    assert read.metropolis.root_device == "nvme0n1"
    assert read.metropolis.os_image.SerializeToString() == image.SerializeToString()


def test_every_source_is_generated_and_nothing_else() -> None:
    assert sorted(file.stem for file in (ROOT / "proto").iterdir()) == sorted(FILES)
    generated = {f"{name}_pb2{suffix}" for name in FILES for suffix in (".py", ".pyi")}
    present = {entry.name for entry in importlib.resources.files(shepherd_core.domain.pb).iterdir()}
    assert present - {"__pycache__"} == generated | {"__init__.py"}
