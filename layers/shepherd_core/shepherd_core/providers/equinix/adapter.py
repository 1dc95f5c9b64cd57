"""
Equinix Metal: capacity is a hardware reservation, and a machine is the device on it.

The vendor retired the service on 2026-06-30. The adapter stays as the
reference for providers whose capacity is reserved machines.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote

from shepherd_core.domain.errors.provider import CapacityTaken, MachineNotFound, ProviderRefused, ProviderUnavailable
from shepherd_core.domain.provider import Capability, Provider
from shepherd_core.providers.equinix.objects import (
    Device,
    DevicePage,
    EquinixKeys,
    FreeReservation,
    Reservation,
    machine,
    machines,
    token_tag,
)
from shepherd_core.providers.kit.api_object import parse
from shepherd_core.providers.kit.auth import Header
from shepherd_core.providers.kit.creation import create_once
from shepherd_core.providers.kit.http import HttpApi, segment
from shepherd_core.providers.kit.paging import PageNumbers, listed
from shepherd_core.providers.kit.registered_key import RegisteredKey, StoredKey

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from uuid import UUID

    from shepherd_core.domain.clock import Clock, Deadline, Permission
    from shepherd_core.domain.machine import Machine, ProviderId
    from shepherd_core.providers.kit.context import ProviderContext
    from shepherd_core.settings.providers.equinix import EquinixSettings

PER_PAGE = 100
RESERVATION_ID_LENGTH = 18
"""The number of characters of the reservation's id in a host name."""

# The API sends nested objects only if they are included; long ones that are not used are excluded.
_DEVICE = {
    "include": "hardware_reservation,facility,facility.metro,metro",
    "exclude": "created_by,customdata,network_ports,operating_system,actions,plan,provisioning_events,ssh_keys,volumes",
}
_RESERVATION = {"include": "device,facility,facility.metro,plan"}
_DEVICE_PAGES, _RESERVATION_PAGES = (
    PageNumbers(entries=entries, total="meta.total", current="meta.current_page", more="meta.next", per_page=PER_PAGE)
    for entries in ("devices", "hardware_reservations")
)


