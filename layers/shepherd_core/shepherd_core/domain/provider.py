"""What a provider must be able to do, and nothing else. Adapters are in ``providers/``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from shepherd_core.domain.errors import NotSupported
from shepherd_core.domain.machine import Capability

if TYPE_CHECKING:
    from uuid import UUID

    from shepherd_core.domain.clock import Deadline
    from shepherd_core.domain.machine import Machine, ProviderId


class Provider(Protocol):
    """
    A source of machines; adapters inherit from this class, and with it what they cannot do.

    Adapters keep no state that matters between calls, never touch the BMDB,
    and are safe to call from several threads. Every method ends by its
    deadline, and raises nothing but:

    - ``ProviderUnavailable``: passing (no answer, 429, 5xx). May be tried again later.
    - ``ProviderRefused``: permanent (422). Somebody must change something first. As ``ProviderUnusable`` (401, 403)
      it is no machine's fault.
    - ``MachineNotFound``, ``CapacityTaken``, ``NotSupported``, ``ListingInvalid`` where named below.
    - ``TimeLimitExceeded``: the deadline passed before a request could be sent.
    - what ``Deadline.check`` and ``confirm`` raise.

    Just before a request that interrupts a machine they call ``Deadline.confirm``, as the last thing, and
    ``Deadline.declined`` if it was certainly not accepted.

    No error holds a credential. Adapters retry what only reads; what changes
    something is tried once, because the caller knows better when to repeat it.
    """

    @property
    def name(self) -> str:
        """Return the value of ``machine_provided.provider``: short, lower case, never changed."""

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Return what this provider can do. The methods of what is missing raise ``NotSupported``, and do nothing."""

    boot_seconds: float = 0.0
    """What it usually takes from the creation of a machine, while it is ``Provisioning``, until SSH answers."""

    def list_machines(self, deadline: Deadline) -> list[Machine]:
        """
        Return every machine of ours and all capacity, completely; the order means nothing.

        Raises:
            ListingInvalid: the listing is incomplete or contradicts itself. Never a silent part.
        """

    def get_machine(self, provider_id: ProviderId, deadline: Deadline) -> Machine:
        """
        Return one deployed machine as it is now, without listing all.

        Raises:
            MachineNotFound: there is no such machine.
        """

    def create_machine(self, capacity: Machine, token: UUID, deadline: Deadline) -> Machine:
        """
        Turn *capacity*, an unused entry of the listing, into a machine, and return it with its id.

        Idempotent by *token*: called again with the same token and the same
        capacity, by whomever and whatever became of the earlier call, it returns
        the machine that exists instead of creating a second one. Where the
        provider can store it, the token is found again in the listing
        (``Machine.token``). The machine is usually not up yet when this returns.

        Raises:
            CapacityTaken: the capacity is used by a machine without this token.
            ProviderRefused: nothing was created.
            ProviderUnavailable: unknown whether it was created. Call again with the same token, or
                find the token in a later listing.
        """

    def reboot(self, provider_id: ProviderId, deadline: Deadline) -> None:
        """
        Ask for a restart of the machine; returns when the provider accepted, not when it is up.

        Raises:
            MachineNotFound: there is no such machine.
            NotSupported: the provider cannot do it, or not with this machine; nothing was done.
        """
        raise _cannot(self, Capability.REBOOT)

    def power_cycle(self, provider_id: ProviderId, deadline: Deadline) -> None:
        """
        Ask that its power be cut and given back; returns when the provider accepted, not when it is up.

        Raises:
            MachineNotFound: there is no such machine.
            NotSupported: the provider cannot do it, or not with this machine; nothing was done.
        """
        raise _cannot(self, Capability.POWER_CYCLE)

    def reinstall(self, provider_id: ProviderId, deadline: Deadline) -> None:
        """
        Ask for a fresh operating system; everything on the machine is lost, and its host key changes.

        Raises:
            MachineNotFound: there is no such machine.
            NotSupported: the provider cannot do it, or not with this machine; nothing was done.
        """
        raise _cannot(self, Capability.REINSTALL)

    def release(self, provider_id: ProviderId, deadline: Deadline) -> None:
        """
        Give the machine back; everything on it is lost. May be called again: what is gone already is released.

        Its capacity may be offered again, by this provider's listing or not at all.
        """
        raise _cannot(self, Capability.RELEASE)


def _cannot(provider: Provider, capability: Capability) -> NotSupported:
    offered = ", ".join(sorted(provider.capabilities)) or "nothing"
    return NotSupported(f"the provider {provider.name} cannot {capability} machines; it can {offered}")
