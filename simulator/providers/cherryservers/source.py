"""The machine source that simulates Cherry Servers."""

from typing import ClassVar

from simulator.providers.cherryservers.api import PROJECT, CherryserversApi
from simulator.providers.kit.rest_source import RestSource


class Source(RestSource):
    """A project at Cherry Servers."""

    provider = "cherryservers"
    api = CherryserversApi
    settings: ClassVar[dict[str, str]] = {
        "PROJECT": str(PROJECT),
        "LOCATION": "eu_nord_1",
        "MACHINE_TYPE": "e5_1620v4",
    }
