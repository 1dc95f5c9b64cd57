"""The redfish adapter, held to the contract of all providers: against the emulator, over real HTTPS."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from shepherd_core.domain.errors import SourceError, SourceMissing, SourceUnavailable

from simulator.environment.faults import Delay, FakeAnswer
from simulator.providers.kit.hardware import NoHardware
from simulator.providers.redfish.bmcs import RedfishRack
from tests.conftest import ManualClock
from tests.support.providers.provider_contract import ProviderContract, Setup
from tests.support.providers.provider_faults import ProviderFaults
from tests.support.providers.redfish_rack import provider

PASSWORD = "made-up:password of a BMC"


class ListSource:
    """Where the list is kept; counts the readings, and fails as it is told."""

    def __init__(self, document: bytes) -> None:
        self.document = document
        self.readings = 0
        self.failure: SourceError | None = None

    def read(self) -> bytes:
        self.readings += 1
        if self.failure is not None:
            raise self.failure
        return self.document


class TestRedfish(ProviderContract, ProviderFaults):
    """Listing and creation fail with the list's source, all else with a BMC."""

    lacks = frozenset({"release", "tokens", "places"})

    @pytest.fixture
    def setup(self, clock: ManualClock, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Setup]:
        """Return three machines with BMCs, that reinstall over PXE."""
        callspec = getattr(request.node, "callspec", None)
        at_source = callspec is not None and callspec.params.get("action") in {"list", "create"}
        with RedfishRack(NoHardware(), tmp_path, machines=3) as rack:
            source = ListSource(rack.document)

            def fail(failure: SourceError, fault: FakeAnswer | Delay) -> None:
                if at_source:
                    source.failure = failure
                else:
                    rack.faults.add(fault)

            def spoil() -> None:
                source.document = json.dumps([*rack.entries, rack.entries[0]]).encode()

            said = {"error": {"message": f"{PASSWORD} may not", "code": "Base.1.0.GeneralError"}}
            yield Setup(
                provider=provider(rack, clock, read_list=source.read, reinstall="pxe"),
                capacity_ids=frozenset(rack.names),
                stores_tokens=False,
                requests=lambda: rack.calls + source.readings,
                settle=rack.wait_until_idle,
                make_unavailable=lambda: fail(SourceUnavailable(), FakeAnswer(times=0, status=503, body=said)),
                make_refusing=lambda: fail(SourceMissing(), FakeAnswer(times=0, status=403, body=said)),
                spoil_listing=spoil,
                reboots=rack.starts,
                confuse=lambda one: setattr(rack.bmcs[one], "power", "Unheard-of"),
                stall=lambda: fail(SourceUnavailable(), Delay(times=0, seconds=3600)),
                secret=PASSWORD,
                one_credential=False,
                lists=False,
                faults=rack.faults,
            )
            assert rack.errors == []
