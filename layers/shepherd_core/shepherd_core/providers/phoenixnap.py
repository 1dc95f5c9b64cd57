"""Servers of phoenixNAP's Bare Metal Cloud: those of an account whose host names hold our fleet, a slot and a token."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from typing import TYPE_CHECKING, Any

from shepherd_core.domain.errors.provider import ListingInvalid, MachineNotFound, ProviderRefused, ProviderUnavailable
from shepherd_core.domain.machine import Availability, Machine, ProviderId, ProviderStatus
from shepherd_core.domain.provider import Capability, Provider
from shepherd_core.providers.kit import fields
from shepherd_core.providers.kit.api_object import ApiObject, Id, Text, parse
from shepherd_core.providers.kit.auth import ClientCredentials
from shepherd_core.providers.kit.context import readable
from shepherd_core.providers.kit.creation import create_once, free_slots, with_token
from shepherd_core.providers.kit.http import HttpApi, segment
from shepherd_core.providers.kit.paging import OnePage, listed
from shepherd_core.settings.providers.phoenixnap import LONGEST_SLOT

if TYPE_CHECKING:
    from uuid import UUID

    from shepherd_core.domain.clock import Deadline, Permission
    from shepherd_core.providers.kit.context import ProviderContext
    from shepherd_core.settings.providers.phoenixnap import PhoenixnapSettings

_STATUS = {
    "creating": ProviderStatus.PROVISIONING,
    "resetting": ProviderStatus.PROVISIONING,
    "powered-on": ProviderStatus.RUNNING,
    "rebooting": ProviderStatus.RUNNING,
    "powered-off": ProviderStatus.STOPPED,
    # The description does not explain these two.
    "error": ProviderStatus.UNKNOWN,
    "reinstating": ProviderStatus.UNKNOWN,
    # Released: its slot is free. A server that was reserved stays in the account, without an operating system.
    "deleting": ProviderStatus.MISSING,
    "reserved": ProviderStatus.MISSING,
}
_NAME = re.compile(rf"(.+)-([1-9][0-9]{{0,{LONGEST_SLOT - 1}}})-([0-9a-f]{{8}}(?:-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}})")


def name_of(capacity_id: str | None, token: UUID) -> str:
    """Return the host name of the server with this token on a capacity, FLEET/SLOT."""
    return f"{str(capacity_id).replace('/', '-')}-{token}"


def read_name(name: str) -> tuple[str, UUID] | None:
    """Return the capacity and the token in a host name, None if it has none."""
    found = _NAME.fullmatch(name)
    token = fields.token(found[3]) if found else None
    return (f"{found[1]}/{found[2]}", token) if found and token else None


class PhoenixnapServer(ApiObject):
    """One server."""

    id: Id
    hostname: Text
    status: str
    location: Text | None = None
    publicIpAddresses: tuple[str, ...] = ()  # noqa: N815 - the API's name
    """Addresses; a range, as the API writes it in other places, stands for its first address."""

    def machine(self, fleet: str) -> Machine | None:
        """Return the server as a machine of *fleet*; None: it is not ours, or not any more."""
        capacity_id, token = read_name(self.hostname) or ("", None)
        if (
            token is None
            or capacity_id.rpartition("/")[0] != fleet
            or _STATUS.get(self.status) is ProviderStatus.MISSING
        ):
            return None
        found = [fields.address(each.partition(" - ")[0]) for each in self.publicIpAddresses]
        addresses = [address for address in found if address is not None]
        addresses.sort(key=lambda address: address.version)  # IPv4 first
        return Machine(
            provider_id=ProviderId(self.id),
            availability=Availability.KNOWN_USED,
            address=addresses[0] if addresses else None,
            location=self.location,
            reservation_id=capacity_id,
            status=_STATUS.get(self.status, ProviderStatus.UNKNOWN),
            token=token,
        )


class PhoenixnapProvider(Provider):
    """The servers of the fleet, and as many more as the limit allows."""

    name = "phoenixnap"
    capabilities = frozenset({Capability.CREATE, Capability.REBOOT, Capability.REINSTALL, Capability.RELEASE})

    def __init__(self, settings: PhoenixnapSettings, context: ProviderContext) -> None:
        self._settings = settings
        self._fleet = settings.fleet
        self._public_key = context.public_key
        login = ClientCredentials(settings.auth_url, context.secret(settings.credential_parameter), context.clock)
        self._api = HttpApi(settings.api_url, login, context.clock)

    def list_machines(self, deadline: Deadline) -> list[Machine]:
        """Return our servers and the free slots."""
        machines = self._machines(deadline)
        used = [each.reservation_id for each in machines]
        return [*machines, *free_slots(self._fleet, self._settings.limit, used)]

    def get_machine(self, provider_id: ProviderId, deadline: Deadline) -> Machine:
        """Return one of our servers."""
        try:
            answer = self._api.get(f"/servers/{segment(provider_id)}", deadline, missing=MachineNotFound)
        except ProviderRefused:
            # The description has 400 and 403 for a server that is gone, and no 404: only the listing is sure.
            if any(each.provider_id == provider_id for each in self._machines(deadline)):
                raise
            raise MachineNotFound(f"server {provider_id} is not listed") from None
        server = parse(PhoenixnapServer, answer, f"server {provider_id}")
        if (machine := server.machine(self._fleet)) is None or server.id != provider_id:
            raise MachineNotFound(f"server {provider_id} is not one of the fleet {self._fleet}")
        return machine

    def create_machine(self, capacity: Machine, token: UUID, deadline: Deadline) -> Machine:
        """Make a server by the hour, whose host name holds *token* and the slot of *capacity*."""

        def create() -> Machine:
            keys = self._keys()
            # The keys are for the distribution's own user; cloud-init admits root.
            config = json.dumps({"disable_root": False, "ssh_authorized_keys": keys["sshKeys"]})
            wanted = {
                "hostname": name_of(capacity.capacity_id, token),
                "location": self._settings.location,
                "type": self._settings.machine_type,
                "os": self._settings.os,
                "pricingModel": "HOURLY",
                "osConfiguration": {
                    "cloudInit": {"userData": b64encode(f"#cloud-config\n{config}\n".encode()).decode()}
                },
                **keys,
            }
            machine = parse(PhoenixnapServer, self._api.post("/servers", wanted, deadline), "the new server").machine(
                self._fleet
            )
            if machine is None:
                raise ProviderUnavailable("the new server is not the one that was asked for")
            return machine

        return create_once(lambda: with_token(self._machines(deadline), capacity, token), create)

    def reboot(self, provider_id: ProviderId, permission: Permission) -> None:
        """Restart the server; switch it on if it is off."""
        off = (
            self.get_machine(provider_id, permission.deadline).status is ProviderStatus.STOPPED
        )  # raises unless it is ours
        self._act(provider_id, "power-on" if off else "reboot", None, permission)

    def reinstall(self, provider_id: ProviderId, permission: Permission) -> None:
        """Install the server anew, with the operating system that it has."""
        self.get_machine(provider_id, permission.deadline)
        self._act(provider_id, "reset", self._keys(), permission)

    def release(self, provider_id: ProviderId, deadline: Deadline) -> None:
        """Give the server back, with the block of addresses that was made for it."""
        try:
            self.get_machine(provider_id, deadline)
            path = f"/servers/{segment(provider_id)}/actions/deprovision"
            self._api.post(path, {"deleteIpBlocks": True}, deadline, missing=MachineNotFound)
        except MachineNotFound:
            return  # it was given back before

    def _act(self, provider_id: ProviderId, action: str, body: object, permission: Permission) -> None:
        path = f"/servers/{segment(provider_id)}/actions/{action}"
        self._api.interrupt("POST", path, body, permission, MachineNotFound)

    def _keys(self) -> dict[str, Any]:
        with readable("our public SSH key"):
            return {"sshKeys": [self._public_key()], "installDefaultSshKeys": False}

    def _machines(self, deadline: Deadline) -> list[Machine]:
        entries = listed(self._api, "/servers", deadline, OnePage())
        servers = (parse(PhoenixnapServer, entry, f"server {entry['id']!r:.80}", ListingInvalid) for entry in entries)
        return [machine for server in servers if (machine := server.machine(self._fleet)) is not None]


def build(settings: PhoenixnapSettings, context: ProviderContext) -> PhoenixnapProvider:
    """Return the provider of these settings."""
    return PhoenixnapProvider(settings, context)
