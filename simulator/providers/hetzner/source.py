"""The machine source that simulates Hetzner."""

import time
from collections.abc import Collection, Mapping
from typing import ClassVar

from simulator.environment.machine_source import MachineSource, SourceSpec, ssh_key
from simulator.providers.hetzner.robot import HetznerRobot, RobotOptions


class Source(MachineSource):
    """An account with rented servers."""

    kind = "rented servers in a simulated account"
    creation_note = "(taken as they are: nothing on them changes)"
    power_note = "(by Robot's reset button, at the Recoverer's request)"
    every: ClassVar[Mapping[str, int]] = {"provisioner": 5, "updater": 5}
    """As docs/providers/hetzner.md advises for a growing fleet, because listings are limited by the hour."""

    def __init__(self, spec: SourceSpec) -> None:
        key, public = ssh_key()
        parameter = "/shepherd/hetzner-credential"
        self._server: HetznerRobot = HetznerRobot(
            spec.pool,
            user="#ws+simulated",
            password=spec.secret,
            servers=spec.machines,
            options=RobotOptions(
                action_seconds=spec.minute / 4,
                clock=lambda: time.monotonic() * 60 / spec.minute,
                authorized_key=public,
            ),
            faults=spec.faults,
            address=spec.address,
        )
        self.environment = {
            "SHEPHERD_PROVIDER": "hetzner",
            "SHEPHERD_PROVIDER_CREDENTIAL_PARAMETER": parameter,
            "SHEPHERD_PROVIDER_FLEET": "server-",
            "SHEPHERD_PROVIDER_KEY_NAME": "shepherd",
            "SHEPHERD_PROVIDER_API_URL": self._server.url,
            "SHEPHERD_PROVIDER_GRACEFUL": "false",  # a hanging machine ignores Ctrl+Alt+Del
        }
        self.secrets = {parameter: f"#ws+simulated:{spec.secret}", **key}

    def names(self) -> Collection[str]:
        """See ``MachineSource``."""
        return {str(server.number) for server in self._server.servers()}
