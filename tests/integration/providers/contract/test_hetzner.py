"""The adapter of Hetzner's dedicated servers, held to the contract of all providers."""

from collections.abc import Iterator

import pytest
from shepherd_core.providers.hetzner.adapter import HetznerProvider
from shepherd_core.settings.providers.hetzner import HetznerSettings

from simulator.environment.faults import FakeAnswer
from simulator.providers.hetzner.objects import RobotServer
from simulator.providers.hetzner.robot import HetznerRobot
from simulator.providers.kit.hardware import NoHardware
from tests.conftest import ManualClock
from tests.integration.providers.contract.description import Description
from tests.integration.providers.contract.provider_contract import PUBLIC_KEY, Places, ProviderContract, Setup
from tests.integration.providers.contract.provider_faults import ProviderFaults

USER = "#ws+made-up"
PASSWORD = "a-password-that-nobody-may-see"
TWICE = [{"server": {"server_number": 321, "server_name": "shepherd-1"}}] * 2
DENIED = {"error": {"status": 403, "code": "DENIED", "message": f"{PASSWORD} may not do this"}}


class TestHetzner(ProviderContract, ProviderFaults):
    lacks = frozenset({"release", "tokens"})

    @pytest.fixture
    def setup(self, clock: ManualClock) -> Iterator[Setup]:
        """Return an account with three servers of ours, one that is cancelled, and one for something else."""
        hardware = NoHardware()
        servers = [
            RobotServer(id="11", name="shepherd-a"),
            RobotServer(id="12", name="shepherd-b", resets=("power", "power_long", "hw", "man")),
            RobotServer(id="13", name="shepherd-c", ipv4=False),
            RobotServer(id="14", name="shepherd-d", cancelled=True),
            RobotServer(id="15", name="web-server"),
        ]
        with HetznerRobot(hardware, secret=f"{USER}:{PASSWORD}", servers=servers) as robot:
            Description("hetzner").hold(robot)
            settings = HetznerSettings(
                credential_parameter="/unused", fleet="shepherd-", key_name="shepherd", api_url=robot.url
            )
            yield Setup.of(
                robot,
                hardware,
                FakeAnswer(path="/server", times=0, status=200, body=TWICE),
                provider=HetznerProvider(settings, lambda: f"{USER}:{PASSWORD}", lambda: PUBLIC_KEY, clock),
                capacity_ids=frozenset({"11", "12", "13", "14"}),
                stores_tokens=False,
                remove_keys=robot.keys.clear,
                keyed=("reinstall",),
                confuse=lambda provider_id: robot.change(provider_id, state="unheard of"),
                secret=PASSWORD,
                places=Places(path="/server", id="*.server.server_number", address="*.server.server_ip"),
            )
            assert robot.errors == []
