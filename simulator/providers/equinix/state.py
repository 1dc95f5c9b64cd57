"""The state of the simulated Equinix API: what changes, when, and what happens to the hardware."""

from __future__ import annotations

import random
import threading
import time
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from simulator.providers.equinix.records import PENDING, DeviceRecord, EquinixRefused, KeyRecord, ReservationRecord, now
from simulator.providers.kit.timers import Timers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from simulator.providers.kit.hardware import Hardware


R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class EquinixOptions:
    """Durations and limits of the simulated API."""

    provision_seconds: float = 0.0
    """From creation until the device is active; the same again for a reinstall."""
    queue_seconds: float | None = None
    """From creation until provisioning begins and the device gets addresses; None: a tenth of *provision_seconds*."""
    action_seconds: float = 0.0
    """From a reboot or power action until it takes effect."""
    deprovision_seconds: float = 0.0
    """From deletion until the device is gone and its reservation free."""
    per_page_cap: int = 100
    """The most entries that a page has, whatever the client asks for."""
    calls_per_minute: int = 100_000
    other_projects: Sequence[str] = ()
    """Projects that reservations can be moved to."""
    seed: int = 0
    """The same seed makes the same ids."""


class EquinixState:
    """
    Reservations, devices and keys of some projects.

    Hold ``lock`` to read or change it. Hardware is called on the timers'
    thread, without the lock.
    """

    def __init__(
        self,
        hardware: Hardware,
        options: EquinixOptions,
        projects: Sequence[str],
        reservations: Sequence[ReservationRecord],
    ) -> None:
        """Reservations that name no project belong to the first."""
        self.lock = threading.RLock()
        self.timers = Timers()
        self.hardware = hardware
        self.options = options
        self._queue_seconds = options.provision_seconds / 10 if options.queue_seconds is None else options.queue_seconds
        self.projects = tuple(projects)
        self._random = random.Random(options.seed)
        self.user_id = self.new_id()
        given = [
            replace(spec, id=spec.id or self.new_id(), project_id=spec.project_id or projects[0])
            for spec in reservations
        ]
        self.reservations = {reservation.id: reservation for reservation in given}
        self.devices: dict[str, DeviceRecord] = {}
        self._occupants: dict[str, DeviceRecord] = {}
        self.keys: dict[str, KeyRecord] = {}
        self._addresses = 0

    def new_id(self) -> str:
        """Return a new UUID; a seed determines the sequence."""
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

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
            raise EquinixRefused(404, "Not found")
        return f"/projects/{project_id}"

    def device(self, device_id: str) -> DeviceRecord:
        """Return a device."""
        return _found(self.devices, device_id)

    def reservation(self, reservation_id: str) -> ReservationRecord:
        """Return a reservation."""
        return _found(self.reservations, reservation_id)

    def key(self, key_id: str) -> KeyRecord:
        """Return an SSH key."""
        return _found(self.keys, key_id)

    def add(self, device: DeviceRecord) -> None:
        """Add a device that is queued, and begin to provision it."""
        self._put(device)
        self._event(device, "queued")
        self._later(self._queue_seconds, device, self._provision)

    def add_active(self, device: DeviceRecord) -> None:
        """Add a device that is active already."""
        device.state = "active"
        self._put(device)
        self._assign_private(device)
        self._event(device, "active")

    def act(self, device: DeviceRecord, action: str) -> None:
        """
        Begin an action on a device; it takes effect later.

        Raises:
            Refused: the state of the device does not allow it.
        """
        if device.state not in _ALLOWED[action]:
            raise EquinixRefused(
                422, _REFUSAL.get((action, device.state), f"Cannot {action} a device that is {device.state}")
            )
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
                self._later(self.options.action_seconds + self.options.provision_seconds, device, self._activate)

    def delete(self, device: DeviceRecord) -> None:
        """
        Begin to delete a device.

        Raises:
            Refused: it is locked, or being created or deleted.
        """
        if device.locked:
            raise EquinixRefused(422, "Cannot delete a locked device")
        if device.state in (*PENDING, "deprovisioning"):
            doing = "deprovisioning" if device.state == "deprovisioning" else "provisioning"
            raise EquinixRefused(422, f"Cannot delete a device while it is {doing}")
        self._change(device, "deprovisioning")
        self._remove_hardware(device)
        self._later(self.options.deprovision_seconds, device, self._drop)

    def forget(self, device: DeviceRecord) -> None:
        """Make a device vanish without a trace."""
        device.generation += 1
        self._drop(device)
        self._remove_hardware(device)

    def fail(self, device: DeviceRecord) -> None:
        """Make a device fail; its hardware is switched off."""
        self._change(device, "failed")

        def run() -> None:
            if device.racked:
                self.hardware.power_off(device.id)

        self.timers.after(0, run)

    def _put(self, device: DeviceRecord) -> None:
        self.devices[device.id] = device
        if device.reservation_id is not None:
            self._occupants[device.reservation_id] = device

    def _drop(self, device: DeviceRecord) -> None:
        del self.devices[device.id]
        if device.reservation_id is not None:
            del self._occupants[device.reservation_id]

    def _later(self, seconds: float, device: DeviceRecord, step: Callable[[DeviceRecord], object]) -> None:
        """Run *step* under the lock in *seconds*, unless the state of the device has changed by then."""
        generation = device.generation

        def run() -> None:
            with self.lock:
                if device.generation == generation:
                    step(device)

        self.timers.after(seconds, run)

    def _hardware_later(self, device: DeviceRecord, method: Callable[[str], None], then: str | None) -> None:
        """Call the hardware after the delay, outside the lock; then put the device into state *then*."""
        generation = device.generation

        def run() -> None:
            with self.lock:
                wanted = device.generation == generation
            if wanted and device.racked:
                method(device.id)
            with self.lock:
                if then is not None and device.generation == generation:
                    self._change(device, then)

        self.timers.after(self.options.action_seconds, run)

    def _remove_hardware(self, device: DeviceRecord) -> None:
        def run() -> None:
            if device.racked:
                device.racked = False
                self.hardware.remove(device.id)

        self.timers.after(0, run)

    def _provision(self, device: DeviceRecord) -> None:
        self._change(device, "provisioning")
        generation = device.generation
        left = max(0.0, self.options.provision_seconds - self._queue_seconds)
        authorized = "\n".join(key.key for key in device.ssh_keys)

        def rack() -> None:
            if device.generation != generation:
                return
            try:
                address = self.hardware.rack(device.id, authorized, left)
            except Exception:
                with self.lock:
                    if device.generation == generation:
                        self._change(device, "failed")
                raise
            with self.lock:
                device.racked = True
                device.address = address
                self._assign_private(device)

        self.timers.after(0, rack)
        self._later(left, device, self._activate)

    def _activate(self, device: DeviceRecord) -> None:
        self._change(device, "active")

    def _change(self, device: DeviceRecord, state: str) -> None:
        """Set the state, and drop the delayed actions of the old one."""
        device.state = state
        device.generation += 1
        device.updated_at = now()
        self._event(device, state)

    def _event(self, device: DeviceRecord, state: str) -> None:
        event: dict[str, Any] = {"id": self.new_id(), "type": f"device.{state}", "body": f"The device is {state}"}
        device.events.append({**event, "state": "success", "created_at": now()})

    def _assign_private(self, device: DeviceRecord) -> None:
        self._addresses += 1
        high, low = divmod(self._addresses, 250)
        device.private_address = f"10.70.{high % 256}.{low + 1}"


def _found(records: dict[str, R], identity: str) -> R:
    if identity not in records:
        raise EquinixRefused(404, "Not found")
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
