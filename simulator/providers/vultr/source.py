"""The machine source that simulates Vultr's bare metal."""

from typing import ClassVar

from simulator.providers.kit.rest_source import RestSource
from simulator.providers.vultr.api import VultrApi


class Source(RestSource):
    """An account at Vultr."""

    provider = "vultr"
    api = VultrApi
    settings: ClassVar[dict[str, str]] = {"LOCATION": "ewr", "MACHINE_TYPE": "vbm-4c-32gb", "OS": "1743"}
