"""The state of the simulated Equinix API: devices on reservations, and SSH keys."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from simulator.providers.equinix.records import PENDING, DeviceRecord, KeyRecord, ReservationRecord
from simulator.providers.kit.hardware import Hardware
from simulator.providers.kit.machines import FakeMachines, Options, Refused, States

R = TypeVar("R")


class EquinixState(FakeMachines[DeviceRecord]):
    """Reservations, devices and keys of one project."""

    def __init__(
        self, hardware: Hardware, options: Options, project_id: str, reservations: Sequence[ReservationRecord]
    ) -> None:
        super().__init__(hardware, options, States())
        self.project_id = project_id
        given = [replace(spec, id=spec.id or self.new_id()) for spec in reservations]
        self.reservations = {reservation.id: reservation for reservation in given}
        self._occupants: dict[str, DeviceRecord] = {}
        self.keys: dict[str, KeyRecord] = {}
        self._addresses = 0

    def occupant(self, reservation_id: str) -> DeviceRecord | None:
        """Return the device on a reservation, None if it is free."""
        return self._occupants.get(reservation_id)

    def check_project(self, project_id: str) -> None:
        """
        Check that a request is for the project.

        Raises:
            Refused: there is no such project. The next three methods raise it likewise.
        """
        if project_id != self.project_id:
            raise Refused(404, "Not found")

    def device(self, device_id: str) -> DeviceRecord:
        """Return a device."""
        return _found(self.all, device_id)

    def reservation(self, reservation_id: str) -> ReservationRecord:
        """Return a reservation."""
        return _found(self.reservations, reservation_id)

    def key(self, key_id: str) -> KeyRecord:
        """Return an SSH key."""
        return _found(self.keys, key_id)

    def delete(self, machine: DeviceRecord) -> None:
        """
        Begin to delete a device.

        Raises:
            Refused: it is being created or deleted.
        """
        if machine.state in (*PENDING, "deprovisioning"):
            doing = "deprovisioning" if machine.state == "deprovisioning" else "provisioning"
            raise Refused(422, f"Cannot delete a device while it is {doing}")
        super().delete(machine)

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
        return Refused(422, f"Cannot {action} a device that is {machine.state}")


def _found(records: dict[str, R], identity: str) -> R:
    if identity not in records:
        raise Refused(404, "Not found")
    return records[identity]
