"""The words of the domain: what a machine is to a provider and to the BMDB."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NewType

if TYPE_CHECKING:
    from ipaddress import IPv4Address, IPv6Address
    from uuid import UUID

ProviderId = NewType("ProviderId", str)
"""Opaque text, unique and stable within one provider, at most 128 characters. Never parse it."""

INVALID = ProviderId("invalid")
"""Marks *no id yet*: capacity that the provider does not name."""


class Availability(StrEnum):
    """What a provider's listing says about the use of a machine."""

    KNOWN_UNUSED = "KnownUnused"
    """Capacity. May have neither id nor address."""
    KNOWN_USED = "KnownUsed"
    """Deployed. Has an id, and an address unless it is still being provisioned."""
    POSSIBLY_USED = "PossiblyUsed"
    """The provider keeps no record of use: used if its id is in the BMDB, else unused."""


class ProviderStatus(StrEnum):
    """The state of a machine at its provider, in words that fit all providers."""

    MISSING = "Missing"
    PROVISIONING = "Provisioning"
    PROVISIONING_FAILED_PERMANENT = "ProvisioningFailedPermanent"
    RUNNING = "Running"
    STOPPED = "Stopped"
    UNKNOWN = "Unknown"


class Capability(StrEnum):
    """What a provider can do with a machine, besides listing it."""

    CREATE = "create"
    """Turn unused capacity into a machine."""
    REBOOT = "reboot"
    """Restart the machine, so that its operating system boots again."""
    POWER_CYCLE = "power-cycle"
    """Cut its power and give it back."""
    REINSTALL = "reinstall"
    """Give it a fresh operating system; everything on it is lost."""
    RELEASE = "release"
    """Give it back to the provider; it is gone for good."""


class Process(StrEnum):
    """What may be going on with a machine; a machine has at most one live work for each."""

    ACCESS = "ShepherdAccess"
    AGENT_START = "ShepherdAgentStart"
    RECOVERY = "ShepherdRecovery"
    UNIT_TEST_1 = "UnitTest1"
    UNIT_TEST_2 = "UnitTest2"


class WorkEvent(StrEnum):
    """What the history of a machine records about work on it."""

    STARTED = "Started"
    FINISHED = "Finished"
    FAILED = "Failed"
    CANCELED = "Canceled"
    EXPIRED = "Expired"
    """The session died with the work in hand; found and recorded by the next session that opens."""
    RECOVERED = "Recovered"
    """The machine recovered by itself: its agent reported before anything was done to it."""
    ATTEMPTED = "Attempted"
    """A step of recovery is about to be taken; written before it is."""
    NOT_TAKEN = "NotTaken"
    """The step that was attempted last was certainly not taken; the cause says why."""
    SKIPPED = "Skipped"
    """A step of recovery cannot be taken."""
    HEALTHY = "Healthy"
    """Until then the machine had been healthy for a while: its recovery begins at the bottom again."""
    QUARANTINED = "Quarantined"
    """Recovery gave up on it: no loop touches it any more."""
    UNQUARANTINED = "Unquarantined"
    """An operator gave it back to the loops; its recovery begins at the bottom again."""
    RETRIED = "Retried"
    """An operator ended a backoff."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One entry of a provider's listing: a deployed machine, or capacity for one."""

    provider_id: ProviderId
    """``INVALID`` for capacity that has no id."""
    availability: Availability
    address: IPv4Address | IPv6Address | None = None
    """Where SSH answers."""
    reservation_id: str | None = None
    """The provider's name for the capacity that the machine occupies, if it has one."""
    location: str | None = None
    status: ProviderStatus = ProviderStatus.UNKNOWN
    failed: bool = False
    """The provider gave up on it. Present on one side only, it is not a discrepancy."""
    token: UUID | None = None
    """The machine id that Shepherd gave as idempotency token when it created the machine."""
    host_key: str | None = None
    """Its SSH host key, ``ssh-ed25519 AAAA...``, if the provider knows it: pinned before the first contact."""

    @property
    def capacity_id(self) -> str | None:
        """What names the capacity that this machine is or occupies: reservation, else provider id."""
        if self.reservation_id is not None:
            return self.reservation_id
        return None if self.provider_id == INVALID else self.provider_id
