"""The machine sources of simulated environments: a provider, or your own racks."""

from __future__ import annotations

import time
from abc import abstractmethod
from dataclasses import dataclass, field
from secrets import token_hex
from typing import TYPE_CHECKING, Any, ClassVar, Self

from shepherd_core.adapters import ssh_keys
from shepherd_core.providers.equinix.objects import TOKEN_TAG

from simulator.lifecycle import Closeable
from simulator.providers.equinix.api import EquinixApi, EquinixOptions
from simulator.providers.hetzner.robot import HetznerRobot, RobotOptions
from simulator.providers.redfish.bmcs import RedfishRack

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from simulator.environment.faults import Rule
    from simulator.machines.pool import MachinePool


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSpec:
    """The specification of a simulated provider."""

    pool: MachinePool
    """The pool of its machines."""
    machines: int
    minute: float
    """The real seconds of a minute of fleet time."""
    address: str
    """The IP address of this computer at which it serves."""
    faults: Sequence[Rule]
    seed: int
    """The seed of its random numbers."""
    secret: str = field(default_factory=token_hex)
    """What its API asks of clients."""


class MachineSource(Closeable):
    """A simulated provider; a context manager that serves from entry to exit."""

    kind: ClassVar[str]
    """A human-readable description of its capacity."""
    creation_note: ClassVar[str] = ""
    """A human-readable remark on the creation of a machine."""
    power_note: ClassVar[str] = ""
    """A human-readable remark on a change of power, if it is more than a reboot."""
    every: ClassVar[Mapping[str, int]] = {}
    """The minutes between two invocations of a function; default 1."""
    environment: Mapping[str, str]
    """The environment variables of the functions; set on entry, like the secrets."""
    secrets: Mapping[str, str]
    """The secrets that an operator stores for it, by the name of the SSM parameter."""
    _server: Any

    @abstractmethod
    def __init__(self, spec: SourceSpec) -> None: ...

    def __enter__(self) -> Self:
        self._server.__enter__()
        return self

    def close(self) -> None:
        """Stop serving."""
        self._server.close()

    @property
    def errors(self) -> Sequence[Exception]:
        """Return the errors of the simulator itself."""
        errors: Sequence[Exception] = self._server.errors
        return errors

    @property
    def calls(self) -> int:
        """Return the number of requests."""
        return int(self._server.calls.total())

    @abstractmethod
    def names(self) -> Collection[str]:
        """Return the provider ids of its machines."""

    def in_use(self) -> dict[str, str | None]:
        """Return the machines that it marks as Shepherd's, with the idempotency token of each, if any."""
        return {}


class EquinixSource(MachineSource):
    """A project at Equinix Metal with reservations."""

    kind = "reservations at a simulated provider"
    creation_note = "(not contacted for five minutes, the usual boot time)"

    def __init__(self, spec: SourceSpec) -> None:
        project, parameter = "6c3c3c2f-0d0e-4f43-9b3e-5c0f5c1b7a10", "/shepherd/equinix-api-key"
        self._server: EquinixApi = EquinixApi(
            spec.pool,
            project_id=project,
            api_key=spec.secret,
            reservations=spec.machines,
            options=EquinixOptions(provision_seconds=3 * spec.minute, action_seconds=spec.minute / 4, seed=spec.seed),
            faults=spec.faults,
            address=spec.address,
        )
        self.environment = {
            "SHEPHERD_PROVIDER": "equinix",
            "SHEPHERD_EQUINIX_PROJECT_ID": project,
            "SHEPHERD_EQUINIX_API_KEY_PARAMETER": parameter,
            "SHEPHERD_EQUINIX_API_URL": self._server.url,
            "SHEPHERD_EQUINIX_DEVICE_PREFIX": "fleet-",
            "SHEPHERD_EQUINIX_KEY_LABEL": "shepherd",
        }
        self.secrets = {parameter: spec.secret}

    def names(self) -> Collection[str]:
        """See ``MachineSource``."""
        return {device.id for device in self._server.devices()}

    def in_use(self) -> dict[str, str | None]:
        """See ``MachineSource``."""
        return {
            device.id: next((tag.removeprefix(TOKEN_TAG) for tag in device.tags if tag.startswith(TOKEN_TAG)), None)
            for device in self._server.devices()
        }


