import json
import re
import time
from dataclasses import replace
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from uuid import UUID

import pytest
from shepherd_core.agent.endpoint import AgentRequest
from shepherd_core.bmdb.agents import installation
from shepherd_core.domain.pb.agent_pb2 import CPU, BlockDevice, NetworkInterface, Node
from shepherd_core.domain.pb.callback_pb2 import (
    AgentHardwareReport,
    HeartbeatResponse,
    MetropolisInstallation,
    OSImageRef,
    OSInstallationRequest,
)

from agent.shepherd_agent.installation.permit import NotPermitted, Permit
from agent.shepherd_agent.messages import InstallationRequest
from shepherdctl.descriptions import hardware
from tests.support.agents.installation_key import taught
from tests.support.agents.signed_agent import SignedAgent, endpoint
from tests.support.bmdb.fleet import Fleet
from tests.support.command_line import CommandLine

URL = "https://images.example.com/metropolis.img"
SHA256 = "0f" * 32
IMAGE = ("--image", URL, "--sha256", SHA256)
OS_IMAGE = f"registry.example.com:5000/metropolis/os:1.2@sha256:{SHA256}"
NOW = datetime(2026, 11, 28, tzinfo=UTC)
REQUEST = ("generation", "image_url", "image_sha256", "os_image", "root_device", "node_parameters_bytes")


@pytest.fixture
def agent(fleet: Fleet) -> SignedAgent:
    return SignedAgent(fleet)


def heard(fleet: Fleet, request: AgentRequest) -> OSInstallationRequest:
    answer = endpoint(fleet.connection).handle(request)
    assert answer.status == HTTPStatus.OK, answer.body
    return HeartbeatResponse.FromString(answer.body).installation_request


def shown(text: str) -> dict[str, list[str]]:
    """Return the facts that are said under each name; what was seconds ago, however many, was just now."""
    found: dict[str, list[str]] = {}
    for line in re.sub(r"\b\d+ s ago", "just now", text.partition("\nLOOP ")[0]).splitlines():
        name, _, value = line.partition("  ")
        found.setdefault(name, []).append(value.strip())
    return found


def test_the_agent_gets_what_the_operator_asked_for(
    fleet: Fleet, agent: SignedAgent, shepherdctl: CommandLine, tmp_path: Path
) -> None:
    """Node parameters hold the new system's secrets, and the query of a presigned URL is one: neither is shown."""
    parameters = tmp_path / "node.pb"
    parameters.write_bytes(b"\x0a\x0bthe-secret\xff")
    url = f"{URL}?signature=the-secret"
    command = ("machine", "install", "machine-1", "--image", url, *IMAGE[2:], "--node-parameters", str(parameters))
    printed = [shepherdctl(*command, "--dry-run").output]
    asked = shepherdctl.load(*command, "--yes")
    machine = {"machine_id": str(agent.machine_id), "provider": "static", "provider_id": "machine-1"}
    image = {"image_url": f"{URL}?...", "image_sha256": SHA256, "os_image": None, "root_device": None}
    more = {"generation": 1, "replaces": None, "node_parameters_bytes": 13, "dry_run": False}
    assert asked == {**machine, **image, **more}
    sent = heard(fleet, agent.request())
    metropolis = MetropolisInstallation(
        image_url=url, image_sha256=bytes.fromhex(SHA256), node_parameters=b"\x0a\x0bthe-secret\xff"
    )
    assert (sent.generation, sent.metropolis) == (1, metropolis)
    asked_for = OSInstallationRequest(generation=1, metropolis=metropolis)
    assert permitted(agent.machine_id, sent.SerializeToString(), tmp_path / "agent.generation", hours=23.9) == asked_for
    with pytest.raises(NotPermitted, match="expired"):
        permitted(agent.machine_id, sent.SerializeToString(), tmp_path / "agent.generation", hours=24.1)

    printed.append(shepherdctl.read("machine", "show", "machine-1"))
    facts = shown(printed[-1])
    told = shepherdctl.load("machine", "show", "machine-1")["installation"]
    assert told["request"].pop("requested_at").endswith("Z")
    assert told == {"pending": True, "request": {key: asked[key] for key in REQUEST}, "report": None}
    assert facts["installation"] == ["generation 1, requested just now, pending"]
    assert (facts["image"], facts["image SHA-256"]) == ([f"{URL}?..."], [SHA256])
    assert (facts["node parameters"], "outcome" in facts) == (["13 bytes"], False)
    printed.append(repr(installation.load(fleet.connection, agent.machine_id).request))
    assert ["the-secret" in text for text in printed] == [False] * 3

    heard(fleet, agent.outcome(1, "no disk\nwas found"))
    facts = shown(shepherdctl.read("machine", "show", "machine-1"))
    assert facts["installation"] == ["generation 1, requested just now"]
    assert facts["outcome"] == ["generation 1 failed, reported just now: no disk was found"]
    told = shepherdctl.load("machine", "show", "machine-1")["installation"]
    assert told["report"].pop("reported_at").endswith("Z")
    assert told["report"] == {"generation": 1, "result": "Error", "error": "no disk\nwas found"}
    assert told["pending"] is False
    assert "no disk" not in repr(installation.load(fleet.connection, agent.machine_id))

    assert shepherdctl.load("machine", "install", "machine-1", *IMAGE, "--yes")["generation"] == 2
    heard(fleet, agent.outcome(2))
    facts = shown(shepherdctl.read("machine", "show", "machine-1"))
    assert (facts["outcome"], facts["state"]) == (["generation 2 succeeded, reported just now"], ["installed"])


