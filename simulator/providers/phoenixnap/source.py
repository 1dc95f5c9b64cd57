"""The machine source that simulates phoenixNAP's Bare Metal Cloud."""

from shepherd_core.providers.phoenixnap import read_name

from simulator.environment.machine_source import SourceSpec
from simulator.providers.kit.machines import FakeMachine
from simulator.providers.kit.rest_source import RestSource
from simulator.providers.phoenixnap.api import PhoenixnapApi


class Source(RestSource):
    """An account of the Bare Metal Cloud."""

    provider = "phoenixnap"
    api = PhoenixnapApi
    credential = "client:{}"

    def settings(self, spec: SourceSpec) -> dict[str, str]:
        """See ``RestSource``."""
        return {
            "FLEET": "simulated",
            "LIMIT": str(spec.machines),
            "LOCATION": "PHX",
            "MACHINE_TYPE": "s1.c1.small",
            "AUTH_URL": f"{self._server.url}/token",
        }

    def token(self, machine: FakeMachine) -> str | None:
        """See ``RestSource``."""
        found = read_name(machine.name)
        return None if found is None else str(found[1])
