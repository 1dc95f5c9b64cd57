"""The adapter of Vultr's bare metal, held to the contract of all providers and to the API's description."""

from collections.abc import Iterator
from uuid import UUID

import pytest
from shepherd_core.domain.clock import Deadline
from shepherd_core.domain.machine import INVALID, Availability, Machine, ProviderStatus
from shepherd_core.providers.kit.hosting import mark_of
from shepherd_core.providers.vultr import VultrProvider
from shepherd_core.settings.providers.vultr import VultrSettings

from simulator.environment.faults import SetValue
from simulator.providers.kit.hardware import NoHardware
from simulator.providers.kit.machines import Options
from simulator.providers.vultr.api import VultrApi
from tests.conftest import ManualClock
from tests.support.providers.description import Description
from tests.support.providers.provider_contract import Places, ProviderContract, Setup, context
from tests.support.providers.provider_faults import ProviderFaults

KEY = "a-key-that-nobody-may-see"
OURS = UUID(int=5)


class TestVultr(ProviderContract, ProviderFaults):
    lacks = frozenset({"power-cycle"})

    @pytest.fixture
    def api(self) -> Iterator[VultrApi]:
        """Return a server of ours, one of nobody and one of another fleet."""
        with VultrApi(NoHardware(), secret=KEY, options=Options(per_page_cap=2)) as api:
            Description("vultr").hold(api)
            api.add_active("a", address="192.0.2.1", tags=["red", mark_of("web/1", OURS)])
            api.add_active("b", address="192.0.2.2", tags=["red"])
            api.add_active("c", address="192.0.2.3", tags=[mark_of("web2/2", OURS)])
            yield api
            assert api.errors == []

    @pytest.fixture
    def setup(self, clock: ManualClock, api: VultrApi) -> Setup:
        settings = VultrSettings(
            credential_parameter="/unused",
            fleet="web",
            limit=4,
            location="ewr",
            machine_type="vbm-4c-32gb",
            os=1743,
            key_name="shepherd",
            api_url=api.url,
        )
        return Setup.of(
            api,
            api.machines.hardware,
            SetValue(path="/bare-metals", times=0, at="meta.total", value=99),
            provider=VultrProvider(settings, context(clock, KEY)),
            capacity_ids=frozenset(f"web/{number}" for number in range(1, 5)),
            stores_tokens=True,
            remove_keys=api.keys.clear,
            keyed=("create",),
            confuse=lambda provider_id: api.change(provider_id, state="unheard of"),
            secret=KEY,
            places=Places(path="/bare-metals", id="bare_metals.*.id", address="bare_metals.*.main_ip"),
        )

    def test_a_new_server_is_marked_and_has_no_address_yet(
        self, setup: Setup, api: VultrApi, deadline: Deadline
    ) -> None:
        capacity = Machine(provider_id=INVALID, availability=Availability.KNOWN_UNUSED, reservation_id="web/3")
        made = setup.provider.create_machine(capacity, UUID(int=9), deadline)
        assert (made.status, made.address, made.location) == (ProviderStatus.PROVISIONING, None, "ewr")
        ordered = api.machine(made.provider_id)
        assert (ordered.name, ordered.fields["os_id"]) == (mark_of("web/3", UUID(int=9)), 1743)
