"""The redfish adapter, held to the contract of all providers: against the emulator, over real HTTPS."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from simulator.environment.faults import FakeAnswer
from simulator.providers.kit.hardware import NoHardware
from simulator.providers.redfish.bmcs import RedfishRack
from tests.conftest import ManualClock
from tests.integration.providers.contract.provider_contract import ProviderContract, Setup
from tests.integration.providers.contract.provider_faults import ProviderFaults
from tests.support.providers.redfish_rack import provider

PASSWORD = "made-up:password of a BMC"
SAID = {"error": {"message": f"{PASSWORD} may not", "code": "Base.1.0.GeneralError"}}


class TestRedfish(ProviderContract, ProviderFaults):
    """Listing and creation ask no BMC: they read the list, as the static provider does."""

    lacks = frozenset({"release", "tokens", "places"})

    @pytest.fixture
    def setup(self, clock: ManualClock, tmp_path: Path) -> Iterator[Setup]:
        """Return two machines with BMCs, that reinstall over PXE."""
        with RedfishRack(NoHardware(), tmp_path, machines=2) as rack:
            yield Setup(
                provider=provider(rack, clock, reinstall="pxe"),
                capacity_ids=frozenset(rack.names),
                stores_tokens=False,
                requests=lambda: rack.calls,
                settle=rack.wait_until_idle,
                make_refusing=lambda: rack.faults.add(FakeAnswer(times=0, status=403, body=SAID)),
                spoil_listing=lambda: rack.entries.append(rack.entries[0]),
                reboots=rack.starts,
                confuse=lambda one: setattr(rack.bmcs[one], "power", "Unheard-of"),
                secret=PASSWORD,
                one_credential=False,
                lists=False,
                faults=rack.faults,
            )
            assert rack.errors == []
