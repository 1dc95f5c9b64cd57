"""The adapter of Acme, held to the contract of all providers."""

from collections.abc import Iterator

import pytest

from shepherd_acme.adapter import build
from shepherd_acme.settings import AcmeSettings
from shepherd_acme.testing.api import KEY, AcmeApi
from tests.conftest import ManualClock
from tests.integration.providers.contract.provider_contract import Places, ProviderContract, Setup, context
from tests.integration.providers.contract.provider_faults import ProviderFaults


class TestAcme(ProviderContract, ProviderFaults):
    """Against a local server of Acme's API, over real HTTP."""

    lacks = frozenset({"power-cycle", "reinstall"})

    @pytest.fixture
    def setup(self, clock: ManualClock) -> Iterator[Setup]:
        """Return an environment with a server of ours, one of another owner, and three free ones."""
        with AcmeApi() as api:
            yield Setup(
                provider=build(AcmeSettings(credential_parameter="/unused", api_url=api.url), context(clock, KEY)),
                capacity_ids=frozenset(api.servers) - {"server-2"},
                stores_tokens=True,
                requests=api.requests,
                spoil_listing=lambda: api.servers.update({"server-9": {"ip": "192.0.2.9"}}),
                reboots=api.restarts.count,
                confuse=lambda provider_id: api.servers[provider_id].update(power="unheard of"),
                secret=KEY,
                faults=api.faults,
                places=Places(path="/servers", id="servers.*.name", address="servers.*.ip"),
            )
