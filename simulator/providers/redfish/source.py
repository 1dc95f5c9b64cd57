"""The machine source that simulates your own racks."""

from collections.abc import Collection, Mapping
from typing import ClassVar, Self

from simulator.environment.machine_source import MachineSource, SourceSpec, ssh_key
from simulator.providers.redfish.bmcs import RedfishRack


class Source(MachineSource):
    """Your own racks: a list of machines, each with a BMC in front of sushy-tools' emulator."""

    kind = "machines in a simulated rack, each with a BMC"
    creation_note = "(taken from the machine list: nothing on them changes)"
    power_note = "(by its BMC, at the Recoverer's request over Redfish)"
    every: ClassVar[Mapping[str, int]] = {"provisioner": 5, "updater": 5}
    """Each listing queries every BMC, and one computer emulates them all in accelerated time."""

    def __init__(self, spec: SourceSpec) -> None:
        self._key, public = ssh_key()
        self._server: RedfishRack = RedfishRack(
            spec.pool,
            spec.folder,
            machines=spec.machines,
            authorized_key=public,
            address=spec.address,
            action_seconds=spec.minute / 4,
            fault_rules=spec.faults,
        )

    def __enter__(self) -> Self:
        super().__enter__()
        self.environment = self._server.environment
        self.secrets = {**self._server.secrets, **self._key}
        return self

    @property
    def calls(self) -> int:
        """See ``MachineSource``."""
        return self._server.calls

    def names(self) -> Collection[str]:
        """See ``MachineSource``."""
        return self._server.names
