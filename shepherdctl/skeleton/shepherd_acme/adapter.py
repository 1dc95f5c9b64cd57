"""Servers at Acme: a server that a token owns is the machine with that id."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shepherd_core.domain.errors.provider import CapacityTaken, ListingInvalid, MachineNotFound, ProviderRefused
from shepherd_core.domain.machine import Availability, Machine, ProviderId, ProviderStatus
from shepherd_core.domain.provider import Capability, Provider
from shepherd_core.providers.kit import fields
from shepherd_core.providers.kit.api_object import ApiObject, Id, MachineAddress, Text, parse
from shepherd_core.providers.kit.auth import Header
from shepherd_core.providers.kit.http import HttpApi, segment

if TYPE_CHECKING:
    from uuid import UUID

    from shepherd_core.domain.clock import Deadline, Permission
    from shepherd_core.providers.kit.context import ProviderContext

    from shepherd_acme.settings import AcmeSettings

_STATUS = {"on": ProviderStatus.RUNNING, "off": ProviderStatus.STOPPED}


class AcmeServer(ApiObject):
    """One server."""

    name: Id
    ip: MachineAddress | None = None
    power: str = ""
    owner: Text | None = None

    def machine(self) -> Machine:
        """Return the server as a machine; a server of another owner is in use and has no token."""
        return Machine(
            provider_id=ProviderId(self.name),
            availability=Availability.KNOWN_UNUSED if self.owner is None else Availability.KNOWN_USED,
            address=self.ip,
            status=_STATUS.get(self.power, ProviderStatus.UNKNOWN),
            token=fields.token(self.owner),
        )


class AcmeServers(ApiObject):
    """All servers."""

    total: int
    servers: list[AcmeServer]


class AcmeProvider(Provider):
    """The servers that a token owns, and those without an owner; others are never touched."""

    name = "acme"
    capabilities = frozenset({Capability.CREATE, Capability.REBOOT, Capability.RELEASE})

    def __init__(self, settings: AcmeSettings, context: ProviderContext) -> None:
        login = Header("X-Acme-Key", context.secret(settings.credential_parameter))
        self._api = HttpApi(settings.api_url, login, context.clock)

    def list_machines(self, deadline: Deadline) -> list[Machine]:
        """Return our servers and the free ones."""
        listing = parse(AcmeServers, self._api.get("/servers", deadline), "the listing of servers", ListingInvalid)
        if listing.total != len(listing.servers):
            raise ListingInvalid(f"{len(listing.servers)} servers came, but the total is {listing.total}")
        machines = [server.machine() for server in listing.servers]
        return [each for each in machines if each.token or each.availability is Availability.KNOWN_UNUSED]

    def get_machine(self, provider_id: ProviderId, deadline: Deadline) -> Machine:
        """Return the server as a machine."""
        machine = self._server(provider_id, deadline).machine()
        if machine.token is None:
            raise MachineNotFound(f"server {provider_id} is not ours")
        return machine

    def create_machine(self, capacity: Machine, token: UUID, deadline: Deadline) -> Machine:
        """Make the server that *capacity* names the machine with this *token*."""
        try:
            self._api.post(f"{_path(capacity.provider_id)}/owner", {"owner": str(token)}, deadline)
        except ProviderRefused:
            if self._server(capacity.provider_id, deadline).owner in {None, str(token)}:
                raise
            raise CapacityTaken(f"server {capacity.provider_id} has another owner") from None
        return self.get_machine(capacity.provider_id, deadline)

    def reboot(self, provider_id: ProviderId, permission: Permission) -> None:
        """Restart the server."""
        self.get_machine(provider_id, permission.deadline)  # raises unless it is ours
        self._api.interrupt("POST", f"{_path(provider_id)}/restart", {}, permission, MachineNotFound)

    def release(self, provider_id: ProviderId, deadline: Deadline) -> None:
        """Remove the owner of the server."""
        try:
            self.get_machine(provider_id, deadline)
            self._api.delete(f"{_path(provider_id)}/owner", deadline, missing=MachineNotFound)
        except MachineNotFound:
            return  # it was released before

    def _server(self, provider_id: ProviderId, deadline: Deadline) -> AcmeServer:
        answer = self._api.get(_path(provider_id), deadline, missing=MachineNotFound)
        return parse(AcmeServer, answer, f"server {provider_id}")


def _path(provider_id: ProviderId) -> str:
    return f"/servers/{segment(provider_id)}"


def build(settings: AcmeSettings, context: ProviderContext) -> AcmeProvider:
    """Return the provider."""
    return AcmeProvider(settings, context)
