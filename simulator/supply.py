"""Where the machines of a simulated world come from: a provider, or racks of one's own."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from shepherd_core import ssh_key
from shepherd_core.providers.equinix_objects import TOKEN_TAG

from simulator.equinix_api import EquinixApi
from simulator.hetzner_robot import HetznerRobot
from simulator.redfish_bmcs import RedfishRack

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from types import TracebackType

    from simulator.faults import Rule
    from simulator.machines import MachinePark

_MADE_UP = "made-up-secret-of-a-simulated-provider"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a simulated provider is to have."""

    park: MachinePark
    """Where its machines stand."""
    machines: int
    minute: float
    """The seconds that a minute of the fleet takes here."""
    address: str
    """Of this computer: where it serves."""
    faults: Sequence[Rule]
    """What goes wrong."""
    seed: int
    """What chance depends on."""


class Supply(ABC):
    """A simulated provider; a context manager that serves until it is left."""

    kind: ClassVar[str]
    """What its capacity is, for people."""
    taking: ClassVar[str] = ""
    """What it means that a machine is created."""
    switching: ClassVar[str] = ""
    """Who switches a machine, and why, where there is more to say than that it reboots."""
    every: ClassVar[Mapping[str, int]] = {}
    """The minutes between two invocations of functions that should not be invoked every minute."""
    environment: Mapping[str, str]
    """What the functions are told about it; known when it serves, as the secrets are."""
    secrets: Mapping[str, str]
    """What an operator has to store for it, by the name of the SSM parameter."""
    _server: Any

    @abstractmethod
    def __init__(self, order: Order) -> None: ...

    def __enter__(self) -> Self:
        self._server.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.__exit__(kind, error, trace)

    @property
    def errors(self) -> Sequence[Exception]:
        """Return what went wrong in the simulation itself."""
        errors: Sequence[Exception] = self._server.errors
        return errors

    @property
    def calls(self) -> int:
        """Return how many requests it has had."""
        return int(self._server.calls.total())

    @abstractmethod
    def names(self) -> Collection[str]:
        """Return the provider ids of the machines that it has."""

    def in_use(self) -> dict[str, str | None]:
        """Return those that it knows to be ours, and the token of each, if it has one."""
        return {}


class EquinixSupply(Supply):
    """A project at Equinix Metal with so many reservations."""

    kind = "reservations at a simulated provider"
    taking = "(nobody calls on them for five minutes: so long they usually take to boot)"

    def __init__(self, order: Order) -> None:
        project, parameter = "6c3c3c2f-0d0e-4f43-9b3e-5c0f5c1b7a10", "/shepherd/equinix-api-key"
        self._server: EquinixApi = EquinixApi(
            order.park,
            project_id=project,
            api_key=_MADE_UP,
            reservations=order.machines,
            provision_seconds=3 * order.minute,
            action_seconds=order.minute / 4,
            faults=order.faults,
            seed=order.seed,
            address=order.address,
        )
        self.environment = {
            "SHEPHERD_PROVIDER": "equinix",
            "SHEPHERD_EQUINIX_PROJECT_ID": project,
            "SHEPHERD_EQUINIX_API_KEY_PARAMETER": parameter,
            "SHEPHERD_EQUINIX_API_URL": self._server.url,
            "SHEPHERD_EQUINIX_DEVICE_PREFIX": "fleet-",
            "SHEPHERD_EQUINIX_KEY_LABEL": "shepherd",
        }
        self.secrets = {parameter: _MADE_UP}

    def names(self) -> Collection[str]:
        """See ``Supply``."""
        return {device.id for device in self._server.devices()}

    def in_use(self) -> dict[str, str | None]:
        """See ``Supply``."""
        return {
            device.id: next((tag.removeprefix(TOKEN_TAG) for tag in device.tags if tag.startswith(TOKEN_TAG)), None)
            for device in self._server.devices()
        }


class RedfishSupply(Supply):
    """Racks of one's own: a list of so many machines, each with a BMC that sushy-tools' emulator is behind."""

    kind = "machines in a simulated rack, each with a BMC"
    taking = "(taken as the list has them: nothing on them changes)"
    switching = "(by its BMC: the Recoverer has it reset the machine, over Redfish)"
    every: ClassVar[Mapping[str, int]] = {"provisioner": 5, "updater": 5}
    """Each listing asks every BMC, and one computer plays them all, at many times their pace."""

    def __init__(self, order: Order) -> None:
        self._key, public = _ssh_key()
        self._server: RedfishRack = RedfishRack(
            order.park,
            machines=order.machines,
            authorized_key=public,
            address=order.address,
            action_seconds=order.minute / 4,
            fault_rules=order.faults,
        )

    def __enter__(self) -> Self:
        super().__enter__()
        # Shorter than a function may work on a machine.
        self.environment = {**self._server.environment, "SHEPHERD_REDFISH_TIMEOUT_SECONDS": "10"}
        self.secrets = {**self._server.secrets, **self._key}
        return self

    @property
    def calls(self) -> int:
        """See ``Supply``."""
        return self._server.calls

    def names(self) -> Collection[str]:
        """See ``Supply``."""
        return self._server.names


class HetznerSupply(Supply):
    """An account with so many rented servers."""

    kind = "rented servers in a simulated account"
    taking = "(taken as they are rented: nothing on them changes)"
    switching = "(Robot presses the reset button, as the Recoverer asks it to)"
    every: ClassVar[Mapping[str, int]] = {"provisioner": 5, "updater": 5}
    """As docs/providers/hetzner.md advises for a fleet that grows: listings are counted by the hour."""

    def __init__(self, order: Order) -> None:
        key, public = _ssh_key()
        parameter = "/shepherd/hetzner-credential"
        self._server: HetznerRobot = HetznerRobot(
            order.park,
            user="#ws+simulated",
            password=_MADE_UP,
            servers=order.machines,
            authorized_key=public,
            action_seconds=order.minute / 4,
            clock=lambda: time.monotonic() * 60 / order.minute,
            faults=order.faults,
            address=order.address,
        )
        self.environment = {
            "SHEPHERD_PROVIDER": "hetzner",
            "SHEPHERD_HETZNER_CREDENTIAL_PARAMETER": parameter,
            "SHEPHERD_HETZNER_NAME_PREFIX": "server-",
            "SHEPHERD_HETZNER_KEY_NAME": "shepherd",
            "SHEPHERD_HETZNER_API_URL": self._server.url,
            "SHEPHERD_HETZNER_REBOOT": "hardware",  # what is wedged does not hear Ctrl+Alt+Del
        }
        self.secrets = {parameter: f"#ws+simulated:{_MADE_UP}", **key}

    def names(self) -> Collection[str]:
        """See ``Supply``."""
        return {str(server.number) for server in self._server.servers()}


SUPPLIES: Mapping[str, type[Supply]] = {
    "equinix": EquinixSupply,
    "redfish": RedfishSupply,
    "hetzner": HetznerSupply,
}
"""By provider. Not ``static``, which can reboot nothing, nor ``ec2``, whose simulation has no machines behind it."""


def _ssh_key() -> tuple[dict[str, str], str]:
    """Return the secret and the public line of the key that machines accept which are there before we are."""
    private = ssh_key.generate()
    return {"/shepherd/ssh-key": private}, ssh_key.public_line(private)
