"""The records of a provider's machines and capacity, which rules and loops use."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING
from uuid import UUID

from shepherd_core.domain.errors.kinds import FailureKind
from shepherd_core.domain.machine import ProviderId, ProviderStatus
from shepherd_core.domain.record import record

if TYPE_CHECKING:
    from collections.abc import Mapping


@record
class Provided:
    """A machine of the provider in the BMDB. Of a usual one, older than a day, only the first three are set."""

    machine_id: UUID
    provider_id: ProviderId
    heartbeat_seconds: float | None = field(default=None, compare=False)
    """Since the last heartbeat of its agent; None: there was none."""
    reservation_id: str | None = None
    status: ProviderStatus | None = None
    set_aside: bool = False
    """The Provisioner paused it, because the provider did not list it."""
    age_seconds: float = field(default=float("inf"), compare=False)
    """Since its creation was decided; infinite after a day."""
    asked_seconds: float | None = field(default=None, compare=False)
    """Since its release was requested; None: it was not."""
    released_seconds: float | None = field(default=None, compare=False)
    """Since the provider accepted the release; None: no acceptance is on record."""
    quarantined: bool = False
    """It counts towards the limit, but is neither set aside nor taken back, and does not count as drift if missing."""
    address: str | None = None
    """As the provider listed it last."""
    host_key: str | None = None
    """The SSH host key that is pinned."""
    hardware: str | None = None
    """As the provider listed it last."""


@record
class BadAgent:
    """An agent that fails in the same way on several machines, and runs on none."""

    agent_sha256: str
    kind: FailureKind
    machines: int

    def __str__(self) -> str:
        """Return what fails, human-readable."""
        return f"the agent {self.agent_sha256} fails on {self.machines} machines, with {self.kind}, and runs on none"


@record
class Tombstone:
    """The record of a decommissioned machine of the provider."""

    machine_id: UUID
    provider_id: ProviderId
    released: bool
    """Released to the provider; else it was forgotten, because the provider did not have it any more."""


@record
class Intent:
    """A decided creation whose outcome is not recorded yet."""

    machine_id: UUID
    capacity_id: str | None
    age_seconds: float = 0.0


@dataclass(frozen=True)
class Ledger:
    """All records of one provider's machines and capacity."""

    provided: tuple[Provided, ...] = ()
    intents: tuple[Intent, ...] = ()
    penalized: frozenset[str] = frozenset()
    """Ids of capacity that must not be used now."""
    tombstones: tuple[Tombstone, ...] = ()

    @cached_property
    def known(self) -> Mapping[ProviderId, Provided]:
        """The machines by provider id."""
        return {provided.provider_id: provided for provided in self.provided}
