"""
A stateful local server of the Equinix Metal API, version 1, for tests and simulated environments.

It answers the requests that Shepherd sends about devices, hardware reservations
and SSH keys as the published description says: paging, includes and excludes,
errors, states that lag; it refuses others. Where the description is silent, it
does what makes a careless client fail: the hrefs of pages hold the page number
alone, a page never has more entries than ``per_page_cap``, a device that is
being made cannot be deleted, and a reservation is not provisionable while a
device occupies it.
"""

import copy
from collections.abc import Iterable, Sequence

from simulator.environment.faults import Rule
from simulator.providers.equinix.devices import DeviceOperations
from simulator.providers.equinix.keys import KeyOperations, authorized_lines
from simulator.providers.equinix.records import DeviceRecord, KeyRecord, ReservationRecord
from simulator.providers.equinix.state import EquinixState
from simulator.providers.kit.hardware import Hardware
from simulator.providers.kit.machines import Options

_UNREACHABLE = "192.0.2.1"  # reserved for documentation: no host has it


class EquinixApi(DeviceOperations, KeyOperations):
    """
    The API on its own port; a context manager.

    All methods are safe to use from any thread while it runs. The records it
    returns are copies.
    """

    def __init__(
        self,
        hardware: Hardware,
        *,
        project_id: str,
        api_key: str,
        reservations: int | Sequence[ReservationRecord],
        options: Options | None = None,
        faults: Iterable[Rule] = (),
        address: str = "127.0.0.1",
    ) -> None:
        """Create the project with its *reservations* (a number: that many of one kind); answer from ``start`` on."""
        options = options or Options()
        given = [ReservationRecord() for _ in range(reservations)] if isinstance(reservations, int) else reservations
        state = EquinixState(hardware, options, project_id, given)
        super().__init__(hardware, secret=api_key, options=options, faults=faults, address=address, machines=state)

    def devices(self) -> list[DeviceRecord]:
        """Return the devices, oldest first."""
        with self.machines.lock:
            return copy.deepcopy(list(self.machines.all.values()))

    def reservations(self) -> list[ReservationRecord]:
        """Return the reservations."""
        with self.machines.lock:
            return copy.deepcopy(list(self.machines.reservations.values()))

    def keys(self) -> list[KeyRecord]:
        """Return the SSH keys."""
        with self.machines.lock:
            return copy.deepcopy(list(self.machines.keys.values()))

    def add_active_device(
        self, hostname: str, tags: Sequence[str] = (), *, reservation_id: str | None = None, racked: bool = True
    ) -> DeviceRecord:
        """
        Add an active device, as an operator would in the console, and return it.

        It accepts every key of the project. Unless it is *racked*, nothing answers at its address.
        """
        state = self.machines
        with state.lock:
            reservation = ReservationRecord() if reservation_id is None else state.reservation(reservation_id)
            if reservation_id is not None and state.occupant(reservation_id) is not None:
                raise ValueError(f"reservation {reservation_id} is in use")
            keys = list(state.keys.values())
            device = DeviceRecord(
                id=state.new_id(),
                hostname=hostname,
                plan=reservation.plan,
                facility=reservation.facility,
                operating_system="ubuntu_24_04",
                reservation_id=reservation_id,
                tags=list(tags),
                ssh_keys=keys,
                authorized_key=authorized_lines(keys),
                address=None if racked else _UNREACHABLE,
            )
            state.add_active(device)
            return copy.deepcopy(device)

    def occupy(self, reservation_id: str) -> DeviceRecord:
        """Put another user's device on a free reservation and return it."""
        return self.add_active_device("somebody-else", reservation_id=reservation_id, racked=False)

    def forget(self, device_id: str) -> None:
        """Make a device and its machine vanish."""
        with self.machines.lock:
            self.machines.forget(self.machines.device(device_id))

    def fail(self, device_id: str) -> None:
        """Make a device fail: its state is ``failed`` and its machine is off."""
        with self.machines.lock:
            self.machines.fail(self.machines.device(device_id))
