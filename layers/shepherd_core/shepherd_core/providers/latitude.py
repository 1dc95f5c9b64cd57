"""Servers at Latitude.sh: those of a project whose host names hold a token and a slot."""

from __future__ import annotations

import base64
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from shepherd_core.domain.errors.provider import ListingInvalid, MachineNotFound, ProviderUnavailable
from shepherd_core.domain.machine import Availability, Machine, ProviderId, ProviderStatus
from shepherd_core.domain.provider import Capability, Provider
from shepherd_core.providers.kit.api_object import ApiObject, Id, MachineAddress, Text, parse
from shepherd_core.providers.kit.auth import Bearer
from shepherd_core.providers.kit.creation import create_once, free_slots, with_token
from shepherd_core.providers.kit.dialect import Dialect, at
from shepherd_core.providers.kit.http import HttpApi, segment
from shepherd_core.providers.kit.paging import PageNumbers, listed
from shepherd_core.providers.kit.registered_key import RegisteredKey, StoredKey
from shepherd_core.settings.providers.latitude import LONGEST_SLOT

if TYPE_CHECKING:
    from shepherd_core.domain.clock import Deadline, Permission
    from shepherd_core.providers.kit.context import ProviderContext
    from shepherd_core.settings.providers.latitude import LatitudeSettings

_STATUS = {
    "on": ProviderStatus.RUNNING,
    "off": ProviderStatus.STOPPED,
    "starting_deploy": ProviderStatus.PROVISIONING,
    "deploying": ProviderStatus.PROVISIONING,
    "disk_erasing": ProviderStatus.PROVISIONING,
    "failed_deployment": ProviderStatus.PROVISIONING_FAILED_PERMANENT,
    "failed_disk_erasing": ProviderStatus.PROVISIONING_FAILED_PERMANENT,
    **dict.fromkeys(("inventory", "rescue_mode", "unknown"), ProviderStatus.UNKNOWN),
}
_DIALECT = Dialect(headers={"API-Version": "2023-06-01"})
_PAGES = PageNumbers(entries="data", total="meta.stats.total.count", number="page[number]", size="page[size]")
_TOTAL = {"stats[total]": "count"}
_NAME = re.compile(rf"([a-z2-7]{{26}})-([1-9][0-9]{{0,{LONGEST_SLOT - 1}}})")
"""The token in base 32, and the slot. A host name has at most 32 characters, and a UUID would take 36."""


def name_of(token: UUID, capacity_id: str | None) -> str:
    """Return the host name of the server with this token on a capacity, whose id ends with a number."""
    return f"{base64.b32encode(token.bytes).decode().rstrip('=').lower()}-{str(capacity_id).rpartition('/')[2]}"


def token_of(name: str) -> UUID | None:
    """Return the token in a host name."""
    found = _NAME.fullmatch(name)
    return found and UUID(bytes=base64.b32decode(f"{found[1].upper()}======"))


class Project(ApiObject):
    """The project of a server."""

    id: Id


class Site(ApiObject):
    """The site of a region."""

    slug: Text | None = None


class Region(ApiObject):
    """Where a server stands."""

    site: Site | None = None


class Attributes(ApiObject):
    """The attributes of a server; the answer to its creation has neither project nor region."""

    hostname: Text | None = None
    status: str = ""
    primary_ipv4: MachineAddress | None = None
    project: Project | None = None
    region: Region | None = None


class LatitudeServer(ApiObject):
    """One server."""

    id: Id
    attributes: Attributes

    def machine(self, fleet: str) -> Machine | None:
        """Return the server as a machine of *fleet*; None: it is not Shepherd's."""
        name, region = self.attributes.hostname or "", self.attributes.region
        if (token := token_of(name)) is None:
            return None
        status = _STATUS.get(self.attributes.status, ProviderStatus.UNKNOWN)
        failed = status is ProviderStatus.PROVISIONING_FAILED_PERMANENT
        return Machine(
            provider_id=ProviderId(self.id),
            availability=Availability.KNOWN_USED,
            address=self.attributes.primary_ipv4,
            location=region.site.slug if region and region.site else None,
            reservation_id=f"{fleet}/{name.rpartition('-')[2]}",
            status=status,
            failed=failed,
            failure=self.attributes.status if failed else None,
            token=token,
        )


class LatitudeKey(ApiObject):
    """The attributes of an SSH key."""

    name: Text | None = None
    public_key: str
    created_at: str = ""


