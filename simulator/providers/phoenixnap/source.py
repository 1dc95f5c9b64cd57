"""The machine source that simulates phoenixNAP's Bare Metal Cloud."""

from typing import ClassVar

from simulator.providers.kit.rest_source import RestSource
from simulator.providers.phoenixnap.api import PhoenixnapApi


class Source(RestSource):
    """An account of the Bare Metal Cloud."""

    provider = "phoenixnap"
    api = PhoenixnapApi
    credential = "client:{}"
    settings: ClassVar[dict[str, str]] = {"LOCATION": "PHX", "MACHINE_TYPE": "s1.c1.small", "AUTH_URL": "{}/token"}
