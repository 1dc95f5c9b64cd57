"""The machine source that simulates Hetzner."""

from collections.abc import Mapping
from typing import Any, ClassVar

from simulator.environment.machine_source import MachineSource, SourceSpec
from simulator.providers.hetzner.objects import RobotServer
from simulator.providers.hetzner.robot import HetznerRobot
from simulator.providers.kit.rest_source import RestSource

_ROOM = 4
"""Servers at each location."""


class Source(RestSource):
    """An account with rented servers."""

    kind = "rented servers in a simulated account"
    creation_note = "(taken as they are: nothing on them changes)"
    power_note = "(by Robot's reset button, at the Recoverer's request)"
    every: ClassVar[Mapping[str, int]] = {"provisioner": 5, "updater": 5}
    """As docs/providers/hetzner.md advises for a growing fleet, because listings are limited by the hour."""
    in_use = MachineSource.in_use  # Robot keeps no tokens
    provider = "hetzner"
    api = HetznerRobot
    credential = "#ws+simulated:{}"
    settings: ClassVar[dict[str, str]] = {
        "FLEET": "server-",
        "GRACEFUL": "false",  # a hanging machine ignores Ctrl+Alt+Del
    }

    def account(self, spec: SourceSpec, public_key: str) -> dict[str, Any]:
        """See ``RestSource``."""
        servers = [
            RobotServer(id=f"{1000 + each}", name=f"server-{each}", dc=f"FSN1-DC{(each - 1) // _ROOM + 1}")
            for each in range(1, spec.machines + 1)
        ]
        return {"servers": servers, "authorized_key": public_key}
