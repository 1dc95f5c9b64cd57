"""The machine source that simulates Hetzner."""

from collections.abc import Collection, Mapping
from typing import ClassVar

from simulator.environment.machine_source import MachineSource, SourceSpec, ssh_key
from simulator.providers.hetzner.objects import RobotServer
from simulator.providers.hetzner.robot import HetznerRobot
from simulator.providers.kit.machines import Options


class Source(MachineSource):
    """An account with rented servers."""

    kind = "rented servers in a simulated account"
    creation_note = "(taken as they are: nothing on them changes)"
    power_note = "(by Robot's reset button, at the Recoverer's request)"
    every: ClassVar[Mapping[str, int]] = {"provisioner": 5, "updater": 5}
    """As docs/providers/hetzner.md advises for a growing fleet, because listings are limited by the hour."""

    def __init__(self, spec: SourceSpec) -> None:
        key, public = ssh_key()
        parameter, credential = "/shepherd/hetzner-credential", f"#ws+simulated:{spec.secret}"
        self._server: HetznerRobot = HetznerRobot(
            spec.pool,
            secret=credential,
            servers=[RobotServer(number=1000 + each, name=f"server-{each}") for each in range(1, spec.machines + 1)],
            authorized_key=public,
            options=Options(action_seconds=spec.minute / 4),
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
        self.secrets = {parameter: credential, **key}

    def names(self) -> Collection[str]:
        """See ``MachineSource``."""
        return self._server.names()
