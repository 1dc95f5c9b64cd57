"""Hetzner's dedicated servers, through the Robot web service: capacity is a rented server, which stays rented."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from shepherd_core.domain.errors import ShepherdError, TimeLimitExceeded
from shepherd_core.domain.errors.provider import MachineNotFound, NotSupported, ProviderRefused, ProviderUnavailable
from shepherd_core.domain.machine import Availability
from shepherd_core.domain.provider import Capability, Provider
from shepherd_core.providers.hetzner.api import robot_api
from shepherd_core.providers.hetzner.boot_configuration import BootConfiguration
from shepherd_core.providers.hetzner.objects import (
    HetznerServer,
    ResetEntry,
    ServerEntry,
    machine,
    machines,
    stored_keys,
)
from shepherd_core.providers.kit.api_object import parse
from shepherd_core.providers.kit.http import ANSWER_SECONDS
from shepherd_core.providers.kit.registered_key import RegisteredKey, StoredKey

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

    from shepherd_core.domain.clock import Clock, Deadline, Permission
    from shepherd_core.domain.machine import Machine, ProviderId
    from shepherd_core.providers.kit.context import ProviderContext
    from shepherd_core.settings.providers.hetzner import HetznerSettings

_HARDWARE = ("hw",)
_SOFTWARE = ("sw", "hw")


class HetznerProvider(Provider):
    """
    The servers of one account whose name in Robot begins with our prefix.

    Other servers are never touched, and none is ordered or cancelled. Robot does
    not record which are in use, so all are ``PossiblyUsed``; the BMDB knows. To
    create a machine is to take a server, which changes nothing on it.

    A reinstall arms the server for its next boot and then resets it. A process
    that is killed in between leaves it armed; therefore every reboot disarms the
    server first.

    *credential* returns ``USER:PASSWORD``; it and *ssh_public_key* (a line as in
    ``authorized_keys``) raise SecretError.
    """

    name = "hetzner"
    capabilities = frozenset({Capability.CREATE, Capability.REBOOT, Capability.POWER_CYCLE, Capability.REINSTALL})

    def __init__(
        self,
        settings: HetznerSettings,
        credential: Callable[[], str],
        ssh_public_key: Callable[[], str],
        clock: Clock,
    ) -> None:
        self._prefix = settings.fleet
        self._reboot = _SOFTWARE if settings.graceful else _HARDWARE
        self._api = robot_api(settings.api_url, credential, clock)
        self._key = RegisteredKey(
            settings.key_name,
            ssh_public_key,
            self._listed_keys,
            lambda name, line, deadline: self._api.post("/key", {"name": name, "data": line}, deadline),
        )
        self._boot_configuration = BootConfiguration(settings, self._api, self._key)

    def list_machines(self, deadline: Deadline) -> list[Machine]:
        """
        Return our servers; one request.

        Raises:
            ListingInvalid: an entry was not understood, or is listed twice.
        """
        try:
            listed = self._api.get("/server", deadline)
        except MachineNotFound:  # Robot's answer if there is none
            listed = []
        return machines(self._prefix, listed)

    def get_machine(self, provider_id: ProviderId, deadline: Deadline) -> Machine:
        """
        Return the server as a machine; one request.

        Raises:
            MachineNotFound: there is no such server, or its name is without our prefix.
        """
        return machine(self._server(provider_id, deadline))

    def create_machine(self, capacity: Machine, token: UUID, deadline: Deadline) -> Machine:
        """
        Return the server of *capacity*, as used.

        Nothing is created, so a second call cannot create anything twice. The *token* is not
        stored: the BMDB ensures that two machines do not take the same server.
        """
        deadline.check()
        try:
            taken = self.get_machine(capacity.provider_id, deadline)
        except MachineNotFound as error:
            raise ProviderRefused(f"{error}, so it cannot become machine {token}") from error
        if taken.failed:
            raise ProviderRefused(f"server {taken.provider_id} is cancelled, so it cannot become machine {token}")
        return replace(taken, availability=Availability.KNOWN_USED)

    def reboot(self, provider_id: ProviderId, permission: Permission) -> None:
        """
        Restart the server in the way of the settings; switch it on if Robot knows that it is off.

        Raises:
            MachineNotFound: there is no such server, or it is not ours.
            NotSupported: this server cannot be reset by Robot.
            ProviderRefused: an operator armed the server, so that a boot would do something else.
        """
        self._restart(provider_id, self._reboot, permission)

    def power_cycle(self, provider_id: ProviderId, permission: Permission) -> None:
        """
        Press the reset button, Robot's strongest reset after which a server boots by itself; switch on one that is off.

        Raises:
            MachineNotFound, NotSupported, ProviderRefused: see ``reboot``.
        """
        self._restart(provider_id, _HARDWARE, permission)

    def reinstall(self, provider_id: ProviderId, permission: Permission) -> None:
        """
        Make the server install the distribution of the settings, or boot the rescue system, by a reset.

        Raises:
            MachineNotFound, ProviderRefused: see ``reboot``.
            NotSupported: Robot cannot reset or cannot install this server.
            ProviderUnavailable: unknown whether it happens. If it does not, the server may stay armed
                until the next call of this method or of ``reboot``.
        """
        deadline = permission.deadline
        number = self._server(provider_id, deadline).server_number
        reset = self._reset_type(number, _HARDWARE, deadline)
        key = self._key.ensure(deadline)
        self._boot_configuration.disarm(number, deadline)
        if deadline.remaining() < ANSWER_SECONDS:
            raise TimeLimitExceeded(f"server {number} was not armed: too little time is left to reset it afterwards")
        self._boot_configuration.arm(number, key, deadline)
        try:
            self._reset(number, reset, permission)
        except ShepherdError:
            # If the reset was carried out, the server only boots. If disarming fails, the next reboot disarms again.
            self._boot_configuration.try_to_disarm(number, deadline)
            raise

    def _server(self, provider_id: ProviderId, deadline: Deadline) -> HetznerServer:
        if not re.fullmatch("[1-9][0-9]{0,17}", provider_id):
            raise MachineNotFound(f"{provider_id!r} is not the number of a server")
        answer = self._api.get(f"/server/{provider_id}", deadline)
        server = parse(ServerEntry, answer, f"server {provider_id}").server
        if str(server.server_number) != provider_id:
            raise ProviderUnavailable(f"Robot answered for server {server.server_number} instead of {provider_id}")
        if not server.bears(self._prefix):
            raise MachineNotFound(
                f"server {provider_id}: the name {server.server_name!r} does not begin with {self._prefix!r}"
            )
        return server

    def _restart(self, provider_id: ProviderId, wanted: Sequence[str], permission: Permission) -> None:
        number = self._server(provider_id, permission.deadline).server_number
        reset = self._reset_type(number, wanted, permission.deadline)
        self._boot_configuration.disarm(number, permission.deadline)
        self._reset(number, reset, permission)

    def _reset_type(self, number: int, wanted: Sequence[str], deadline: Deadline) -> str:
        """
        Return the first reset of *wanted* that Robot offers for this server.

        Raises:
            NotSupported: it offers none of them.
        """
        offered = parse(ResetEntry, self._api.get(f"/reset/{number}", deadline), f"the resets of {number}").reset
        chosen = offered.choose(wanted)
        if chosen is None:
            raise NotSupported(f"server {number} offers the resets {offered.type}, none of {list(wanted)}")
        return chosen

    def _reset(self, number: int, reset: str, permission: Permission) -> None:
        self._api.interrupt("POST", f"/reset/{number}", {"type": reset}, permission)

    def _listed_keys(self, deadline: Deadline) -> list[StoredKey]:
        try:
            listed = self._api.get("/key", deadline, missing=MachineNotFound)
        except MachineNotFound:  # Robot's answer if there is none
            return []
        return stored_keys(listed)


def build(settings: HetznerSettings, context: ProviderContext) -> HetznerProvider:
    """Return the provider of these settings."""
    credential = context.secret(settings.credential_parameter)
    return HetznerProvider(settings, credential, context.public_key, context.clock)
