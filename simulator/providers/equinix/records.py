"""The records of the simulated Equinix API: reservations, devices and SSH keys."""

from __future__ import annotations

from dataclasses import dataclass, field

from simulator.providers.kit.machines import FakeMachine, FakeMachines, RequestRefused


@dataclass(kw_only=True)
class ReservationRecord:
    """A server that the project has reserved: capacity."""

    id: str = ""
    """Filled in when left empty."""
    plan: str = "c3.small.x86"
    facility: str = "da11"
    provisionable: bool = True
    """Set by the vendor; the API shows false also for a spare, and while a device occupies it."""
    spare: bool = False


@dataclass(kw_only=True)
class DeviceRecord(FakeMachine):
    """A deployed server."""

    hostname: str
    plan: str
    facility: str
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


def metro_of(facility: str) -> str:
    """Return the metro of a facility: ``da`` for ``da11``."""
    return facility.rstrip("0123456789")
