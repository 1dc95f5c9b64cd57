"""The ironic adapter, held to the contract of all providers; by ``make test-ironic`` with the real service."""

from collections.abc import Iterator
from uuid import uuid4

import pytest
from shepherd_core.domain.clock import Deadline, SystemClock

from simulator.environment.faults import FakeAnswer, SetValue
from simulator.providers.ironic.service import installed
from simulator.providers.kit.hardware import NoHardware
from tests.conftest import ManualClock
from tests.integration.providers.contract.provider_contract import Places, ProviderContract, Setup
from tests.integration.providers.contract.provider_faults import ProviderFaults
from tests.support.providers.ironic_api import CREDENTIAL, ironic_api, ironic_provider, operate
from tests.support.waiting import eventually


def nodes(clock: ManualClock) -> Iterator[Setup]:
    """Yield nodes with a machine of ours, and another tenant's, one in maintenance, and three free ones."""
    hardware, deadline = NoHardware(), Deadline(SystemClock(), 60)
    with ironic_api(hardware) as api:
        provider = ironic_provider(api, clock)
        resource_class = provider._settings.machine_type
        *ours, foreign, broken = api.enroll(resource_class, [hardware.reserve() for _ in range(6)])
        operate(api, "PATCH", foreign, [{"op": "add", "path": "/instance_uuid", "value": str(uuid4())}])
        operate(api, "PUT", f"{broken}/maintenance", {"reason": "a disk"})
        provider.create_machine(provider.list_machines(deadline)[0], uuid4(), deadline)
        eventually(api.settled)
        state = SetValue(path="/v1/nodes", times=0, at="nodes.*.provision_state", value="unheard of")
        yield Setup.of(
            api,
            hardware,
            FakeAnswer(path="/v1/nodes", times=0, status=200, body={"nodes": [{"uuid": ours[0]}] * 2}),
            provider=provider,
            capacity_ids=frozenset(ours),
            stores_tokens=True,
            confuse=lambda _: api.faults.add(state),
            secret=CREDENTIAL.partition(":")[2],
            places=Places(path="/v1/nodes", id="nodes.*.uuid", address="nodes.*.extra.ipv4_address"),
        )
        assert api.errors == []


class TestIronic(ProviderContract):
    @pytest.fixture
    def setup(self, clock: ManualClock) -> Iterator[Setup]:
        yield from nodes(clock)


@pytest.mark.skipif(installed() is not None, reason="the faults do not reach the real service")
class TestIronicFaults(ProviderFaults):
    """The same, where requests and answers go wrong on their way."""

    @pytest.fixture
    def setup(self, clock: ManualClock) -> Iterator[Setup]:
        yield from nodes(clock)
