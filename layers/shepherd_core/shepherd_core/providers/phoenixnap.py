"""Servers of phoenixNAP's Bare Metal Cloud: those of an account whose host names are marks of our fleet."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import TYPE_CHECKING, Any

from shepherd_core.domain.errors.provider import MachineNotFound, ProviderRefused
from shepherd_core.domain.machine import ProviderStatus
from shepherd_core.providers.kit import fields
from shepherd_core.providers.kit.api_object import ApiObject, Text, found_at
from shepherd_core.providers.kit.auth import ClientCredentials
from shepherd_core.providers.kit.hosting import Facts, HostedServer, HostingProvider
from shepherd_core.providers.kit.paging import OnePage

if TYPE_CHECKING:
    from collections.abc import Callable

    from shepherd_core.domain.clock import Deadline
    from shepherd_core.domain.machine import Machine, ProviderId
    from shepherd_core.providers.kit.auth import Authentication
    from shepherd_core.providers.kit.context import ProviderContext
    from shepherd_core.providers.kit.hosting import Action
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


class PhoenixnapTag(ApiObject):
    """One tag of a server."""

    name: str
    value: str | None = None


class PhoenixnapServer(HostedServer):
    """One server."""

    hostname: Text
    location: Text | None = None
    addresses: tuple[str, ...] = found_at("publicIpAddresses", ())
    """A range, as the API writes it in other places, stands for its first address."""
    tags: tuple[PhoenixnapTag, ...] = ()

    def facts(self) -> Facts:
        """See ``HostedServer``."""
        addresses = [fields.address(each.partition(" - ")[0]) for each in self.addresses]
        tags = [(tag.name, tag.value or "") for tag in self.tags]
        return Facts(marks=[self.hostname], addresses=addresses, location=self.location, tags=tags)


class PhoenixnapProvider(HostingProvider):
    """The servers of the fleet, and as many more as the limit allows."""

    name = "phoenixnap"
    statuses = _STATUS
    server = PhoenixnapServer
    paging = OnePage()
    restart = ("actions/reboot", None)
    start = ("actions/power-on", None)
    _settings: PhoenixnapSettings

    def __init__(self, settings: PhoenixnapSettings, context: ProviderContext) -> None:
        super().__init__(settings, context, settings.fleet)

    def _login(self, read: Callable[[], str], context: ProviderContext) -> Authentication:
        return ClientCredentials(self._settings.auth_url, read, context.clock)

    def get_machine(self, provider_id: ProviderId, deadline: Deadline) -> Machine:
        """Return one of our servers."""
        try:
            return super().get_machine(provider_id, deadline)
        except ProviderRefused:
            # The description has 400 and 403 for a server that is gone, and no 404: only the listing is sure.
            if any(each.provider_id == provider_id for each in self._machines(deadline)):
                raise
            raise MachineNotFound(f"server {provider_id} is not listed") from None

    def _order(self, mark: str, key: str) -> dict[str, Any]:
        # The keys are for the distribution's own user; cloud-init admits root.
        config = json.dumps({"disable_root": False, "ssh_authorized_keys": [key]})
        return {
            "hostname": mark,
            "location": self._settings.location,
            "type": self._settings.machine_type,
            "os": self._settings.os,
            "pricingModel": "HOURLY",
            "osConfiguration": {"cloudInit": {"userData": b64encode(f"#cloud-config\n{config}\n".encode()).decode()}},
            **_keys(key),
        }

    def _reinstallation(self, mark: str, key: str) -> Action:  # noqa: ARG002 - it keeps its host name
        return "actions/reset", _keys(key)

    def _give_back(self, path: str, deadline: Deadline) -> None:
        """Give the server back, with the block of addresses that was made for it."""
        self._api.post(f"{path}/actions/deprovision", {"deleteIpBlocks": True}, deadline, missing=MachineNotFound)


def _keys(key: str) -> dict[str, Any]:
    return {"sshKeys": [key], "installDefaultSshKeys": False}


build = PhoenixnapProvider
