"""Where the machines of a simulated world come from: a provider, or racks of one's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self

from shepherd_core.providers.equinix_objects import TOKEN_TAG

from simulator.equinix_api import EquinixApi

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from simulator.faults import Rule
    from simulator.machines import MachinePark

_PROJECT = "6c3c3c2f-0d0e-4f43-9b3e-5c0f5c1b7a10"
_API_KEY = "made-up-key-of-the-simulated-project"
_API_KEY_PARAMETER = "/shepherd/equinix-api-key"


class Supply(Protocol):
    """A simulated provider; a context manager that serves until it is left."""

    environment: Mapping[str, str]
    """What the functions are told about it."""
    secrets: Mapping[str, str]
    """What an operator has to store for it, by the name of the SSM parameter."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    @property
    def errors(self) -> Sequence[object]:
        """Return what went wrong in the simulation itself."""

    @property
    def calls(self) -> int:
        """Return how many requests it has had."""

    def unused(self) -> int:
        """Return how much capacity it has that is no machine yet."""

    def in_use(self) -> dict[str, str | None]:
        """Return the provider ids of the machines that it knows to be ours, and the token of each, if it has one."""


class EquinixSupply:
    """A project at Equinix Metal with so many reservations."""

    def __init__(
        self,
        park: MachinePark,
        *,
        machines: int,
        minute: float,
        address: str,
        faults: Sequence[Rule],
        seed: int,
    ) -> None:
        """*minute*: the seconds that a minute of the fleet takes here."""
        self.api = EquinixApi(
            park,
            project_id=_PROJECT,
            api_key=_API_KEY,
            reservations=machines,
            provision_seconds=3 * minute,
            action_seconds=minute / 4,
            faults=faults,
            seed=seed,
            address=address,
        )
        self.environment: Mapping[str, str] = {
            "SHEPHERD_PROVIDER": "equinix",
            "SHEPHERD_EQUINIX_PROJECT_ID": _PROJECT,
            "SHEPHERD_EQUINIX_API_KEY_PARAMETER": _API_KEY_PARAMETER,
            "SHEPHERD_EQUINIX_API_URL": self.api.url,
            "SHEPHERD_EQUINIX_DEVICE_PREFIX": "fleet-",
            "SHEPHERD_EQUINIX_KEY_LABEL": "shepherd",
        }
        self.secrets: Mapping[str, str] = {_API_KEY_PARAMETER: _API_KEY}

    def __enter__(self) -> Self:
        self.api.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.api.__exit__(kind, error, trace)

    @property
    def errors(self) -> Sequence[object]:
        """See ``Supply``."""
        return self.api.errors

    @property
    def calls(self) -> int:
        """See ``Supply``."""
        return self.api.calls.total()

    def unused(self) -> int:
        """See ``Supply``."""
        occupied = {device.reservation_id for device in self.api.devices()}
        return sum(reservation.id not in occupied for reservation in self.api.reservations())

    def in_use(self) -> dict[str, str | None]:
        """See ``Supply``."""
        return {
            device.id: next((tag.removeprefix(TOKEN_TAG) for tag in device.tags if tag.startswith(TOKEN_TAG)), None)
            for device in self.api.devices()
        }
