"""The command that has an operating system installed, and what is shown of installations and hardware."""

import json
import re
import time
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from uuid import UUID

import pytest
from shepherd_core.agent.endpoint import AgentRequest
from shepherd_core.bmdb.agents import installation
from shepherd_core.domain.pb.agent_pb2 import CPU, BlockDevice, NetworkInterface, Node
from shepherd_core.domain.pb.callback_pb2 import (
    AgentHardwareReport,
    HeartbeatRequest,
    HeartbeatResponse,
    MetropolisInstallation,
    OSImageRef,
    OSInstallationRequest,
)

from agent.shepherd_agent.installation.permit import NotPermitted, Permit
from agent.shepherd_agent.messages import InstallationRequest
from tests.support.agents.installation_key import taught
from tests.support.agents.signed_agent import SignedAgent, endpoint
from tests.support.bmdb.fleet import Fleet
from tests.support.command_line import CommandLine

URL = "https://images.example.com/metropolis.img"
SHA256 = "0f" * 32
IMAGE = ("--image", URL, "--sha256", SHA256)
OS_IMAGE = f"registry.example.com:5000/metropolis/os:1.2@sha256:{SHA256}"
REQUEST = ("generation", "image_url", "image_sha256", "os_image", "root_device", "node_parameters_bytes")


@pytest.fixture
def agent(fleet: Fleet) -> SignedAgent:
    return SignedAgent(fleet)


def heard(fleet: Fleet, request: AgentRequest) -> OSInstallationRequest:
    """Return what an agent is asked for in the answer to its heartbeat."""
    answer = endpoint(fleet.connection).handle(request)
    assert answer.status == HTTPStatus.OK, answer.body
    return HeartbeatResponse.FromString(answer.body).installation_request


def reported_hardware(fleet: Fleet, agent: SignedAgent, report: AgentHardwareReport) -> None:
    heard(fleet, agent.request(HeartbeatRequest(hardware_report=report)))


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
    parameters = tmp_path / "node.pb"
    parameters.write_bytes(b"\x0a\x07secret\xff")
    asked = shepherdctl.load("machine", "install", "machine-1", *IMAGE, "--node-parameters", str(parameters), "--yes")
    assert asked == {
        "machine_id": str(agent.machine_id),
        "provider": "static",
        "provider_id": "machine-1",
        "generation": 1,
        "replaces": None,
        "image_url": URL,
        "image_sha256": SHA256,
        "os_image": None,
        "root_device": None,
        "node_parameters_bytes": 9,
        "dry_run": False,
    }
    sent = heard(fleet, agent.request())
    metropolis = MetropolisInstallation(
        image_url=URL, image_sha256=bytes.fromhex(SHA256), node_parameters=b"\x0a\x07secret\xff"
    )
    assert (sent.generation, sent.metropolis) == (1, metropolis)
    asked_for = OSInstallationRequest(generation=1, metropolis=metropolis)
    assert permitted(agent.machine_id, sent.SerializeToString(), tmp_path / "agent.generation", hours=23.9) == asked_for
    with pytest.raises(NotPermitted, match="expired"):
        permitted(agent.machine_id, sent.SerializeToString(), tmp_path / "agent.generation", hours=24.1)

    facts = shown(shepherdctl.read("machine", "show", "machine-1"))
    told = shepherdctl.load("machine", "show", "machine-1")["installation"]
    assert told["request"].pop("requested_at").endswith("Z")
    request = {key: asked[key] for key in REQUEST}
    assert told == {"pending": True, "request": request, "report": None}
    assert facts["installation"] == ["generation 1, requested just now, pending"]
    assert (facts["image"], facts["image SHA-256"], facts["node parameters"]) == ([URL], [SHA256], ["9 bytes"])
    assert "outcome" not in facts

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
    assert facts["outcome"] == ["generation 2 succeeded, reported just now"]
    assert facts["state"] == ["installed"]


def permitted(machine_id: UUID, raw: bytes, record: Path, hours: float) -> OSInstallationRequest:
    """Return the request that an agent carries out which got *raw* some hours from now."""
    now = time.time_ns() // 1_000_000 + int(hours * 3_600_000)
    permit = Permit(replace(taught(str(machine_id)), time=now), str(record))
    return OSInstallationRequest.FromString(permit.check(InstallationRequest.decode(raw)).received)


