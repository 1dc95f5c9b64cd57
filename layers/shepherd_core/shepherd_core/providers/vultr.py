"""Bare-metal servers at Vultr: those of an account with a mark of our fleet among their tags."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shepherd_core.domain import labels
from shepherd_core.domain.machine import ProviderStatus
from shepherd_core.providers.kit import fields
from shepherd_core.providers.kit.api_object import Text, found_at
from shepherd_core.providers.kit.hosting import Facts, HostedKey, HostedServer, HostingProvider, KeyStore
from shepherd_core.providers.kit.paging import NextLinks

if TYPE_CHECKING:
    from shepherd_core.providers.kit.context import ProviderContext
    from shepherd_core.providers.kit.hosting import Action
    from shepherd_core.settings.providers.vultr import VultrSettings

_STATUS = {
    "active": ProviderStatus.RUNNING,  # or off: the API does not tell
    "pending": ProviderStatus.PROVISIONING,
    "suspended": ProviderStatus.UNKNOWN,  # by Vultr, for a reason that the API does not tell
}


class VultrServer(HostedServer):
    """One server."""

    main_ip: str
    """0.0.0.0 until it has one."""
    tags: tuple[str, ...]
    region: Text | None = None

    def facts(self) -> Facts:
        """See ``HostedServer``."""
        address, tags = fields.address(self.main_ip), map(labels.split, self.tags)
        return Facts(marks=self.tags, addresses=[address], location=self.region, tags=tags)


class VultrKey(HostedKey):
    """One SSH key."""

    public_key: str = found_at("ssh_key")
    created_at: str | None = found_at("date_created", None)


def _pages(entries: str) -> NextLinks:
    return NextLinks(
        entries=entries, next="meta.links.next", cursor="cursor", total="meta.total", size="per_page", per_page=500
    )


class VultrProvider(HostingProvider):
    """The servers of the fleet, and as many more as the limit allows."""

    name = "vultr"
    statuses = _STATUS
    server = VultrServer
    place = "bare_metal"
    paging = _pages("bare_metals")
    restart = ("reboot", None)
    _settings: VultrSettings

    def __init__(self, settings: VultrSettings, context: ProviderContext) -> None:
        keys = KeyStore(path="/ssh-keys", key=VultrKey, paging=_pages("ssh_keys"))
        super().__init__(settings, context, settings.fleet, servers="/bare-metals", keys=keys)

    def _order(self, mark: str, key: str) -> dict[str, Any]:
        chosen = self._settings
        what = {"region": chosen.location, "plan": chosen.machine_type, "os_id": chosen.os, "sshkey_id": [key]}
        return {**what, "label": mark, "hostname": mark, "tags": [mark]}

    def _reinstallation(self, mark: str, key: str) -> Action:  # noqa: ARG002 - it keeps its keys
        return "reinstall", {"hostname": mark}

    def _new_key(self, name: str, line: str) -> dict[str, Any]:
        return {"name": name, "ssh_key": line}


build = VultrProvider
