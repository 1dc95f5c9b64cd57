"""Shared by the tests of the redfish provider: the adapter in front of a rack, and its secrets."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from shepherd_core.domain.clock import Clock
from shepherd_core.domain.errors import SecretMissing
from shepherd_core.providers.redfish.adapter import RedfishProvider
from shepherd_core.settings.providers.redfish import RedfishSettings

from simulator.providers.redfish.bmcs import RedfishRack


@dataclass
class Secrets:
    """A store of secrets with a cache, as the real one has."""

    stored: dict[str, str]
    remembered: dict[str, str] = field(default_factory=dict)
    reads: list[str] = field(default_factory=list)
    """The secrets that were really read."""

    def read(self, name: str) -> str:
        """Return a secret as it was when it was first read."""
        if name not in self.remembered:
            self.reads.append(name)
            if name not in self.stored:
                raise SecretMissing(f"no secret {name!r}")
            self.remembered[name] = self.stored[name]
        return self.remembered[name]

    def invalidate(self, name: str) -> None:
        """Read it anew next time."""
        self.remembered.pop(name, None)


def provider(
    rack: RedfishRack,
    clock: Clock,
    *,
    read_list: Callable[[], bytes] | None = None,
    secrets: Secrets | None = None,
    **settings: Any,
) -> RedfishProvider:
    """Return the adapter for *rack*, with *settings* without their prefix."""
    store = secrets or Secrets(dict(rack.secrets))
    return RedfishProvider(
        RedfishSettings(redfish_list="/unused", **{f"redfish_{name}": value for name, value in settings.items()}),
        read_list or (lambda: rack.document),
        clock,
        read_secret=store.read,
        invalidate_secret=store.invalidate,
        read_ca=rack.ca_file.read_bytes,
    )