class RedfishSource(MachineSource):
    """Your own racks: a list of machines, each with a BMC in front of sushy-tools' emulator."""

    kind = "machines in a simulated rack, each with a BMC"
    creation_note = "(taken from the machine list: nothing on them changes)"
    power_note = "(by its BMC, at the Recoverer's request over Redfish)"
    every: ClassVar[Mapping[str, int]] = {"provisioner": 5, "updater": 5}
    """Each listing queries every BMC, and one computer emulates them all in accelerated time."""

    def __init__(self, spec: SourceSpec) -> None:
        self._key, public = _ssh_key()
        self._server: RedfishRack = RedfishRack(
            spec.pool,
            machines=spec.machines,
            authorized_key=public,
            address=spec.address,
            action_seconds=spec.minute / 4,
            fault_rules=spec.faults,
        )

    def __enter__(self) -> Self:
        super().__enter__()
        # Shorter than the time that a function may work on a machine.
        self.environment = {**self._server.environment, "SHEPHERD_REDFISH_TIMEOUT_SECONDS": "10"}
        self.secrets = {**self._server.secrets, **self._key}
        return self

    @property
    def calls(self) -> int:
        """See ``MachineSource``."""
        return self._server.calls

    def names(self) -> Collection[str]:
        """See ``MachineSource``."""
        return self._server.names


class HetznerSource(MachineSource):
    """An account with rented servers."""

    kind = "rented servers in a simulated account"
    creation_note = "(taken as they are: nothing on them changes)"
    power_note = "(by Robot's reset button, at the Recoverer's request)"
    every: ClassVar[Mapping[str, int]] = {"provisioner": 5, "updater": 5}
    """As docs/providers/hetzner.md advises for a growing fleet, because listings are limited by the hour."""

    def __init__(self, spec: SourceSpec) -> None:
        key, public = _ssh_key()
        parameter = "/shepherd/hetzner-credential"
        self._server: HetznerRobot = HetznerRobot(
            spec.pool,
            user="#ws+simulated",
            password=spec.secret,
            servers=spec.machines,
            options=RobotOptions(
                action_seconds=spec.minute / 4,
                clock=lambda: time.monotonic() * 60 / spec.minute,
                authorized_key=public,
            ),
            faults=spec.faults,
            address=spec.address,
        )
        self.environment = {
            "SHEPHERD_PROVIDER": "hetzner",
            "SHEPHERD_HETZNER_CREDENTIAL_PARAMETER": parameter,
            "SHEPHERD_HETZNER_NAME_PREFIX": "server-",
            "SHEPHERD_HETZNER_KEY_NAME": "shepherd",
            "SHEPHERD_HETZNER_API_URL": self._server.url,
            "SHEPHERD_HETZNER_REBOOT": "hardware",  # a hanging machine ignores Ctrl+Alt+Del
        }
        self.secrets = {parameter: f"#ws+simulated:{spec.secret}", **key}

    def names(self) -> Collection[str]:
        """See ``MachineSource``."""
        return {str(server.number) for server in self._server.servers()}


MACHINE_SOURCES: Mapping[str, type[MachineSource]] = {
    "equinix": EquinixSource,
    "redfish": RedfishSource,
    "hetzner": HetznerSource,
}
"""By provider. Without ``static``, which cannot reboot, and ``ec2``, whose simulation has no machines."""


def _ssh_key() -> tuple[dict[str, str], str]:
    """Return secret and public line of a key for machines that exist before Shepherd does."""
    private = ssh_keys.generate()
    return {"/shepherd/ssh-key": private}, ssh_keys.public_line(private)
