"""Elastic Metal servers at Scaleway: those of a project whose tags name our fleet, a slot and a token."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from shepherd_core.domain.errors.provider import ListingInvalid, MachineNotFound, ProviderRefused, ProviderUnavailable
from shepherd_core.domain.machine import Availability, Machine, ProviderId, ProviderStatus
from shepherd_core.domain.provider import Capability, Provider
from shepherd_core.providers.kit import fields
from shepherd_core.providers.kit.api_object import ApiObject, Id, MachineAddress, Text, parse
from shepherd_core.providers.kit.auth import Header
from shepherd_core.providers.kit.creation import create_once, free_slots, with_token
from shepherd_core.providers.kit.dialect import Dialect, Refusal, at
from shepherd_core.providers.kit.http import HttpApi, segment
from shepherd_core.providers.kit.paging import PageNumbers, listed
from shepherd_core.providers.kit.registered_key import RegisteredKey, StoredKey

if TYPE_CHECKING:
    from uuid import UUID

    from shepherd_core.domain.clock import Deadline, Permission
    from shepherd_core.providers.kit.context import ProviderContext
    from shepherd_core.settings.providers.scaleway import ScalewaySettings

_STATUS = {
    "ready": ProviderStatus.RUNNING,
    "migrating": ProviderStatus.RUNNING,  # to monthly billing
    "stopping": ProviderStatus.STOPPED,
    "stopped": ProviderStatus.STOPPED,
    "ordered": ProviderStatus.PROVISIONING,
    "delivering": ProviderStatus.PROVISIONING,
    "out_of_stock": ProviderStatus.PROVISIONING_FAILED_PERMANENT,
    "deleting": ProviderStatus.MISSING,
    **dict.fromkeys(("error", "locked", "resetting", "starting", "unknown"), ProviderStatus.UNKNOWN),
    # A server that is ready, by the status of its operating system:
    "ready to_install": ProviderStatus.PROVISIONING,
    "ready installing": ProviderStatus.PROVISIONING,
    "ready error": ProviderStatus.PROVISIONING_FAILED_PERMANENT,
    **dict.fromkeys(("ready completed", "ready unknown"), ProviderStatus.RUNNING),
}
_REFUSALS = (
    Refusal(says="^transient_state", error=ProviderUnavailable, retry_after=60),
    Refusal(says="^(quotas_exceeded|out_of_stock|locked)", error=ProviderRefused),
    Refusal(status=503, says="is not supported", error=ProviderRefused),  # by this offer; it does not pass
)
_TAG = re.compile(r"shepherd=(.+)/([1-9][0-9]{0,5})/([0-9a-f-]{36})")
_KEYS = "/iam/v1alpha1/ssh-keys"
_PAGES = PageNumbers(entries="servers", total="total_count", size="page_size")
_KEY_PAGES = PageNumbers(entries="ssh_keys", total="total_count", size="page_size")


class Ip(ApiObject):
    """One address of a server."""

    address: MachineAddress
    version: str = ""


class ScalewayServer(ApiObject):
    """One server."""

    id: Id
    status: str
    project_id: str
    zone: Text | None = None
    tags: tuple[str, ...] = ()
    ips: tuple[Ip, ...] = ()
    install: dict[str, Any] | None = None

    def machine(self, settings: ScalewaySettings) -> Machine | None:
        """Return the server as a machine of the fleet; None: it is not ours, or not any more."""
        slot, token = next(filter(None, (read_tag(settings.fleet, tag) for tag in self.tags)), ("", None))
        if token is None or self.project_id != settings.project or _STATUS.get(self.status) is ProviderStatus.MISSING:
            return None
        installing = f"{self.status} {(self.install or {}).get('status')}"
        status = _STATUS.get(installing) or _STATUS.get(self.status, ProviderStatus.UNKNOWN)
        failed = status is ProviderStatus.PROVISIONING_FAILED_PERMANENT
        addresses = sorted(self.ips, key=lambda ip: ip.version != "IPv4")
        return Machine(
            provider_id=ProviderId(self.id),
            availability=Availability.KNOWN_USED,
            address=addresses[0].address if addresses else None,
            location=self.zone,
            reservation_id=f"{settings.fleet}/{slot}",
            status=status,
            failed=failed,
            failure=installing.removesuffix(" None") if failed else None,
            token=token,
        )


class ScalewayKey(ApiObject):
    """An SSH key."""

    id: Id
    name: Text | None = None
    public_key: str
    created_at: str | None = None


def tag_of(capacity_id: str | None, token: UUID) -> str:
    """Return the tag of the server with this token on a capacity, FLEET/SLOT."""
    return f"shepherd={capacity_id}/{token}"


def read_tag(fleet: str, tag: str) -> tuple[str, UUID] | None:
    """Return slot and token in a tag of *fleet*; None: it is another tag."""
    found = _TAG.fullmatch(tag)
    token = fields.token(found[3]) if found and found[1] == fleet else None
    return (found[2], token) if found and token else None


class ScalewayProvider(Provider):
    """The servers of the fleet in a zone, and as many more as the limit allows."""

    name = "scaleway"
    capabilities = frozenset({Capability.CREATE, Capability.REBOOT, Capability.REINSTALL, Capability.RELEASE})

    def __init__(self, settings: ScalewaySettings, context: ProviderContext) -> None:
        self._settings = settings
        zone = f"/baremetal/v1/zones/{segment(settings.location)}"
        self._servers, self._offer = f"{zone}/servers", f"{zone}/offers/{segment(settings.machine_type)}"
        login = Header("X-Auth-Token", context.secret(settings.credential_parameter))
        self._api = HttpApi(settings.api_url, login, context.clock, dialect=Dialect(refusals=_REFUSALS))
        self._key = RegisteredKey(settings.key_name, context.public_key, self._keys, self._add_key)

    def list_machines(self, deadline: Deadline) -> list[Machine]:
        """Return our servers and the free slots."""
        machines = self._machines(deadline)
        used = [each.reservation_id for each in machines]
        return [*machines, *free_slots(self._settings.fleet, self._settings.limit, used)]

    def get_machine(self, provider_id: ProviderId, deadline: Deadline) -> Machine:
        """Return one of our servers."""
        answer = self._api.get(f"{self._servers}/{segment(provider_id)}", deadline, missing=MachineNotFound)
        server = parse(ScalewayServer, answer, f"server {provider_id}")
        if (machine := server.machine(self._settings)) is None or server.id != provider_id:
            raise MachineNotFound(f"server {provider_id} is not one of the fleet {self._settings.fleet}")
        return machine

    def create_machine(self, capacity: Machine, token: UUID, deadline: Deadline) -> Machine:
        """Order a server, whose tag names *token* and the slot of *capacity*, with the operating system."""

        def create() -> Machine:
            if at(self._api.get(self._offer, deadline), "subscription_period") != self._settings.billing:
                raise ProviderRefused(f"machine_type is not {self._settings.billing}: nothing was ordered")
            wanted = {
                "offer_id": self._settings.machine_type,
                "project_id": self._settings.project,
                "name": f"shepherd-{token}",
                "description": "",
                "tags": [tag_of(capacity.capacity_id, token)],
                "install": self._install(token, deadline),
            }
            with self._key.watched():
                made = parse(ScalewayServer, self._api.post(self._servers, wanted, deadline), "the new server")
            if (machine := made.machine(self._settings)) is None:
                raise ProviderUnavailable("the new server has another tag or project than it was ordered with")
            return machine

        return create_once(lambda: with_token(self._machines(deadline), capacity, token), create)

    def reboot(self, provider_id: ProviderId, permission: Permission) -> None:
        """Switch the server off and on, or on if it is off; it boots from its disks."""
        off = self.get_machine(provider_id, permission.deadline).status is ProviderStatus.STOPPED
        self._act(provider_id, "start" if off else "reboot", {"boot_type": "normal"}, permission)

    def reinstall(self, provider_id: ProviderId, permission: Permission) -> None:
        """Install the operating system of the settings anew."""
        wanted = self._install(self.get_machine(provider_id, permission.deadline).token, permission.deadline)
        with self._key.watched():
            self._act(provider_id, "install", wanted, permission)

    def release(self, provider_id: ProviderId, deadline: Deadline) -> None:
        """Delete the server."""
        try:
            self.get_machine(provider_id, deadline)
            self._api.delete(f"{self._servers}/{segment(provider_id)}", deadline, missing=MachineNotFound)
        except MachineNotFound:
            return  # it was deleted before

    def _act(self, provider_id: ProviderId, action: str, body: object, permission: Permission) -> None:
        path = f"{self._servers}/{segment(provider_id)}/{action}"
        self._api.interrupt("POST", path, body, permission, MachineNotFound)

    def _install(self, token: UUID | None, deadline: Deadline) -> dict[str, Any]:
        key = self._key.ensure(deadline)
        return {"os_id": self._settings.os, "hostname": f"shepherd-{token}", "ssh_key_ids": [key]}

    def _machines(self, deadline: Deadline) -> list[Machine]:
        entries = listed(self._api, self._servers, deadline, _PAGES, {"project_id": self._settings.project})
        servers = [parse(ScalewayServer, entry, f"server {entry['id']!r:.80}", ListingInvalid) for entry in entries]
        return [machine for server in servers if (machine := server.machine(self._settings)) is not None]

    def _keys(self, deadline: Deadline) -> list[StoredKey]:
        params = {"project_id": self._settings.project, "disabled": "false"}
        keys = [
            parse(ScalewayKey, each, "an SSH key") for each in listed(self._api, _KEYS, deadline, _KEY_PAGES, params)
        ]
        return [StoredKey(key.id, key.name, key.public_key, key.created_at or "") for key in keys]

    def _add_key(self, name: str, line: str, deadline: Deadline) -> None:
        wanted = {"name": name, "public_key": line, "project_id": self._settings.project}
        self._api.post(_KEYS, wanted, deadline)


build = ScalewayProvider