def test_an_image_in_a_registry_reaches_the_agent(fleet: Fleet, agent: SignedAgent, shepherdctl: CommandLine) -> None:
    shepherdctl.read(*("machine", "install", "machine-1", "--os-image", OS_IMAGE, "--root-device", "nvme0n1", "--yes"))
    sent = heard(fleet, agent.request()).metropolis
    assert sent == MetropolisInstallation(
        node_parameters=b"",
        root_device="nvme0n1",
        os_image=OSImageRef(
            scheme="https",
            host="registry.example.com:5000",
            repository="metropolis/os",
            tag="1.2",
            digest=f"sha256:{SHA256}",
        ),
    )
    assert sent.HasField("node_parameters")
    facts = shown(shepherdctl.read("machine", "show", "machine-1"))
    assert (facts["image"], facts["root device"]) == ([OS_IMAGE], ["nvme0n1"])
    assert "image SHA-256" not in facts


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
    assert why in shepherdctl.told(
        "machine", "install", "machine-1", *IMAGE, "--dry-run" if dry_run else "--yes", status=1
    )
    assert fleet.sql("SELECT * FROM machine_os_installation_request") == []


@pytest.mark.parametrize(("typed", "status"), [("machine-1\n", 0), ("machine-2\n", 1), ("yes\n", 1), ("\x04", 1)])
def test_an_installation_needs_the_name_of_the_machine(fleet: Fleet, typed: str, status: int) -> None:
    fleet.unhealthy_machine()
    shown = CommandLine(fleet.settings).on_terminal(
        80, "machine", "install", "machine-1", *IMAGE, typed=typed, status=status, everything=True
    )
    assert ("no agent reports from the machine now" in " ".join(shown.split())) is (status == 0)
    assert len(fleet.sql("SELECT * FROM machine_os_installation_request")) == (status == 0)


def test_a_pending_request_is_replaced_only_on_request(fleet: Fleet, shepherdctl: CommandLine) -> None:
    """It may be running: two operators at one machine must learn of each other."""
    fleet.started_machine()
    first = shepherdctl("machine", "install", "machine-1", *IMAGE, "--yes", "--replace")
    assert "in the response to its next heartbeat" in first.stderr
    fleet.pass_time(300)
    for arguments in (["--yes"], ["--dry-run"]):
        refused = shepherdctl.told("machine", "install", "machine-1", *IMAGE, *arguments, status=1)
        assert "generation 1 was requested 5 min ago, and has no outcome yet" in refused
        assert "--replace" in refused
    result = shepherdctl("machine", "install", "machine-1", *IMAGE, "--yes", "--replace", "-o", "json")
    document = json.loads(result.stdout)
    assert (document["generation"], document["replaces"]) == (2, 1)
    assert "Generation 1, requested 5 min ago, has no outcome yet" in result.stderr


def test_a_dry_run_shows_the_request_and_changes_nothing(fleet: Fleet, shepherdctl: CommandLine) -> None:
    fleet.install(fleet.started_machine(), 4)
    result = shepherdctl("machine", "install", "machine-1", *IMAGE, "--dry-run")
    assert result.exit_code == 0
    assert shown(result.stdout)["generation"] == ["5"]
    assert "dry run: nothing was requested" in result.stderr
    assert "Generation 4 was installed" in result.stderr
    assert "the Recoverer reboots it" in result.stderr
    assert fleet.sql("SELECT generation FROM machine_os_installation_request") == [[4]]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--image", URL],
        ["--sha256", SHA256],
        ["--image", URL, "--sha256", SHA256[:-1]],
        ["--image", URL, "--sha256", SHA256 + "0"],
        ["--image", URL, "--sha256", "sha256:" + SHA256],
        ["--image", URL, "--sha256", "0g" * 32],
        *(
            ["--image", url, "--sha256", SHA256]
            for url in (
                "",
                "metropolis.img",
                "http://images.example.com/a.img",
                "s3://bucket/a.img",
                "https:///a.img",
                "https://images.example.com:port/a.img",
                "https://user:password@images.example.com/a.img",
                "https://images.example.com/a b.img",
                "https://images.example.com/a.img\n",
                "https://images.example.com/ä.img",
                "https://images.example.com/a.img#part",
                "https://[::1/a.img",
            )
        ),
        [*IMAGE, "--node-parameters", "/no/such/file"],
        [*IMAGE, "--node-parameters", "/"],
        [*IMAGE, "--node-parameters", "/dev/null"],
        [*IMAGE, "--node-parameters", "/dev/zero"],
        [*IMAGE, "--node-parameters", __file__],
        [*IMAGE, "--os-image", OS_IMAGE],
        ["--os-image", OS_IMAGE, "--sha256", SHA256],
        *(
            ["--os-image", reference]
            for reference in (
                "",
                f"https://{OS_IMAGE}",
                OS_IMAGE.partition("@")[0],
                OS_IMAGE[:-1],
                f"user:password@{OS_IMAGE}",
                f"r.example.com/os@md5:{SHA256}",
                f"r.example.com/../os@sha256:{SHA256}",
                f"r.example.com@sha256:{SHA256}",
            )
        ),
        ["--os-image", OS_IMAGE, "--root-device", "../sda"],
        ["--os-image", OS_IMAGE, "--root-device", "/dev/sda"],
    ],
    ids=lambda arguments: " ".join(arguments).replace("0f" * 31, "…"),
)
def test_an_installation_that_no_agent_can_carry_out_is_refused(fleet: Fleet, arguments: list[str]) -> None:
    """Otherwise the agent would find out on the machine, an hour later."""
    fleet.started_machine()
    assert "password" not in CommandLine(fleet.settings).told(
        "machine", "install", "machine-1", "--yes", *arguments, status=2
    )
    assert fleet.sql("SELECT * FROM machine_os_installation_request") == []


