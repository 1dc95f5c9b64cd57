"""
A stateful local server of the Equinix Metal API, version 1, for tests and simulated worlds.

It answers the operations on devices, hardware reservations and SSH keys as
the published description says: paging, includes and excludes, errors, states
that lag. What the description leaves open is decided so that a careless
client fails: the hrefs of pages carry the page alone, more entries a page than
``per_page_cap`` are never given, a device that is being made cannot be
deleted, a reservation is not provisionable while a device occupies it.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from simulator.equinix_answers import BASE
from simulator.equinix_front import EquinixFront
from simulator.equinix_records import Device, Reservation, SshKey
from simulator.equinix_state import EquinixState, Lags
from simulator.faults import FaultScript, Rule
from simulator.front import Served
from simulator.http_server import Server

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from simulator.equinix_hardware import Hardware

_NOBODY = "192.0.2.1"


class EquinixApi(Served):
    """
    The API on a port of its own; a context manager.

    All methods are safe to use from any thread while it runs. What it shows of
    its records are copies.
    """

    def __init__(
        self,
        hardware: Hardware,
        *,
        project_id: str,
        api_key: str,
        reservations: int | Sequence[Reservation],
        provision_seconds: float = 0.0,
        queue_seconds: float | None = None,
        action_seconds: float = 0.0,
        deprovision_seconds: float = 0.0,
        per_page_cap: int = 100,
        calls_per_minute: int = 100_000,
        other_projects: Sequence[str] = (),
        faults: Iterable[Rule] = (),
        seed: int = 0,
        address: str = "127.0.0.1",
    ) -> None:
        """
        Make the world and take a port of *address*; nothing is answered before ``start``.

        *reservations* are the project's, or so many alike. A device is active *provision_seconds* after its
        creation, of which it waits *queue_seconds* (None: a tenth) before it is given addresses; reboots and
        power actions take effect after *action_seconds*; a deleted device is gone after *deprovision_seconds*.
        *other_projects* are projects that reservations can be moved to. The same *seed* makes the same ids.
        """
        lags = Lags(
            queue=provision_seconds / 10 if queue_seconds is None else queue_seconds,
            provision=provision_seconds,
            action=action_seconds,
            deprovision=deprovision_seconds,
        )
        given = [Reservation() for _ in range(reservations)] if isinstance(reservations, int) else reservations
        self.faults = FaultScript(faults)
        """What goes wrong; rules can be added at any time."""
        self._state = EquinixState(hardware, lags, (project_id, *other_projects), given, seed)
        self._front = EquinixFront(
            self._state,
            self.faults,
            api_key=api_key,
            per_page_cap=per_page_cap,
            calls_per_minute=calls_per_minute,
        )
        self._server = Server(self._front.reply, address)
        self._address = address
        super().__init__(self._server, self._front, self._state.agenda)

    @property
    def url(self) -> str:
        """Return the base URL, which ends with /metal/v1."""
        return f"http://{self._address}:{self._server.server_port}{BASE}"

    def devices(self) -> list[Device]:
        """Return the devices, the oldest first."""
        with self._state.lock:
            return copy.deepcopy(list(self._state.devices.values()))

    def reservations(self) -> list[Reservation]:
        """Return the reservations of all projects."""
        with self._state.lock:
            return copy.deepcopy(list(self._state.reservations.values()))

    def keys(self) -> list[SshKey]:
        """Return the SSH keys of projects and users."""
        with self._state.lock:
            return copy.deepcopy(list(self._state.keys.values()))

    def add_device_by_hand(
        self, hostname: str, tags: Sequence[str] = (), *, reservation_id: str | None = None, racked: bool = True
    ) -> Device:
        """
        Add a device that is active already, as if somebody had made it in the console, and return it.

        It accepts every key of the project. Unless it is *racked*, nothing stands behind its address.
        """
        state = self._state
        with state.lock:
            reservation = Reservation() if reservation_id is None else state.reservation(reservation_id)
            if reservation_id is not None and state.occupant(reservation_id) is not None:
                raise ValueError(f"reservation {reservation_id} is in use")
            device = Device(
                id=state.new_id(),
                project_id=reservation.project_id or state.projects[0],
                hostname=hostname,
                plan=reservation.plan,
                facility=reservation.facility,
                operating_system="ubuntu_24_04",
                reservation_id=reservation_id,
                tags=list(tags),
                ssh_keys=list(state.keys.values()),
                address=_NOBODY,
                racked=racked,
            )
            authorized = "\n".join(key.key for key in device.ssh_keys)
            if racked:
                device.address = state.hardware.rack(device.id, authorized, 0)
            state.add_active(device)
            return copy.deepcopy(device)

    def snatch(self, reservation_id: str) -> Device:
        """Let somebody else use a free reservation; return their device."""
        return self.add_device_by_hand("somebody-else", reservation_id=reservation_id, racked=False)

    def forget(self, device_id: str) -> None:
        """Let a device and its machine vanish."""
        with self._state.lock:
            self._state.forget(self._state.device(device_id))

    def fail(self, device_id: str) -> None:
        """Let a device fail: the provider gives it up, its machine goes dark."""
        with self._state.lock:
            self._state.fail(self._state.device(device_id))