def permitted(machine_id: UUID, raw: bytes, record: Path, hours: float) -> OSInstallationRequest:
    """Return the request that an agent carries out which got *raw* some hours from now."""
    now = time.time_ns() // 1_000_000 + int(hours * 3_600_000)
    permit = Permit(replace(taught(str(machine_id)), time=now), str(record))
    return OSInstallationRequest.FromString(permit.check(InstallationRequest.decode(raw)).received)


def test_an_image_in_a_registry_reaches_the_agent(fleet: Fleet, agent: SignedAgent, shepherdctl: CommandLine) -> None:
    shepherdctl.read("machine", "install", "machine-1", "--os-image", OS_IMAGE, "--root-device", "nvme0n1", "--yes")
    sent = heard(fleet, agent.request()).metropolis
    image = OSImageRef(scheme="https", host="registry.example.com:5000", repository="metropolis/os", tag="1.2")
    image.digest = f"sha256:{SHA256}"
    assert sent == MetropolisInstallation(node_parameters=b"", root_device="nvme0n1", os_image=image)
    assert sent.HasField("node_parameters")
    facts = shown(shepherdctl.read("machine", "show", "machine-1"))
    assert (facts["image"], facts["root device"], facts.get("image SHA-256")) == ([OS_IMAGE], ["nvme0n1"], None)


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("/no/such/key", "SHEPHERD_INSTALLATION_KEY_SOURCE: '/no/such/key' could not be read: No such file"),
        ("ssm:/none/installation-key", "secret '/none/installation-key': there is no such SSM parameter"),
        (__file__, "the installation key is not an Ed25519 private key"),
    ],
)
def test_without_the_key_nothing_is_requested(fleet: Fleet, aws: None, source: str, why: str, dry_run: bool) -> None:
    fleet.started_machine()
    shepherdctl = CommandLine(fleet.settings, {"SHEPHERD_INSTALLATION_KEY_SOURCE": source})
    command = ("machine", "install", "machine-1", *IMAGE, "--dry-run" if dry_run else "--yes")
    assert why in shepherdctl.told(*command, status=1)
    assert fleet.sql("SELECT * FROM machine_os_installation_request") == []


def test_an_installation_needs_the_name_of_the_machine(fleet: Fleet, shepherdctl: CommandLine) -> None:
    fleet.unhealthy_machine()
    command = ("machine", "install", "machine-1", *IMAGE)
    for typed, status in (("machine-2\n", 1), ("yes\n", 1), ("\x04", 1), ("machine-1\n", 0)):
        screen = shepherdctl.on_terminal(80, *command, typed=typed, status=status, everything=True)
        assert ("no agent reports from the machine now" in " ".join(screen.split())) is (status == 0)
        assert len(fleet.sql("SELECT * FROM machine_os_installation_request")) == (status == 0)


def test_a_request_tells_what_it_replaces(fleet: Fleet, shepherdctl: CommandLine) -> None:
    """One without an outcome may be running: two operators at one machine must learn of each other."""
    fleet.install(fleet.started_machine(), 4)
    dry = shepherdctl("machine", "install", "machine-1", *IMAGE, "--dry-run")
    assert (dry.exit_code, shown(dry.stdout)["generation"]) == (0, ["5"])
    for words in ("dry run: nothing was requested", "Generation 4 was installed", "the Recoverer reboots it"):
        assert words in dry.stderr
    assert fleet.sql("SELECT generation FROM machine_os_installation_request") == [[4]]
    shepherdctl.read("machine", "install", "machine-1", *IMAGE, "--yes", "--replace")
    fleet.pass_time(300)
    for end in ("--yes", "--dry-run"):
        refused = shepherdctl.told("machine", "install", "machine-1", *IMAGE, end, status=1)
        assert re.search("generation 5 was requested 5 min ago, and has no outcome yet.*--replace", refused)
    result = shepherdctl("machine", "install", "machine-1", *IMAGE, "--yes", "--replace", "-o", "json")
    document = json.loads(result.stdout)
    assert (document["generation"], document["replaces"]) == (6, 5)
    assert "Generation 5, requested 5 min ago, has no outcome yet" in result.stderr
    assert "in the response to its next heartbeat" in result.stderr


def test_reports_that_are_empty_or_of_later_agents_are_shown() -> None:
    """JSON has no numbers such as NaN, and one machine must not keep a program from reading."""
    assert [name for name, value in hardware.rows(hardware.plain(b"", NOW), NOW) if value] == ["hardware"]
    spoiled = BlockDevice(
        protocol=99,  # type: ignore[arg-type]  # a number that nobody has a name for yet
        critical_warning=True,
        media_errors=1,
        available_spare_ratio=0.25,
        usage_ratio=1.5,
    )
    node = Node(
        memory_installed_bytes=1,
        memory_usable_ratio=float("nan"),
        cpu=[CPU()],
        block_device=[spoiled, BlockDevice(usage_ratio=float("nan"), available_spare_ratio=float("inf"))],
        network_interface=[NetworkInterface(), NetworkInterface(mac=b"\2\0\0\0\0\1", link_up=True)],
        efi_support=99,  # type: ignore[arg-type]  # the same
    )
    found = hardware.plain(AgentHardwareReport(report=node).SerializeToString(), NOW)
    assert [row for row in hardware.rows(found, NOW)[1:] if row[1]] == [
        ("processor", "unnamed"),
        ("memory", "1 B"),
        (
            "disk",
            "unknown size, 150% of its lifetime used, 25% of its spare blocks left, 1 media error, critical warning",
        ),
        ("disk", "unknown size"),
        ("interface", "no link"),
        ("interface", "02:00:00:00:00:01, link"),
    ]
    disk, other = found["disks"]
    assert (disk["protocol"], disk["media_errors"], disk["usage_ratio"]) == (None, 1, 1.5)
    assert (found["memory_usable_ratio"], other["usage_ratio"], other["available_spare_ratio"]) == (None, None, None)
