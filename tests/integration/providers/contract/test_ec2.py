"""The adapter of Amazon EC2, held to the contract of all providers."""

import random
import re
from collections.abc import Iterator
from typing import Any

import pytest
from shepherd_core.providers.ec2.adapter import Ec2Provider
from shepherd_core.settings.providers.ec2 import Ec2Settings

from simulator.environment.faults import FakeAnswer, Scramble
from simulator.providers.kit.fault_script import FaultScript
from tests.conftest import ManualClock
from tests.integration.providers.contract.provider_contract import ProviderContract, Setup
from tests.integration.providers.contract.provider_faults import ProviderFaults
from tests.support.providers.ec2_api import FLEET, IMAGE, XML, Ec2Api, ec2_api, refusal, subnets
from tests.support.providers.scripted_http import Answer

SECRET = "a-secret-access-key-that-nobody-may-see"
PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHb1Jc7TZl0g8cFz7h5oVb5Gg2c0J5s0n1p6c9w3Qk7d shepherd"
_CODES = {
    401: "AuthFailure",
    403: "UnauthorizedOperation",
    404: "InvalidInstanceID.NotFound",
    429: "RequestLimitExceeded",
}
"""What EC2 says with a status; for others, whatever it is."""


class Ec2Faults(FaultScript):
    """The faults that all simulated APIs share, in EC2's form: actions are POSTs to one path, and answers are XML."""

    def __init__(self, api: Ec2Api) -> None:
        super().__init__()
        self._api = api
        api.faults.append(self._answer)

    def _answer(self, action: str, asked: dict[str, str]) -> Answer | None:
        delays, other = self.hits("GET" if action.startswith("Describe") else "POST", "/")
        fault: Any = delays[0] if delays else other
        if fault is None:
            return None
        before = getattr(fault, "when", "after") == "before"
        done = Answer() if before else self._api.perform(action, asked)
        if isinstance(fault, Scramble):
            return Answer(done.status, _scrambled(done.body, random.Random(fault.seed)), XML)
        if not isinstance(fault, FakeAnswer):
            return Answer(200, done.body[:100], XML, missing=100)  # lost, cut, or later than anybody waits
        if fault.status < 300:
            return Answer(fault.status, str(fault.body).encode(), XML)
        return refusal(fault.status, _CODES.get(fault.status, "Whatever"))


def _scrambled(body: bytes, chance: random.Random) -> bytes:
    """Return *body* with another text in one of its elements."""
    start, end = chance.choice([found.span(1) for found in re.finditer(b">([^<>]*)</", body)])
    return body[:start] + chance.choice([b"", b"unheard of", b"-1", b"<a/>", b"9" * 30, b"&#0;"]) + body[end:]


class TestEc2(ProviderContract, ProviderFaults):
    lacks = frozenset({"places"})

    @pytest.fixture
    def setup(self, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Setup]:
        """Return a fleet of two of at most five instances, and an instance of somebody else."""
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        with ec2_api() as api:
            monkeypatch.setenv("AWS_ENDPOINT_URL_EC2", api.server.url)
            api.page_size = 1
            api.launch_by_hand(shepherd_fleet=FLEET, shepherd_slot=f"{FLEET}/2")
            unnamed = api.launch_by_hand(shepherd_fleet=FLEET)
            api.launch_by_hand(shepherd_fleet="somebody-else's", shepherd_slot=f"{FLEET}/3")
            api.launch_by_hand()
            settings = Ec2Settings(
                fleet=FLEET, limit=5, subnets=",".join(subnets()), image=IMAGE, machine_type="m5.large"
            )
            yield Setup(
                provider=Ec2Provider(settings, lambda: PUBLIC_KEY, clock),
                # The one without a name leaves room for one less: the last.
                capacity_ids=frozenset(f"{FLEET}/{number}" for number in (1, 2, 3, 4)) | {unnamed},
                stores_tokens=True,
                requests=lambda: api.calls.total(),  # noqa: PLW0108 - calls is another counter each time
                # boto3 repeats neither of the two, which would only take time; and of the first it shows what it got.
                make_unavailable=lambda: api.refuse("*", Answer(200, f"<{SECRET}>".encode(), missing=100)),
                make_refusing=lambda: api.refuse("*", refusal(401, "AuthFailure", SECRET)),
                spoil_listing=api.repeat_pages,
                reboots=lambda provider_id: api.restarts[provider_id],
                confuse=lambda provider_id: api.set_state(provider_id, "unheard-of"),
                stall=api.stall,
                secret=SECRET,
                says_when=False,
                faults=Ec2Faults(api),
            )
