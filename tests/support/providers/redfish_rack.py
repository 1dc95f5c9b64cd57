import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from shepherd_core.domain.clock import Clock, Deadline, Permission
from shepherd_core.domain.errors import SecretMissing
from shepherd_core.domain.machine import ProviderId
from shepherd_core.providers.redfish.adapter import REQUEST_SECONDS, RedfishProvider
from shepherd_core.settings.providers.redfish import RedfishSettings

from simulator.providers.kit.hardware import NoHardware
from simulator.providers.redfish.bmcs import RedfishRack
from simulator.providers.redfish.middleware import SimulatedBmc
from tests.conftest import ManualClock

NAME = ProviderId("rack-001")
RESET = "/**/Actions/ComputerSystem.Reset"


@dataclass
class Secrets:
    """A store of secrets with a cache, as the real one has."""

    stored: dict[str, str]
    remembered: dict[str, str] = field(default_factory=dict)
    reads: list[str] = field(default_factory=list)
    """The secrets that were really read."""

    def read(self, name: str) -> str:
        if name not in self.remembered:
            self.reads.append(name)
            if name not in self.stored:
                raise SecretMissing(f"no secret {name!r}")
            self.remembered[name] = self.stored[name]
        return self.remembered[name]

    def invalidate(self, name: str) -> None:
        self.remembered.pop(name, None)


def provider(
    rack: RedfishRack,
    clock: Clock,
    *,
    read_list: Callable[[], bytes] | None = None,
    secrets: Secrets | None = None,
    read_ca: Callable[[], bytes] | None = None,
    seconds: float = REQUEST_SECONDS,
    **settings: Any,
) -> RedfishProvider:
    """Return the adapter for *rack*, with *settings* without their prefix."""
    store = secrets or Secrets(dict(rack.secrets))
    return RedfishProvider(
        RedfishSettings(machines="/unused", **settings),
        read_list or (lambda: rack.document),
        clock,
        read_secret=store.read,
        invalidate_secret=store.invalidate,
        read_ca=read_ca or rack.ca_file.read_bytes,
        seconds=seconds,
    )


@dataclass
class Site:
    """Machines with BMCs, of which tests look at the first."""

    pool: NoHardware
    rack: RedfishRack
    clock: ManualClock
    deadline: Deadline

    @property
    def permission(self) -> Permission:
        return Permission(self.deadline)

    @property
    def bmc(self) -> SimulatedBmc:
        return self.rack.bmcs[NAME]

    @property
    def done(self) -> list[str]:
        return [method for method, name in self.pool.calls if name == NAME][1:]

    @property
    def inserted(self) -> bool:
        return b'"Inserted": true' in self.bmc._forwarded("GET", f"{self.bmc.system}/VirtualMedia/Cd", None).body

    def provider(self, **settings: Any) -> RedfishProvider:
        return provider(self.rack, self.clock, **settings)

    def act(self, action: str, permission: Permission | None = None, **settings: Any) -> None:
        """Let the adapter act on the first machine, and wait until no change of power is under way."""
        getattr(self.provider(**settings), action)(NAME, permission or self.permission)
        self.rack.wait_until_idle()

    def shown_system(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.bmc._forwarded("GET", self.bmc.system, None).body)
        return found

    def source(self, *, media: bool) -> str:
        return self.rack.image_url if media else "pxe"

    def switch_off(self) -> None:
        self.bmc._forwarded("POST", f"{self.bmc.system}/Actions/ComputerSystem.Reset", {"ResetType": "ForceOff"})
        self.rack.wait_until_idle()
        assert self.rack.power(NAME) == "Off"

    def override(self, enabled: str) -> None:
        """Set a boot override, as a person would."""
        self.bmc._set_boot({"BootSourceOverrideTarget": "Pxe", "BootSourceOverrideEnabled": enabled})
