"""The interface of providers, and what they can offer. The adapters are in ``providers/``."""

from __future__ import annotations

from abc import abstractmethod
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from shepherd_core.domain.errors.provider import NotSupported

if TYPE_CHECKING:
    from uuid import UUID

    from shepherd_core.domain.clock import Deadline, Permission
    from shepherd_core.domain.machine import Machine, ProviderId


class Capability(StrEnum):
    """The operations that a provider can offer besides listing machines."""

    CREATE = "create"
    """Turn unused capacity into a machine."""
    REBOOT = "reboot"
    """Restart the machine, so that its operating system boots again."""
    POWER_CYCLE = "power-cycle"
    """Turn its power off and on."""
    REINSTALL = "reinstall"
    """Install a new operating system; everything on the machine is lost."""
    RELEASE = "release"
    """Return the machine to the provider for good."""


class Provider(Protocol):
    """
    A source of machines. Adapters inherit from this class; operations that they do not override raise ``NotSupported``.

    Adapters keep no state that matters between calls, never touch the BMDB,
    and are safe to call from several threads. Every method ends by its
    deadline, and raises nothing but:

    - ``ProviderUnavailable``: temporary (no answer, 429, 5xx). May be retried later.
    - ``ProviderRefused``: permanent (422). Something must be changed first.
    - ``ProviderUnusable``, a ``ProviderRefused``: no machine is at fault (401). ``ProviderForbidden`` (403) if the
      provider may allow the same for another machine or capacity.
    - ``MachineNotFound``, ``CapacityTaken``, ``NotSupported``, ``ListingInvalid`` where named below.
    - ``TimeLimitExceeded``: the deadline passed before a request could be sent.
    - the errors of ``Deadline.check`` and ``Permission.confirm``.

    They interrupt a machine only with a ``Permission``: they call its ``confirm`` immediately before such a request,
    and its ``declined`` afterwards if the request was certainly not accepted.

    No error holds a credential. Adapters retry requests that only read. A request that
    changes something is tried once, because the caller knows better when to repeat it.
    """

    @property
    def name(self) -> str:
        """Return the value of ``machine_provided.provider``: short, lower case, never changed."""

    @property
    @abstractmethod
    def capabilities(self) -> frozenset[Capability]:
        """Return what this provider can do. Methods of missing capabilities raise ``NotSupported``, and do nothing."""

    boot_seconds: float = 0.0
    """The usual seconds from the creation of a machine, if its status is ``Provisioning`` then, until SSH answers."""

    @abstractmethod
    def list_machines(self, deadline: Deadline) -> list[Machine]:
        """
        Return all our machines and all capacity, completely, in any order.

        Raises:
            ListingInvalid: the listing is incomplete or contradicts itself. A partial listing is never returned.
        """

    @abstractmethod
    def get_machine(self, provider_id: ProviderId, deadline: Deadline) -> Machine:
        """
        Return one deployed machine as it is now, without listing all.

        Raises:
            MachineNotFound: there is no such machine.
        """

    @abstractmethod
    def create_machine(self, capacity: Machine, token: UUID, deadline: Deadline) -> Machine:
        """
        Turn *capacity*, an unused entry of the listing, into a machine, and return it with its id.

        Idempotent by *token*: called again with the same token and the same
        capacity, by any caller and whatever the outcome of the earlier call, it
        returns the machine that exists instead of creating a second one. Where the
        provider can store it, the token appears in the listing
        (``Machine.token``). The machine is usually not up yet when this returns.

        Raises:
            CapacityTaken: the capacity is used by a machine without this token.
            ProviderRefused: nothing was created.
            ProviderUnavailable: it is unknown whether a machine was created. Call again with the same
                token, or find the token in a later listing.
        """

    def reboot(self, provider_id: ProviderId, permission: Permission) -> None:
        """
        Ask for a restart of the machine; returns when the provider accepted, not when it is up.

        Raises:
            MachineNotFound: there is no such machine.
            NotSupported: the provider cannot do it, or not with this machine; nothing was done.
        """
        raise _cannot(self, Capability.REBOOT)

    def power_cycle(self, provider_id: ProviderId, permission: Permission) -> None:
        """
        Ask to turn its power off and on; returns when the provider accepted, not when the machine is up.

        Raises:
            MachineNotFound: there is no such machine.
            NotSupported: the provider cannot do it, or not with this machine; nothing was done.
        """
        raise _cannot(self, Capability.POWER_CYCLE)

    def reinstall(self, provider_id: ProviderId, permission: Permission) -> None:
        """
        Ask for a new operating system; everything on the machine is lost, and its host key changes.

        Raises:
            MachineNotFound: there is no such machine.
            NotSupported: the provider cannot do it, or not with this machine; nothing was done.
        """
        raise _cannot(self, Capability.REINSTALL)

    def release(self, provider_id: ProviderId, deadline: Deadline) -> None:
        """
        Return the machine to the provider; everything on it is lost. Releasing it again succeeds.

        Its capacity may appear in the listing again, or not.
        """
        raise _cannot(self, Capability.RELEASE)


def _cannot(provider: Provider, capability: Capability) -> NotSupported:
    offered = ", ".join(sorted(provider.capabilities)) or "nothing"
    return NotSupported(f"the provider {provider.name} cannot {capability} machines; it can {offered}")
