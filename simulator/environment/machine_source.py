"""Machine sources of simulated environments: a provider, or your own racks. ``simulator.providers`` has the table."""

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import Any, ClassVar, Self

from shepherd_core.adapters import ssh_keys

from simulator.closeable import Closeable
from simulator.environment.faults import Rule
from simulator.machines.pool import MachinePool
from simulator.providers.kit.fault_script import FaultScript

SSH_KEY_PARAMETER = "/shepherd/ssh-key"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSpec:
    """The specification of a simulated provider."""

    pool: MachinePool
    """The pool of its machines."""
    folder: Path
    """An empty folder for its files."""
    machines: int
    minute: float
    """The real seconds of a minute of fleet time."""
    address: str
    """The IP address of this computer at which it serves."""
    faults: Sequence[Rule]
    seed: int
    """The seed of its random numbers."""
    secret: str = field(default_factory=token_hex)
    """The secret that clients of its API must have."""


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
    def faults(self) -> FaultScript:
        """Return the faults of its API."""
        faults: FaultScript = self._server.faults
        return faults

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


def ssh_key() -> tuple[dict[str, str], str]:
    """Return the SSM parameters of a new SSH key, and its public line."""
    private = ssh_keys.generate()
    public = ssh_keys.public_line(private)
    return {SSH_KEY_PARAMETER: private, ssh_keys.public_parameter(SSH_KEY_PARAMETER): public}, public
