"""The adapter of phoenixNAP's Bare Metal Cloud, held to the contract of all providers and to the API's description."""

from typing import Any, ClassVar
from uuid import UUID

from shepherd_core.domain.clock import Deadline
from shepherd_core.domain.provider import Provider
from shepherd_core.providers.kit.hosting import mark_of
from shepherd_core.providers.phoenixnap import PhoenixnapProvider
from shepherd_core.settings.providers.phoenixnap import PhoenixnapSettings

from simulator.environment.faults import SetValue
from simulator.providers.phoenixnap.api import PhoenixnapApi
from tests.conftest import ManualClock
from tests.integration.providers.contract.hosting_contract import OURS, HostingContract, SwitchedOn
from tests.integration.providers.contract.provider_contract import PUBLIC_KEY, Places, Setup

CREDENTIAL = "client:a-secret-that-nobody-may-see"
FLEET = "blue"


class TestPhoenixnap(HostingContract, SwitchedOn):
    adapter = PhoenixnapSettings, PhoenixnapProvider
    secret = CREDENTIAL
    fleet = FLEET
    tags: ClassVar = [
        {"id": "1", "isBillingTag": False, "name": "role", "value": "db"},
        {"id": "2", "isBillingTag": False, "name": "gpu"},
    ]
    given: ClassVar = {"fleet": FLEET, "location": "PHX", "machine_type": "s1.c1.small"}
    off = "powered-off"
    spoils = SetValue(path="/servers", times=0, at="*.id", value="the same")
    places = Places(path="/servers", id="*.id", address="*.publicIpAddresses.0")
    setup_facts: ClassVar = {"calls": "/servers**"}

    def provider(self, api: PhoenixnapApi, clock: ManualClock, **settings: Any) -> Provider:
        return super().provider(api, clock, auth_url=f"{api.url}/token", **settings)

    simulator: ClassVar = (PhoenixnapApi, {})
    servers = (
        (mark_of(f"{FLEET}/1", OURS), {"address": "192.0.2.1"}),
        ("web-1", {"address": "192.0.2.2 - 192.0.2.6"}),
        (mark_of("green/2", UUID(int=7)), {"address": "192.0.2.9"}),
    )

    def test_a_new_server_is_hourly_and_admits_root(self, setup: Setup, api: PhoenixnapApi, deadline: Deadline) -> None:
        """A reservation is paid for months. The API installs keys for the distribution's user only."""
        made = self.create(setup.provider, deadline)
        server = api.machine(made.provider_id)
        assert (server.fields["pricingModel"], server.authorized_key) == ("HOURLY", PUBLIC_KEY)

    def test_a_released_server_takes_its_addresses_with_it(
        self, setup: Setup, api: PhoenixnapApi, deadline: Deadline
    ) -> None:
        """Otherwise they are paid for, for ever. A server with a reservation stays listed, and is not ours any more."""
        ours = self.ours(setup, deadline)
        api.machine(ours.provider_id).fields["pricingModel"] = "ONE_MONTH_RESERVATION"
        setup.provider.release(ours.provider_id, deadline)
        server = api.machine(ours.provider_id)
        assert (server.state, server.fields["deleteIpBlocks"]) == ("reserved", True)
        assert OURS not in {each.token for each in setup.provider.list_machines(deadline)}
        setup.provider.release(ours.provider_id, deadline)

    def test_the_first_address_of_a_range_is_the_server_s(
        self, setup: Setup, api: PhoenixnapApi, deadline: Deadline
    ) -> None:
        """The description writes ranges where a network has several addresses."""
        ours = self.ours(setup, deadline)
        api.change(ours.provider_id, address="192.0.2.17 - 192.0.2.21")
        assert str(setup.provider.get_machine(ours.provider_id, deadline).address) == "192.0.2.17"