def test_neither_parameters_nor_what_entitles_to_an_image_is_shown(fleet: Fleet, tmp_path: Path) -> None:
    """Node parameters hold the new system's secrets, and the query of a presigned URL is one."""
    machine_id = fleet.started_machine()
    parameters = tmp_path / "node.pb"
    parameters.write_bytes(b"\x0a\x0athe-secret")
    shepherdctl = CommandLine(fleet.settings)
    url = f"{URL}?signature=the-secret"
    install = shepherdctl(
        *("machine", "install", "machine-1", "--image", url, "--sha256", SHA256, "--yes"),
        *("--node-parameters", str(parameters)),
    )
    assert f"{URL}?..." in install.stdout
    for text in (
        install.output,
        shepherdctl.read("machine", "show", "machine-1"),
        json.dumps(shepherdctl.load("machine", "show", "machine-1")),
    ):
        assert "the-secret" not in text
    request = installation.load(fleet.connection, machine_id).request
    assert request is not None
    assert "the-secret" not in repr(request)
    assert OSInstallationRequest.FromString(request.raw).metropolis.image_url == url


# Hardware.


def test_reports_that_are_empty_or_of_later_agents_are_shown(
    fleet: Fleet, agent: SignedAgent, shepherdctl: CommandLine
) -> None:
    reported_hardware(fleet, agent, AgentHardwareReport())
    facts = shown(shepherdctl.read("machine", "show", "machine-1"))
    assert list(facts)[-1] == "hardware"
    later = AgentHardwareReport(
        report=Node(
            memory_installed_bytes=1,
            memory_usable_ratio=float("nan"),
            cpu=[CPU()],
            block_device=[
                BlockDevice(
                    protocol=99,  # type: ignore[arg-type]  # a number that nobody has a name for yet
                    critical_warning=True,
                    media_errors=1,
                    available_spare_ratio=0.25,
                    usage_ratio=1.5,
                ),
                BlockDevice(usage_ratio=float("nan"), available_spare_ratio=float("inf")),
            ],
            network_interface=[NetworkInterface(), NetworkInterface(mac=b"\2\0\0\0\0\1", link_up=True)],
            efi_support=99,  # type: ignore[arg-type]  # the same
        )
    )
    reported_hardware(fleet, agent, later)
    facts = shown(shepherdctl.read("machine", "show", "machine-1"))
    assert (facts["processor"], facts["memory"]) == (["unnamed"], ["1 B"])
    assert facts["disk"] == [
        "unknown size, 150% of its lifetime used, 25% of its spare blocks left, 1 media error, critical warning",
        "unknown size",
    ]
    assert facts["interface"] == ["no link", "02:00:00:00:00:01, link"]
    assert "EFI" not in facts
    hardware = shepherdctl.load("machine", "show", "machine-1")["hardware"]
    disk, other = hardware["disks"]
    assert (disk["protocol"], disk["media_errors"], disk["usage_ratio"]) == (None, 1, 1.5)
    # JSON has no numbers such as these, and one machine must not keep a program from reading.
    ratios = hardware["memory_usable_ratio"], other["usage_ratio"], other["available_spare_ratio"]
    assert ratios == (None, None, None)
