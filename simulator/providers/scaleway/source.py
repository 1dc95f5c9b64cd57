"""The machine source that simulates Scaleway's Elastic Metal."""

from typing import ClassVar

from simulator.providers.kit.rest_source import RestSource
from simulator.providers.scaleway.api import OFFER, OS, PROJECT, ZONE, ScalewayApi


class Source(RestSource):
    """A project at Scaleway."""

    provider = "scaleway"
    api = ScalewayApi
    settings: ClassVar[dict[str, str]] = {"PROJECT": PROJECT, "LOCATION": ZONE, "MACHINE_TYPE": OFFER, "OS": OS}
