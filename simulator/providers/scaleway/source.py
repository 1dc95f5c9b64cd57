"""The machine source that simulates Scaleway's Elastic Metal."""

from shepherd_core.providers.scaleway import read_tag

from simulator.environment.machine_source import SourceSpec
from simulator.providers.kit.machines import FakeMachine
from simulator.providers.kit.rest_source import RestSource
from simulator.providers.scaleway.api import OFFER, OS, PROJECT, ZONE, ScalewayApi

_FLEET = "simulated"


class Source(RestSource):
    """A project at Scaleway."""

    provider = "scaleway"
    api = ScalewayApi

    def settings(self, spec: SourceSpec) -> dict[str, str]:
        """See ``RestSource``."""
        return {
            "PROJECT": PROJECT,
            "FLEET": _FLEET,
            "LIMIT": str(spec.machines),
            "LOCATION": ZONE,
            "MACHINE_TYPE": OFFER,
            "OS": OS,
            "KEY_NAME": "shepherd",
        }

    def token(self, machine: FakeMachine) -> str | None:
        """See ``RestSource``."""
        found = (read_tag(_FLEET, tag) for tag in machine.fields["tags"])
        return next((str(each[1]) for each in found if each), None)
