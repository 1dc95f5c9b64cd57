"""The state of the simulated Equinix API: devices on reservations, and SSH keys."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from simulator.providers.equinix.records import PENDING, DeviceRecord, KeyRecord, ReservationRecord, now
from simulator.providers.kit.hardware import Hardware
from simulator.providers.kit.machines import FakeMachines, Options, Refused, States

R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class EquinixOptions(Options):
    """Durations and limits of the simulated API."""

    other_projects: Sequence[str] = ()
    """Projects that reservations can be moved to."""


class EquinixState(FakeMachines[DeviceRecord]):
    """Reservations, devices and keys of some projects."""

    def __init__(
        self,
        hardware: Hardware,
        options: EquinixOptions,
        projects: Sequence[str],
        reservations: Sequence[ReservationRecord],
    ) -> None:
        """Reservations that name no project belong to the first."""
        super().__init__(hardware, options, States())
        self.projects = tuple(projects)
        self.user_id = self.new_id()
        given = [
            replace(spec, id=spec.id or self.new_id(), project_id=spec.project_id or projects[0])
            for spec in reservations
        ]
        self.reservations = {reservation.id: reservation for reservation in given}
        self._occupants: dict[str, DeviceRecord] = {}
        self.keys: dict[str, KeyRecord] = {}
        self._addresses = 0

    def occupant(self, reservation_id: str) -> DeviceRecord | None:
        """Return the device on a reservation, None if it is free."""
        return self._occupants.get(reservation_id)

    def project(self, project_id: str) -> str:
        """
        Return the path of a project.

        Raises:
            Refused: there is no such project. The next three methods raise it likewise.
        """
        if project_id not in self.projects:
            raise Refused(404, "Not found")
        return f"/projects/{project_id}"

    def device(self, device_id: str) -> DeviceRecord:
        """Return a device."""
        return _found(self.all, device_id)

    def reservation(self, reservation_id: str) -> ReservationRecord:
        """Return a reservation."""
        return _found(self.reservations, reservation_id)

    def key(self, key_id: str) -> KeyRecord:
        """Return an SSH key."""
        return _found(self.keys, key_id)

    def act(self, machine: DeviceRecord, action: str) -> None:
        """Begin an action; a rescue restarts the device."""
        taken = len(machine.actions_taken)
        super().act(machine, "reboot" if action == "rescue" else action)
        machine.actions_taken[taken] = action

    def delete(self, machine: DeviceRecord) -> None:
        """
        Begin to delete a device.

        Raises:
            Refused: it is locked, or being created or deleted.
        """
        if machine.locked:
            raise Refused(422, "Cannot delete a locked device")
        if machine.state in (*PENDING, "deprovisioning"):
            doing = "deprovisioning" if machine.state == "deprovisioning" else "provisioning"
            raise Refused(422, f"Cannot delete a device while it is {doing}")
        super().delete(machine)

    def change(self, machine: DeviceRecord, state: str) -> None:
        """Set the state, with an event."""
        super().change(machine, state)
        machine.updated_at = now()
        event = {"id": self.new_id(), "type": f"device.{state}", "body": f"The device is {state}"}
        machine.events.append({**event, "state": "success", "created_at": now()})

    def put(self, machine: DeviceRecord) -> None:
        """Store a device, on its reservation."""
        super().put(machine)
        if machine.reservation_id is not None:
            self._occupants[machine.reservation_id] = machine

    def drop(self, machine: DeviceRecord) -> None:
        """Remove a device, and free its reservation."""
        super().drop(machine)
        if machine.reservation_id is not None:
            del self._occupants[machine.reservation_id]

    def racked(self, machine: DeviceRecord) -> None:
        """Give a device its private address."""
        self._addresses += 1
        high, low = divmod(self._addresses, 250)
        machine.private_address = f"10.70.{high % 256}.{low + 1}"

    def objection(self, machine: DeviceRecord, action: str) -> Refused:
        """Return the answer to an action that the state of a device does not allow."""
        needs = {"inactive": "on", "active": "off"}.get(machine.state)
        if needs is None or action == "reinstall":
            return Refused(422, f"Cannot {action} a device that is {machine.state}")
        return Refused(422, f"Device must be powered {needs}")


def _found(records: dict[str, R], identity: str) -> R:
    if identity not in records:
        raise Refused(404, "Not found")
    return records[identity]
