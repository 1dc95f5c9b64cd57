"""The state of the simulated Equinix API and its life: what changes, when, and what hardware is told."""

from __future__ import annotations

import random
import threading
import time
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from simulator.equinix_agenda import Agenda
from simulator.equinix_records import PENDING, Device, Refused, Reservation, SshKey, now

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from simulator.equinix_hardware import Hardware


R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class Lags:
    """Seconds that the API takes."""

    queue: float
    """From creation until provisioning begins."""
    provision: float
    """From creation until the device is active; the same again for a reinstall."""
    action: float
    """From a reboot or power action until it takes effect."""
    deprovision: float
    """From deletion until the device is gone and its reservation free."""


class EquinixState:
    """
    Reservations, devices and keys of some projects.

    Whoever reads or changes holds ``lock``. Hardware is told from the agenda's
    thread, without the lock.
    """

    def __init__(
        self, hardware: Hardware, lags: Lags, projects: Sequence[str], reservations: Sequence[Reservation], seed: int
    ) -> None:
        """Reservations that name no project are the first project's."""
        self.lock = threading.RLock()
        self.agenda = Agenda()
        self.hardware = hardware
        self.lags = lags
        self.projects = tuple(projects)
        self._random = random.Random(seed)
        self.user_id = self.new_id()
        given = [
            replace(spec, id=spec.id or self.new_id(), project_id=spec.project_id or projects[0])
            for spec in reservations
        ]
        self.reservations = {reservation.id: reservation for reservation in given}
        self.devices: dict[str, Device] = {}
        self._occupants: dict[str, Device] = {}
        self.keys: dict[str, SshKey] = {}
        self._addresses = 0

    def new_id(self) -> str:
        """Return a new UUID; the same ones for the same seed, if asked for in the same order."""
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    def occupant(self, reservation_id: str) -> Device | None:
        """Return the device on a reservation, None if it is free."""
        return self._occupants.get(reservation_id)

    def project(self, project_id: str) -> str:
        """
        Return the path of a project.

        Raises:
            Refused: there is no such project. The same for the three methods that follow.
        """
        if project_id not in self.projects:
            raise Refused(404, "Not found")
        return f"/projects/{project_id}"

    def device(self, device_id: str) -> Device:
        """Return a device."""
        return _found(self.devices, device_id)

    def reservation(self, reservation_id: str) -> Reservation:
        """Return a reservation."""
        return _found(self.reservations, reservation_id)

    def key(self, key_id: str) -> SshKey:
        """Return an SSH key."""
        return _found(self.keys, key_id)

    def add(self, device: Device) -> None:
        """Take in a device that is queued, and begin its life."""
        self._put(device)
        self._event(device, "queued")
        self._later(self.lags.queue, device, self._provision)

    def add_active(self, device: Device) -> None:
        """Take in a device that is active already."""
        device.state = "active"
        self._put(device)
        self._assign_private(device)
        self._event(device, "active")

    def act(self, device: Device, action: str) -> None:
        """
        Begin an action on a device; it takes effect later.

        Raises:
            Refused: the device is not in a state for it.
        """
        if device.state not in _ALLOWED[action]:
            raise Refused(422, _REFUSAL.get((action, device.state), f"Cannot {action} a device that is {device.state}"))
        device.actions_taken.append(action)
        match action:
            case "reboot" | "rescue":
                self._hardware_later(device, self.hardware.reboot, then=None)
            case "power_off":
                self._change(device, "powering_off")
                self._hardware_later(device, self.hardware.power_off, then="inactive")
            case "power_on":
                self._change(device, "powering_on")
                self._hardware_later(device, self.hardware.power_on, then="active")
            case "reinstall":
                self._change(device, "reinstalling")
                device.queued_at = time.monotonic()
                self._hardware_later(device, self.hardware.reinstall, then=None)
                self._later(self.lags.action + self.lags.provision, device, self._activate)

    def delete(self, device: Device) -> None:
        """
        Begin to take a device away.

        Raises:
            Refused: it is locked, being made, or being taken away already.
        """
        if device.locked:
            raise Refused(422, "Cannot delete a locked device")
        if device.state in (*PENDING, "deprovisioning"):
            doing = "deprovisioning" if device.state == "deprovisioning" else "provisioning"
            raise Refused(422, f"Cannot delete a device while it is {doing}")
        self._change(device, "deprovisioning")
        self._remove_hardware(device)
        self._later(self.lags.deprovision, device, self._drop)

    def forget(self, device: Device) -> None:
        """Let a device vanish without a trace."""
        device.life += 1
        self._drop(device)
        self._remove_hardware(device)

    def fail(self, device: Device) -> None:
        """Give a device up; its hardware goes dark."""
        self._change(device, "failed")

        def run() -> None:
            if device.racked:
                self.hardware.power_off(device.id)

        self.agenda.after(0, run)

    def _put(self, device: Device) -> None:
        self.devices[device.id] = device
        if device.reservation_id is not None:
            self._occupants[device.reservation_id] = device

    def _drop(self, device: Device) -> None:
        del self.devices[device.id]
        if device.reservation_id is not None:
            del self._occupants[device.reservation_id]

    def _later(self, seconds: float, device: Device, step: Callable[[Device], object]) -> None:
        """Run *step* under the lock unless the life of the device took another course until then."""
        life = device.life

        def run() -> None:
            with self.lock:
                if device.life == life:
                    step(device)

        self.agenda.after(seconds, run)

    def _hardware_later(self, device: Device, method: Callable[[str], None], then: str | None) -> None:
        """Tell the hardware after the lag, outside the lock; then the device is in state *then*."""
        life = device.life

        def run() -> None:
            with self.lock:
                wanted = device.life == life
            if wanted and device.racked:
                method(device.id)
            with self.lock:
                if then is not None and device.life == life:
                    self._change(device, then)

        self.agenda.after(self.lags.action, run)

    def _remove_hardware(self, device: Device) -> None:
        def run() -> None:
            if device.racked:
                device.racked = False
                self.hardware.remove(device.id)

        self.agenda.after(0, run)

    def _provision(self, device: Device) -> None:
        self._change(device, "provisioning")
        life = device.life
        left = max(0.0, self.lags.provision - self.lags.queue)
        authorized = "\n".join(key.key for key in device.ssh_keys)

        def rack() -> None:
            if device.life != life:
                return
            try:
                address = self.hardware.rack(device.id, authorized, left)
            except Exception:
                with self.lock:
                    if device.life == life:
                        self._change(device, "failed")
                raise
            with self.lock:
                device.racked = True
                device.address = address
                self._assign_private(device)

        self.agenda.after(0, rack)
        self._later(left, device, self._activate)

    def _activate(self, device: Device) -> None:
        self._change(device, "active")

    def _change(self, device: Device, state: str) -> None:
        """Set the state, and drop the plans made in the old one."""
        device.state = state
        device.life += 1
        device.updated_at = now()
        self._event(device, state)

    def _event(self, device: Device, state: str) -> None:
        event: dict[str, Any] = {"id": self.new_id(), "type": f"device.{state}", "body": f"The device is {state}"}
        device.events.append({**event, "state": "success", "created_at": now()})

    def _assign_private(self, device: Device) -> None:
        self._addresses += 1
        high, low = divmod(self._addresses, 250)
        device.private_address = f"10.70.{high % 256}.{low + 1}"


def _found(records: dict[str, R], identity: str) -> R:
    if identity not in records:
        raise Refused(404, "Not found")
    return records[identity]


_ALLOWED = {
    "reboot": ("active",),
    "rescue": ("active",),
    "power_off": ("active",),
    "power_on": ("inactive",),
    "reinstall": ("active", "inactive"),
}
_REFUSAL = {
    ("reboot", "inactive"): "Device must be powered on",
    ("rescue", "inactive"): "Device must be powered on",
    ("power_off", "inactive"): "Device must be powered on",
    ("power_on", "active"): "Device must be powered off",
}
