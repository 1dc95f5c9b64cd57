"""The static provider: machines from a machine list, with SSH and without an API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shepherd_core.domain.machine import ProviderStatus
from shepherd_core.domain.provider import Capability, Provider
from shepherd_core.providers.kit.machine_list import MachineList, machine

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from shepherd_core.domain.clock import Deadline
    from shepherd_core.domain.machine import Machine, ProviderId
    from shepherd_core.providers.kit.context import ProviderContext
    from shepherd_core.settings.providers.static import StaticSettings


class StaticProvider(Provider):
    """
    A provider whose machines are the entries of a JSON list.

    ``[{"ID": "rack1-3", "Addr": "192.0.2.13", "Location": "Amsterdam"}, …]``:
    *ID* is the provider id, *Addr* the IP address for SSH, and *Location* is
    optional. The machine of an entry is running. For *read* see
    ``MachineList``.
    """

    name = "static"
    capabilities = frozenset({Capability.CREATE})

    def __init__(self, read: Callable[[], bytes]) -> None:
        self._list = MachineList(read)

    def list_machines(self, deadline: Deadline) -> list[Machine]:
        """
        Return all entries.

        Raises:
            ListingInvalid: the list has errors; each is named with entry, field, value and what it must be.
        """
        return [machine(entry, ProviderStatus.RUNNING) for entry in self._list.entries(deadline)]

    def get_machine(self, provider_id: ProviderId, deadline: Deadline) -> Machine:
        """Return one entry."""
        return machine(self._list.entry(provider_id, deadline), ProviderStatus.RUNNING)

    def create_machine(self, capacity: Machine, token: UUID, deadline: Deadline) -> Machine:
        """Return the entry of *capacity*, as used; see ``MachineList.take``."""
        return self._list.take(capacity, token, ProviderStatus.RUNNING, deadline)


def build(settings: StaticSettings, context: ProviderContext) -> StaticProvider:
    """Return the provider of these settings."""
    return StaticProvider(context.cached(settings.machines))