class EquinixProvider(Provider):
    """
    The devices of one project whose host name begins with our prefix, and the free reservations of that project.

    Other devices are never touched. The token of a machine is a tag of the
    device. The SSH key of *ssh_public_key* (a line as in ``authorized_keys``) is
    added to the project, under the label of the settings, before the first
    machine is created.
    """

    name = "equinix"
    capabilities = frozenset({Capability.CREATE, Capability.REBOOT, Capability.REINSTALL})
    boot_seconds = 300.0

    def __init__(
        self, settings: EquinixSettings, api_key: Callable[[], str], ssh_public_key: Callable[[], str], clock: Clock
    ) -> None:
        self._prefix = settings.fleet
        self._os = settings.os
        project = f"/projects/{quote(settings.project, '')}"
        self._devices = f"{project}/devices"
        self._reservations = f"{project}/hardware-reservations"
        self._keys = f"{project}/ssh-keys"
        self._api = HttpApi(settings.api_url, Header("X-Auth-Token", api_key), clock)
        self._key = RegisteredKey(
            settings.key_name,
            ssh_public_key,
            self._listed_keys,
            lambda label, key, deadline: self._api.post(self._keys, {"label": label, "key": key}, deadline),
        )

    def list_machines(self, deadline: Deadline) -> list[Machine]:
        """
        Return our devices and the free reservations; the two listings are read at the same time.

        Raises:
            ListingInvalid: the pages were inconsistent twice in a row, or an entry was not understood.
        """
        with ThreadPoolExecutor(2, thread_name_prefix="equinix") as pool:
            reservations = pool.submit(
                listed, self._api, self._reservations, deadline, _RESERVATION_PAGES, _RESERVATION
            )
            devices = pool.submit(
                listed, self._api, self._devices, deadline, _DEVICE_PAGES, {**_DEVICE, "sort_by": "hostname"}
            )
            return machines(self._prefix, devices.result(), reservations.result())

    def get_machine(self, provider_id: ProviderId, deadline: Deadline) -> Machine:
        """
        Return the device as a machine.

        Raises:
            MachineNotFound: there is no such device, or its host name is without our prefix.
        """
        device = self._device(provider_id, deadline)
        if not device.hostname.startswith(self._prefix):
            raise MachineNotFound(
                f"device {device.id}: the host name {device.hostname!r} does not begin with {self._prefix!r}"
            )
        return machine(device)

    def create_machine(self, capacity: Machine, token: UUID, deadline: Deadline) -> Machine:
        """
        Create a device on the reservation of *capacity*, or return the one there that has the token already.

        Does not check first whether the reservation is free: the API refuses one that is in use, and only then the
        device on it is read.

        Raises:
            CapacityTaken: a device without the token is on the reservation.
            ProviderRefused: nothing was created.
            ProviderUnavailable: unknown whether it was created. Call again with the same token, or
                find the token in a later listing.
        """
        if not isinstance(capacity, FreeReservation) or not capacity.reservation_id:  # without one, a device on demand
            raise ProviderRefused(f"capacity {capacity.capacity_id} is not a free reservation of the listing")
        if capacity.plan is None:
            raise ProviderRefused(f"reservation {capacity.reservation_id} has no plan, which the API requires")
        body = {
            "hostname": self._prefix + capacity.reservation_id[:RESERVATION_ID_LENGTH],
            "plan": capacity.plan,
            # The API requires a metro, although the reservation determines it.
            "metro": capacity.metro or "any",
            "operating_system": self._os,
            "hardware_reservation_id": capacity.reservation_id,
            # Without a key here, the API admits all users of the organisation to the machine.
            "project_ssh_keys": [self._key.ensure(deadline)],
            "tags": [token_tag(token)],
        }

        def create() -> Machine:
            with self._key.watched():
                answer = self._api.post(self._devices, body, deadline, _DEVICE)
            made = machine(parse(Device, answer, "the device that was created"), capacity.reservation_id)
            return made if made.location else replace(made, location=capacity.location)

        # A reservation that is in use is refused.
        return create_once(
            partial(self._existing, capacity.reservation_id, token, deadline), create, refuses_second=True
        )

    def reboot(self, provider_id: ProviderId, permission: Permission) -> None:
        """
        Request a restart of the device; returns when the API has accepted.

        Raises:
            MachineNotFound: there is no such device, or it is not ours.
        """
        self._act(provider_id, {"type": "reboot"}, permission)

    def reinstall(self, provider_id: ProviderId, permission: Permission) -> None:
        """
        Request a reinstall with the operating system of the settings; without wiping the disks, which takes long.

        Raises:
            MachineNotFound: there is no such device, or it is not ours.
        """
        self._act(
            provider_id, {"type": "reinstall", "deprovision_fast": True, "operating_system": self._os}, permission
        )

    def _act(self, provider_id: ProviderId, action: Mapping[str, object], permission: Permission) -> None:
        self.get_machine(provider_id, permission.deadline)  # raises if it is not ours
        path = f"/devices/{segment(provider_id)}/actions"
        self._api.interrupt("POST", path, action, permission, MachineNotFound)

    def _device(self, device_id: str, deadline: Deadline) -> Device:
        answer = self._api.get(f"/devices/{segment(device_id)}", deadline, _DEVICE, missing=MachineNotFound)
        return parse(Device, answer, f"device {device_id}")

    def _existing(self, reservation_id: str, token: UUID, deadline: Deadline) -> Machine | None:
        """
        Return the machine that was created with *token*, None if there is none.

        Raises:
            CapacityTaken: another machine is on the reservation.
        """
        path = f"/hardware-reservations/{quote(reservation_id, '')}"
        reservation = parse(Reservation, self._api.get(path, deadline, _RESERVATION), f"reservation {reservation_id}")
        # Search by tag first: the reservation may be minutes out of date.
        answer = self._api.get(self._devices, deadline, {**_DEVICE, "tag": token_tag(token), "per_page": PER_PAGE})
        for device in parse(DevicePage, answer, f"{self._devices} with the tag of {token}").devices:
            if device.has(token):
                return machine(device)
        if reservation.device is None:
            return None
        try:
            device = self._device(reservation.device.key, deadline)
        except MachineNotFound as error:
            raise ProviderUnavailable(f"reservation {reservation.id} still names a device that is gone") from error
        if not device.has(token):
            raise CapacityTaken(f"reservation {reservation.id} is used by device {device.id}")
        return machine(device, reservation.id)

    def _listed_keys(self, deadline: Deadline) -> list[StoredKey]:
        listed = parse(EquinixKeys, self._api.get(self._keys, deadline), self._keys).ssh_keys
        return [StoredKey(one.id, one.label, one.key, one.created_at) for one in listed]


def build(settings: EquinixSettings, context: ProviderContext) -> EquinixProvider:
    """Return the provider of these settings."""
    api_key = context.secret(settings.credential_parameter)
    return EquinixProvider(settings, api_key, context.public_key, context.clock)
