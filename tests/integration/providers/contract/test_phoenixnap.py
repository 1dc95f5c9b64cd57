"""The adapter of phoenixNAP's Bare Metal Cloud, held to the contract of all providers and to the API's description."""

from collections.abc import Iterator
from uuid import UUID

import pytest
from shepherd_core.domain.clock import Deadline, Permission, SystemClock
from shepherd_core.domain.machine import INVALID, Availability, Machine
from shepherd_core.providers.kit.hosting import mark_of
from shepherd_core.providers.phoenixnap import PhoenixnapProvider
from shepherd_core.settings.providers.phoenixnap import PhoenixnapSettings

from simulator.environment.faults import SetValue
from simulator.providers.kit.hardware import NoHardware
from simulator.providers.phoenixnap.api import PhoenixnapApi
from tests.conftest import ManualClock
from tests.support.providers.description import Description
from tests.support.providers.provider_contract import PUBLIC_KEY, TOKEN, Places, ProviderContract, Setup, context
from tests.support.providers.provider_faults import ProviderFaults

CREDENTIAL = "client:a-secret-that-nobody-may-see"
FLEET = "blue"
OURS = UUID(int=5)


class TestPhoenixnap(ProviderContract, ProviderFaults):
    lacks = frozenset({"power-cycle"})

    @pytest.fixture
    def api(self) -> Iterator[PhoenixnapApi]:
        """Return an account with a server of ours, one that somebody else made, and one of another fleet."""
        with PhoenixnapApi(NoHardware(), secret=CREDENTIAL) as api:
            Description("phoenixnap").hold(api)
            api.add_active(mark_of(f"{FLEET}/1", OURS), address="192.0.2.1")
            api.add_active("web-1", address="192.0.2.2 - 192.0.2.6")
            api.add_active(mark_of("green/2", UUID(int=7)), address="192.0.2.9")
            yield api
            assert api.errors == []

    @pytest.fixture
    def setup(self, clock: ManualClock, api: PhoenixnapApi) -> Setup:
        settings = PhoenixnapSettings(
            credential_parameter="/unused",
            fleet=FLEET,
            limit=4,
            location="PHX",
            machine_type="s1.c1.small",
            api_url=api.url,
            auth_url=f"{api.url}/token",
        )
        return Setup.of(
            api,
            api.machines.hardware,
            SetValue(path="/servers", times=0, at="*.id", value="the same"),
            provider=PhoenixnapProvider(settings, context(clock, CREDENTIAL)),
            capacity_ids=frozenset(f"{FLEET}/{number}" for number in range(1, 5)),
            stores_tokens=True,
            confuse=lambda provider_id: api.change(provider_id, state="unheard of"),
            secret=CREDENTIAL.partition(":")[2],
            calls="/servers**",
            places=Places(path="/servers", id="*.id", address="*.publicIpAddresses.0"),
        )

    def test_a_new_server_is_hourly_and_admits_root(self, setup: Setup, api: PhoenixnapApi) -> None:
        """A reservation is paid for months. The API installs keys for the distribution's user only."""
        capacity = Machine(provider_id=INVALID, availability=Availability.KNOWN_UNUSED, reservation_id=f"{FLEET}/3")
        made = setup.provider.create_machine(capacity, TOKEN, Deadline(SystemClock(), 10))
        server = api.machine(made.provider_id)
        assert (server.fields["pricingModel"], server.authorized_key) == ("HOURLY", PUBLIC_KEY)

    def test_a_released_server_takes_its_addresses_with_it(
        self, setup: Setup, api: PhoenixnapApi, deadline: Deadline
    ) -> None:
        """Otherwise they are paid for, for ever. A server with a reservation stays listed, and is not ours any more."""
        (ours,) = [each for each in setup.provider.list_machines(deadline) if each.token == OURS]
        api.machine(ours.provider_id).fields["pricingModel"] = "ONE_MONTH_RESERVATION"
        setup.provider.release(ours.provider_id, deadline)
        server = api.machine(ours.provider_id)
        assert (server.state, server.fields["deleteIpBlocks"]) == ("reserved", True)
        assert OURS not in {each.token for each in setup.provider.list_machines(deadline)}
        setup.provider.release(ours.provider_id, deadline)

    def test_a_server_that_is_off_is_switched_on(self, setup: Setup, api: PhoenixnapApi, deadline: Deadline) -> None:
        (ours,) = [each for each in setup.provider.list_machines(deadline) if each.token == OURS]
        api.change(ours.provider_id, state="powered-off")
        setup.provider.reboot(ours.provider_id, Permission(deadline))
        assert api.machine(ours.provider_id).actions_taken == ["power_on"]

    def test_the_first_address_of_a_range_is_the_server_s(
        self, setup: Setup, api: PhoenixnapApi, deadline: Deadline
    ) -> None:
        """The description writes ranges where a network has several addresses."""
        (ours,) = [each for each in setup.provider.list_machines(deadline) if each.token == OURS]
        api.change(ours.provider_id, address="192.0.2.17 - 192.0.2.21")
        assert str(setup.provider.get_machine(ours.provider_id, deadline).address) == "192.0.2.17"
