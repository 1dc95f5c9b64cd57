"""Machines as providers list them, and the processes and events that the BMDB records about them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NewType

if TYPE_CHECKING:
    from collections.abc import Mapping
    from ipaddress import IPv4Address, IPv6Address
    from uuid import UUID

LONGEST_TEXT = 128
"""Of an id, an address or a location; the columns of the BMDB hold as much."""

ProviderId = NewType("ProviderId", str)
"""Opaque text, unique and stable within one provider, at most LONGEST_TEXT characters. Never parse it."""

INVALID = ProviderId("invalid")
"""Stands for *no id yet*: capacity that the provider does not name."""


class Availability(StrEnum):
    """Whether a machine in a provider's listing is in use."""

    KNOWN_UNUSED = "KnownUnused"
    """Free capacity; it may lack id and address."""
    KNOWN_USED = "KnownUsed"
    """Deployed. Has an id, and an address unless it is still being provisioned."""
    POSSIBLY_USED = "PossiblyUsed"
    """The provider keeps no record of use: used if its id is in the BMDB, else unused."""


class ProviderStatus(StrEnum):
    """The status of a machine at its provider, in terms common to all providers."""

    MISSING = "Missing"
    PROVISIONING = "Provisioning"
    PROVISIONING_FAILED_PERMANENT = "ProvisioningFailedPermanent"
    RUNNING = "Running"
    STOPPED = "Stopped"
    UNKNOWN = "Unknown"


class Process(StrEnum):
    """The kinds of work on a machine. One work at a time is done on a machine, of whatever kind."""

    AGENT_START = "ShepherdAgentStart"
    RECOVERY = "ShepherdRecovery"
    REMOVAL = "ShepherdRemoval"
    """An operator or the Provisioner removes the machine from the BMDB."""


class WorkEvent(StrEnum):
    """The events in a machine's history."""

    STARTED = "Started"
    FINISHED = "Finished"
    FAILED = "Failed"
    CANCELED = "Canceled"
    EXPIRED = "Expired"
    """The session expired during the work; recorded by the next session that opens."""
    RECOVERED = "Recovered"
    """The machine recovered by itself: its agent reported before anything was done to it."""
    LOOKED = "Looked"
    """The Recoverer looked over SSH whether the machine is alive; ``seen`` says what it saw, or ``kind`` why it saw
    nothing. If the row has a step, that step is taken: it does not interrupt the machine, and is not an attempt."""
    ATTEMPTED = "Attempted"
    """A step of recovery is about to be taken; recorded before it is."""
    NOT_TAKEN = "NotTaken"
    """The last attempted step was certainly not taken; the cause says why."""
    HEALTHY = "Healthy"
    """At this time the machine had been healthy for long enough: its remediation policy starts over."""
    QUARANTINED = "Quarantined"
    """The machine is quarantined: no loop touches it any more."""
    UNQUARANTINED = "Unquarantined"
    """An operator ended the quarantine; its remediation policy starts over."""
    RETRIED = "Retried"
    """An operator ended a backoff."""
    RESUMED = "Resumed"
    """An operator ended a pause of the machine."""
    ADOPTED = "Adopted"
    """An operator added the machine, which was in use at the provider, to the BMDB."""
    REBOUND = "Rebound"
    """An operator said that the machine has another id at the provider now."""
    RELEASE_CANCELED = "ReleaseCanceled"
    """An operator canceled the release of the machine."""
    HOST_KEY_PINNED = "HostKeyPinned"
    """An operator pinned the SSH host key."""
    HOST_KEY_FORGOTTEN = "HostKeyForgotten"
    """An operator forgot the pinned SSH host key."""
    LABELED = "Labeled"
    """An operator gave the machine labels, or removed labels of operators."""


class HostKeyOrigin(StrEnum):
    """Where the pinned SSH host key of a machine is from."""

    FIRST_CONTACT = "FirstContact"
    """It was trusted when it was seen first."""
    PROVIDER = "Provider"
    """The provider, or the list of machines, names it."""
    OPERATOR = "Operator"
    """An operator pinned it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One entry of a provider's listing: a deployed machine, or capacity for one."""

    provider_id: ProviderId
    """``INVALID`` for capacity that has no id."""
    availability: Availability
    address: IPv4Address | IPv6Address | None = None
    """For SSH."""
    reservation_id: str | None = None
    """The provider's name for the capacity that the machine occupies, if it has one."""
    location: str | None = None
    status: ProviderStatus = ProviderStatus.UNKNOWN
    failed: bool = False
    """It failed permanently at the provider."""
    failure: str | None = None
    """The provider's word for that, for people."""
    token: UUID | None = None
    """The machine id that Shepherd gave as idempotency token when it created the machine."""
    host_key: str | None = None
    """Its SSH host key, ``ssh-ed25519 AAAA...``, if the provider knows it: pinned before the first contact."""
    hardware: str | None = None
    """A name of the hardware that outlasts its id and address, such as its BMC, if the provider knows one."""
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Those that people gave it at the provider."""

    @property
    def capacity_id(self) -> str | None:
        """The id of the capacity that this machine is or occupies: the reservation, else the provider id."""
        if self.reservation_id is not None:
            return self.reservation_id
        return None if self.provider_id == INVALID else self.provider_id
