"""The records of the simulated Equinix API: devices and SSH keys."""

from __future__ import annotations

from dataclasses import dataclass, field

from simulator.providers.kit.machines import FakeMachine, FakeMachines, RequestRefused


@dataclass(kw_only=True)
class DeviceRecord(FakeMachine):
    """A deployed server."""

    hostname: str
    operating_system: str
    reservation_id: str | None
    tags: list[str] = field(default_factory=list)
    ssh_keys: list[KeyRecord] = field(default_factory=list)
    """The keys that were put on the machine."""


@dataclass(kw_only=True)
class KeyRecord:
    """An SSH public key of the project."""

    id: str
    label: str
    key: str


class Devices(FakeMachines[DeviceRecord]):
    """The devices of the project."""

    def delete(self, machine: DeviceRecord) -> None:
        """
        Begin to delete a device.

        Raises:
            RequestRefused: it is being made or deleted.
        """
        if machine.state in ("queued", "provisioning", "reinstalling", "deprovisioning"):
            raise self.objection(machine, "delete")
        super().delete(machine)

    def objection(self, machine: DeviceRecord, action: str) -> RequestRefused:
        """Return the answer to an action that the state of a device does not allow."""
        return RequestRefused(422, f"Cannot {action} a device that is {machine.state}")
