"""The machine source that simulates Latitude.sh."""

from typing import ClassVar

from shepherd_core.providers.latitude import token_of

from simulator.providers.kit.machines import FakeMachine
from simulator.providers.kit.rest_source import RestSource
from simulator.providers.latitude.api import PROJECT, LatitudeApi


class Source(RestSource):
    """A project at Latitude.sh."""

    provider = "latitude"
    api = LatitudeApi
    settings: ClassVar[dict[str, str]] = {"PROJECT": PROJECT, "LOCATION": "ASH", "MACHINE_TYPE": "c3-small-x86"}

    def token(self, machine: FakeMachine) -> str | None:
        """See ``RestSource``."""
        token = token_of(machine.name)
        return None if token is None else str(token)
