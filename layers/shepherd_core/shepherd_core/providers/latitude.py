"""Servers at Latitude.sh: those of a project whose host names hold a token and a slot."""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, Any
from uuid import UUID

from shepherd_core.domain.machine import ProviderStatus
from shepherd_core.providers.kit.api_object import MachineAddress, Text, found_at
from shepherd_core.providers.kit.dialect import Dialect
from shepherd_core.providers.kit.hosting import Facts, HostedKey, HostedServer, HostingProvider, KeyStore
from shepherd_core.providers.kit.paging import PageNumbers
from shepherd_core.settings.base import LONGEST_SLOT

if TYPE_CHECKING:
    from shepherd_core.providers.kit.context import ProviderContext
    from shepherd_core.providers.kit.hosting import Action
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


def _document(kind: str, attributes: dict[str, Any]) -> dict[str, Any]:
    """Return the body of a request."""
    return {"data": {"type": kind, "attributes": attributes}}


class LatitudeServer(HostedServer):
    """One server; the answer to its creation has neither project nor region."""

    status: str = found_at("attributes.status")
    hostname: Text | None = found_at("attributes.hostname")
    address: MachineAddress | None = found_at("attributes.primary_ipv4", None)
    project: Text | None = found_at("attributes.project.id", None)
    site: Text | None = found_at("attributes.region.site.slug", None)

    def facts(self) -> Facts:
        """See ``HostedServer``."""
        return Facts(marks=[self.hostname], addresses=[self.address], location=self.site, project=self.project)


class LatitudeKey(HostedKey):
    """One SSH key."""

    name: Text | None = found_at("attributes.name", None)
    public_key: str = found_at("attributes.public_key")
    created_at: str | None = found_at("attributes.created_at", None)


class LatitudeProvider(HostingProvider):
    """The servers of a project that Shepherd made, and as many more as the limit allows."""

    name = "latitude"
    statuses = _STATUS
    server = LatitudeServer
    place = "data"
    paging = _PAGES
    dialect = Dialect(headers={"API-Version": "2023-06-01"})
    restart = ("actions", _document("actions", {"action": "reboot"}))
    start = ("actions", _document("actions", {"action": "power_on"}))
    _settings: LatitudeSettings

    def __init__(self, settings: LatitudeSettings, context: ProviderContext) -> None:
        query = {"filter[project]": settings.project, **_TOTAL}
        keys = KeyStore(path="/ssh_keys", key=LatitudeKey, paging=_PAGES, query=_TOTAL)
        super().__init__(settings, context, settings.project, query=query, keys=keys)

    def _mark(self, capacity_id: str | None, token: UUID) -> str:
        return name_of(token, capacity_id)

    def _claim(self, text: str) -> tuple[str, UUID] | None:
        token = token_of(text)
        return (f"{self._fleet}/{text.rpartition('-')[2]}", token) if token else None

    def _order(self, mark: str, key: str) -> dict[str, Any]:
        chosen = self._settings
        where = {"project": chosen.project, "site": chosen.location, "plan": chosen.machine_type}
        return _document("servers", {**where, "billing": chosen.billing, **self._installed(mark, key)})

    def _reinstallation(self, mark: str, key: str) -> Action:
        return "reinstall", _document("reinstalls", self._installed(mark, key))

    def _installed(self, mark: str, key: str) -> dict[str, Any]:
        return {"hostname": mark, "operating_system": self._settings.os, "ssh_keys": [key]}

    def _new_key(self, name: str, line: str) -> dict[str, Any]:
        return _document("ssh_keys", super()._new_key(name, line))


build = LatitudeProvider