class LatitudeProvider(Provider):
    """The servers of a project that Shepherd made, and as many more as the limit allows."""

    name = "latitude"
    capabilities = frozenset({Capability.CREATE, Capability.REBOOT, Capability.REINSTALL, Capability.RELEASE})

    def __init__(self, settings: LatitudeSettings, context: ProviderContext) -> None:
        self._settings = settings
        self._fleet = settings.project
        login = Bearer(context.secret(settings.credential_parameter))
        self._api = HttpApi(settings.api_url, login, context.clock, dialect=_DIALECT)
        self._key = RegisteredKey(settings.key_name, context.public_key, self._keys, self._add_key)

    def list_machines(self, deadline: Deadline) -> list[Machine]:
        """Return our servers and the free slots."""
        machines = self._machines(deadline)
        used = [each.reservation_id for each in machines]
        return [*machines, *free_slots(self._fleet, self._settings.limit, used)]

    def get_machine(self, provider_id: ProviderId, deadline: Deadline) -> Machine:
        """Return one of our servers."""
        answer = self._api.get(f"/servers/{segment(provider_id)}", deadline, missing=MachineNotFound)
        server = parse(LatitudeServer, at(answer, "data"), f"server {provider_id}")
        machine = server.machine(self._fleet)
        if machine is None or server.id != provider_id or not self._has(server):
            raise MachineNotFound(f"server {provider_id} is not one of ours in the project {self._fleet}")
        return machine

    def create_machine(self, capacity: Machine, token: UUID, deadline: Deadline) -> Machine:
        """Make a server, whose host name holds *token* and the slot of *capacity*."""
        settings = self._settings

        def create() -> Machine:
            wanted = {
                "project": settings.project,
                "site": settings.location,
                "plan": settings.machine_type,
                "billing": settings.billing,
                **self._installed(name_of(token, capacity.capacity_id), deadline),
            }
            answer = self._api.post("/servers", _document("servers", wanted), deadline)
            server = parse(LatitudeServer, at(answer, "data"), "the new server")
            machine = server.machine(self._fleet)
            if machine is None or machine.token != token:  # not a refusal, which would forget a server that is paid for
                raise ProviderUnavailable(f"server {server.id}, which was made, has another host name")
            return replace(machine, location=machine.location or settings.location)

        return create_once(lambda: with_token(self._machines(deadline), capacity, token), self._key.watched()(create))

    def reboot(self, provider_id: ProviderId, permission: Permission) -> None:
        """Restart the server; switch it on if it is off."""
        off = self.get_machine(provider_id, permission.deadline).status is ProviderStatus.STOPPED
        self._act(provider_id, "actions", {"action": "power_on" if off else "reboot"}, permission)

    def reinstall(self, provider_id: ProviderId, permission: Permission) -> None:
        """Install the server anew, with the operating system of the settings and under its name."""
        machine = self.get_machine(provider_id, permission.deadline)
        assert machine.token is not None  # it is ours
        name = name_of(machine.token, machine.capacity_id)
        self._act(provider_id, "reinstall", self._installed(name, permission.deadline), permission)

    def release(self, provider_id: ProviderId, deadline: Deadline) -> None:
        """Delete the server."""
        try:
            self.get_machine(provider_id, deadline)
            self._api.delete(f"/servers/{segment(provider_id)}", deadline, missing=MachineNotFound)
        except MachineNotFound:
            return  # it was deleted before

    def _has(self, server: LatitudeServer) -> bool:
        """Return whether the project of *server* is ours."""
        return server.attributes.project is not None and server.attributes.project.id == self._fleet

    def _act(self, provider_id: ProviderId, what: str, attributes: dict[str, Any], permission: Permission) -> None:
        path = f"/servers/{segment(provider_id)}/{what}"
        body = _document("reinstalls" if what == "reinstall" else what, attributes)
        with self._key.watched():
            self._api.interrupt("POST", path, body, permission, MachineNotFound)

    def _installed(self, hostname: str, deadline: Deadline) -> dict[str, Any]:
        key = self._key.ensure(deadline)
        return {"hostname": hostname, "operating_system": self._settings.os, "ssh_keys": [key]}

    def _machines(self, deadline: Deadline) -> list[Machine]:
        entries = listed(self._api, "/servers", deadline, _PAGES, {"filter[project]": self._fleet, **_TOTAL})
        servers = [parse(LatitudeServer, entry, f"server {entry['id']!r:.80}", ListingInvalid) for entry in entries]
        ours = (server.machine(self._fleet) for server in servers if self._has(server))
        return [machine for machine in ours if machine is not None]

    def _keys(self, deadline: Deadline) -> list[StoredKey]:
        entries = listed(self._api, "/ssh_keys", deadline, _PAGES, _TOTAL)
        keys = ((str(entry["id"]), parse(LatitudeKey, entry.get("attributes"), "an SSH key")) for entry in entries)
        return [StoredKey(key_id, key.name, key.public_key, key.created_at) for key_id, key in keys]

    def _add_key(self, name: str, line: str, deadline: Deadline) -> None:
        self._api.post("/ssh_keys", _document("ssh_keys", {"name": name, "public_key": line}), deadline)


def _document(kind: str, attributes: dict[str, Any]) -> dict[str, Any]:
    """Return the body of a request."""
    return {"data": {"type": kind, "attributes": attributes}}


def build(settings: LatitudeSettings, context: ProviderContext) -> LatitudeProvider:
    """Return the provider of these settings."""
    return LatitudeProvider(settings, context)
