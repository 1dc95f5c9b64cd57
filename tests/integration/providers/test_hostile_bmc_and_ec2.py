"""Whatever a BMC or EC2 answers, the adapters return or raise an error of their own, and none of a parser."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shepherd_core.domain.clock import Deadline, Permission
from shepherd_core.domain.errors import TimeLimitExceeded
from shepherd_core.domain.errors.provider import ProviderError
from shepherd_core.domain.machine import ProviderId
from shepherd_core.domain.provider import Provider
from shepherd_core.providers.ec2.adapter import Ec2Provider
from shepherd_core.settings.providers.ec2 import Ec2Settings

from simulator.environment.faults import FakeAnswer
from simulator.providers.kit.hardware import NoHardware
from simulator.providers.redfish.bmcs import RedfishRack
from tests.conftest import ManualClock
from tests.support.providers.ec2_api import FLEET, IMAGE, Ec2Api, ec2_api, subnets
from tests.support.providers.redfish_rack import NAME, provider
from tests.support.providers.scripted_http import Answer

ODD = [
    "",
    "On",
    "ok",
    "\x00\x1b[2J",
    "/redfish/v1/../..",
    "//evil.example/x",
    "x" * 5_000,
    "i-1",
    "running",
    "2026-01-01",
    "-1",
    "\ud7ff",
]
BMC_KEYS = [
    "Systems",
    "Members",
    "@odata.id",
    "PowerState",
    "Boot",
    "BootSourceOverrideTarget",
    "BootSourceOverrideEnabled",
    "Actions",
    "target",
    "Links",
    "#ComputerSystem.Reset",
    "ResetType@Redfish.AllowableValues",
    "BootSourceOverrideTarget@Redfish.AllowableValues",
    "ManagedBy",
    "VirtualMedia",
    "error",
    "@Message.ExtendedInfo",
    "Message",
    "MessageId",
    "SessionService",
    "Sessions",
    "Status",
    "State",
    "Id",
]
EC2_TAGS = [
    "reservationSet",
    "item",
    "instancesSet",
    "instanceId",
    "instanceState",
    "name",
    "code",
    "tagSet",
    "key",
    "value",
    "privateIpAddress",
    "launchTime",
    "placement",
    "stateReason",
    "Errors",
    "Error",
    "Code",
    "Message",
    "nextToken",
    "instanceType",
    "blockDeviceMapping",
    "ebs",
    "volumeId",
    "return",
]
FEW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.sampled_from(ODD),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(BMC_KEYS), inner, max_size=6),
    max_leaves=30,
)
elements = st.recursive(
    st.sampled_from([text for text in ODD if text.isprintable()]),
    lambda inner: st.lists(st.tuples(st.sampled_from(EC2_TAGS), inner), max_size=4).map(
        lambda found: "".join(f"<{tag}>{text}</{tag}>" for tag, text in found)
    ),
    max_leaves=30,
)


def ask(provider: Provider, machine: ProviderId, clock: ManualClock, call: str) -> None:
    """Make one call; it may fail, but only as the interface says, and with a text that fits into a log line."""
    deadline = Deadline(clock, 60)
    calls: dict[str, Callable[[], Any]] = {
        "list": lambda: provider.list_machines(deadline),
        "get": lambda: provider.get_machine(machine, deadline),
        "reboot": lambda: provider.reboot(machine, Permission(deadline)),
        "power-cycle": lambda: provider.power_cycle(machine, Permission(deadline)),
    }
    failed: Exception | None = None
    try:
        calls[call]()
    except (ProviderError, TimeLimitExceeded) as error:
        failed = error
    assert len(str(failed)) < 2_000


@pytest.fixture(scope="module")
def rack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedfishRack]:
    with RedfishRack(NoHardware(), tmp_path_factory.mktemp("rack"), machines=1) as rack:
        rack.entries[0]["System"] = rack.bmcs[NAME].system
        yield rack


@FEW
@given(
    call=st.sampled_from(["get", "reboot", "power-cycle"]),
    status=st.sampled_from([200, 201, 204, 302, 400, 404, 500]),
    body=values,
)
def test_no_answer_of_a_bmc_breaks_the_adapter(
    rack: RedfishRack, clock: ManualClock, call: str, status: int, body: Any
) -> None:
    faults = rack.bmcs[NAME].faults
    faults.clear()
    faults.add(FakeAnswer(times=0, status=status, body=json.loads(json.dumps(body))))
    ask(provider(rack, clock), NAME, clock, call)


@pytest.fixture(scope="module")
def api() -> Iterator[Ec2Api]:
    with ec2_api() as api:
        yield api


@FEW
@given(call=st.sampled_from(["list", "get", "reboot"]), status=st.sampled_from([200, 400, 403, 500]), inner=elements)
def test_no_answer_of_ec2_breaks_the_adapter(
    api: Ec2Api, clock: ManualClock, call: str, status: int, inner: str
) -> None:
    named: dict[str, Any] = {
        "fleet": FLEET,
        "limit": 3,
        "subnets": ",".join(subnets()),
        "image": IMAGE,
        "machine_type": "m5.large",
    }
    found = Ec2Provider(Ec2Settings(**named), lambda: "ssh-ed25519 AAAA", clock)
    api.server.answer = lambda _: Answer(status, f"<r>{inner}</r>".encode(), {"Content-Type": "text/xml"})
    ask(found, ProviderId("i-0123456789abcdef0"), clock, call)
