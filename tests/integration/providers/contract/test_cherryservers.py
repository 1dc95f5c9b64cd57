"""The adapter of Cherry Servers, held to the contract of all providers and to the API's description."""

from collections.abc import Iterator
from uuid import UUID

import pytest
from shepherd_core.domain.clock import Deadline
from shepherd_core.domain.machine import ProviderStatus
from shepherd_core.providers.cherryservers import CherryserversProvider
from shepherd_core.providers.kit.hosting import mark_of
from shepherd_core.settings.providers.cherryservers import CherryserversSettings

from simulator.environment.faults import SetValue
from simulator.providers.cherryservers.api import PROJECT, CherryserversApi
from simulator.providers.kit.hardware import NoHardware
from simulator.providers.kit.machines import Options
from tests.conftest import ManualClock
from tests.support.providers.description import Description
from tests.support.providers.provider_contract import Places, ProviderContract, Setup, context
from tests.support.providers.provider_faults import ProviderFaults

KEY = "a-key-that-nobody-may-see"
SERVERS = f"/projects/{PROJECT}/servers"
OURS = UUID(int=5)


class TestCherryservers(ProviderContract, ProviderFaults):
    lacks = frozenset({"power-cycle"})

    @pytest.fixture
    def api(self) -> Iterator[CherryserversApi]:
        """Return a server of ours, and those of nobody, of another fleet and of another project."""
        with CherryserversApi(NoHardware(), secret=KEY, options=Options(per_page_cap=2)) as api:
            Description("cherryservers").hold(api)
            api.add_active("a", address="192.0.2.1", tags={"env": "dev", "shepherd": mark_of("web/1", OURS)})
            api.add_active("b", address="192.0.2.2", tags={"env": "dev"})
            api.add_active("c", address="192.0.2.3", tags={"shepherd": mark_of("web2/2", OURS)})
            api.add_active("d", address="192.0.2.4", tags={"shepherd": mark_of("web/2", OURS)}, project=1)
            yield api
            assert api.errors == []

    @pytest.fixture
    def setup(self, clock: ManualClock, api: CherryserversApi) -> Setup:
        settings = CherryserversSettings(
            credential_parameter="/unused",
            project=str(PROJECT),
            fleet="web",
            limit=4,
            location="eu_nord_1",
            machine_type="e5_1620v4",
            key_name="shepherd",
            api_url=api.url,
        )
        return Setup.of(
            api,
            api.machines.hardware,
            SetValue(path=SERVERS, times=0, at="*.id", value=7),
            provider=CherryserversProvider(settings, context(clock, KEY)),
            capacity_ids=frozenset(f"web/{number}" for number in range(1, 5)),
            stores_tokens=True,
            remove_keys=api.keys.clear,
            keyed=("create", "reinstall"),
            confuse=lambda provider_id: api.change(provider_id, state="unheard of"),
            secret=KEY,
            places=Places(path=SERVERS, id="*.id", address="*.ip_addresses.*.address"),
        )

    @pytest.mark.parametrize(
        ("state", "status", "failure"),
        [
            ("active deploying", ProviderStatus.PROVISIONING, None),
            ("active allocated", ProviderStatus.RUNNING, None),
            ("active never heard of", ProviderStatus.RUNNING, None),
            ("pending failed deployment", ProviderStatus.PROVISIONING_FAILED_PERMANENT, "failed deployment"),
            ("terminating deployed", None, None),
        ],
    )
    def test_the_deployment_says_more_than_the_state(
        self,
        setup: Setup,
        api: CherryserversApi,
        deadline: Deadline,
        state: str,
        status: ProviderStatus | None,
        failure: str | None,
    ) -> None:
        (ours,) = (each for each in api.snapshot() if each.name == "a")
        api.change(ours.id, state=state)
        found = [(each.status, each.failure) for each in setup.provider.list_machines(deadline) if each.token == OURS]
        assert found == ([] if status is None else [(status, failure)])
