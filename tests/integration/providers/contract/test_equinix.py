"""The Equinix Metal adapter, held to the contract of all providers."""

from collections.abc import Iterator

import pytest
from shepherd_core.providers.equinix.adapter import EquinixProvider
from shepherd_core.settings.providers.equinix import EquinixSettings

from simulator.environment.faults import EmptyPage, SetValue
from simulator.providers.equinix.api import EquinixApi
from simulator.providers.kit.hardware import NoHardware
from simulator.providers.kit.machines import Options
from tests.conftest import ManualClock
from tests.integration.providers.contract.description import Description
from tests.integration.providers.contract.provider_contract import PUBLIC_KEY, Places, ProviderContract, Setup
from tests.integration.providers.contract.provider_faults import ProviderFaults
from tests.support.waiting import eventually

PROJECT = "6ab2c9bd-3c32-4d0e-8d4a-0f4b1a5c7e10"
KEY = "an-api-key-that-nobody-may-see"


def settled(api: EquinixApi, hardware: NoHardware) -> bool:
    """Return whether everything that was asked of the provider has happened."""
    devices = api.snapshot()
    wanted = sum(device.actions_taken.count("reboot") for device in devices)
    done = [method for method, _ in hardware.calls].count("reboot")
    return done == wanted and all(device.state == "active" and device.address for device in devices)


class TestEquinix(ProviderContract, ProviderFaults):
    lacks = frozenset({"power-cycle", "release"})

    @pytest.fixture
    def setup(self, clock: ManualClock) -> Iterator[Setup]:
        """Return a project with a machine of ours, one of somebody else, and three free reservations."""
        hardware = NoHardware()
        options = Options(per_page_cap=2)
        with EquinixApi(hardware, project_id=PROJECT, secret=KEY, reservations=5, options=options) as api:
            Description("equinix").hold(api)
            ids = api.reservations()
            api.add_active_device("shepherd-by-hand", reservation_id=ids[0])
            api.add_active_device("web-server", reservation_id=ids[1])

            settings = EquinixSettings(
                project=PROJECT, credential_parameter="/unused", fleet="shepherd-", key_name="shepherd", api_url=api.url
            )
            yield Setup.of(
                api,
                hardware,
                EmptyPage(path="/projects/{id}/devices", times=0),
                provider=EquinixProvider(settings, lambda: KEY, lambda: PUBLIC_KEY, clock),
                capacity_ids=frozenset(ids) - {ids[1]},
                stores_tokens=True,
                remove_keys=api.keys.clear,
                keyed=("create",),
                settle=lambda: eventually(lambda: settled(api, hardware)),
                confuse=lambda _: api.faults.add(SetValue(times=0, at="**.state", value="unheard of")),
                secret=KEY,
                places=Places(
                    path="/projects/{id}/devices", id="devices.*.id", address="devices.*.ip_addresses.*.address"
                ),
            )
            assert api.errors == []
