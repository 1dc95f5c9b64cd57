"""Whatever EC2 answers, the adapter returns or raises an error of its own, and none of a parser."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from shepherd_core.domain.clock import Deadline, Permission
from shepherd_core.domain.errors import TimeLimitExceeded
from shepherd_core.domain.errors.provider import ProviderError
from shepherd_core.domain.machine import ProviderId
from shepherd_core.providers.ec2.adapter import Ec2Provider
from shepherd_core.settings.providers.ec2 import Ec2Settings

from tests.conftest import ManualClock
from tests.support.providers.ec2_api import FLEET, IMAGE, Ec2Api, ec2_api, subnets
from tests.support.providers.scripted_http import Answer

TEXTS = ["", "ok", "x" * 5_000, "i-1", "running", "2026-01-01", "-1"]
TAGS = [
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
]
TAGS += [
    "privateIpAddress",
    "launchTime",
    "placement",
    "stateReason",
    "Errors",
    "Error",
    "Code",
    "Message",
    "nextToken",
]
MACHINE = ProviderId("i-0123456789abcdef0")

elements = st.recursive(
    st.sampled_from(TEXTS),
    lambda inner: st.lists(st.tuples(st.sampled_from(TAGS), inner), max_size=4).map(
        lambda found: "".join(f"<{tag}>{text}</{tag}>" for tag, text in found)
    ),
    max_leaves=30,
)


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ec2Api]:
    with ec2_api() as api:
        monkeypatch.setenv("AWS_ENDPOINT_URL_EC2", api.server.url)
        yield api


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(call="list", status=200, inner="<nextToken>ok</nextToken>")  # would be asked for without end
@given(call=st.sampled_from(["list", "get", "reboot"]), status=st.sampled_from([200, 400, 403, 500]), inner=elements)
def test_no_answer_of_ec2_breaks_the_adapter(
    api: Ec2Api, clock: ManualClock, call: str, status: int, inner: str
) -> None:
    """What it says of it fits into a log line."""
    named: dict[str, Any] = {"fleet": FLEET, "limit": 3, "image": IMAGE, "machine_type": "m5.large"}
    provider = Ec2Provider(Ec2Settings(subnets=",".join(subnets()), **named), lambda: "ssh-ed25519 AAAA", clock)
    api.server.answer = lambda _: Answer(status, f"<r>{inner}</r>".encode(), {"Content-Type": "text/xml"})
    deadline, before = Deadline(clock, 60), len(api.server.requests)
    calls: dict[str, Callable[[], Any]] = {
        "list": lambda: provider.list_machines(deadline),
        "get": lambda: provider.get_machine(MACHINE, deadline),
        "reboot": lambda: provider.reboot(MACHINE, Permission(deadline)),
    }
    failed: Exception | None = None
    try:
        calls[call]()
    except (ProviderError, TimeLimitExceeded) as error:
        failed = error
    assert len(str(failed)) < 2_000
    assert len(api.server.requests) > before
