"""What the BMDB knows of a provider's machines and capacity: the records that rules and loops work on."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from shepherd_core.domain.machine import ProviderId, ProviderStatus


@dataclass(frozen=True, slots=True)
class Provided:
    """A machine that the BMDB knows as the provider's."""

    machine_id: UUID
    provider_id: ProviderId
    reservation_id: str | None
    status: ProviderStatus | None
    set_aside: bool = False
    """The Provisioner paused it, because the provider did not list it."""
    age_seconds: float = field(default=float("inf"), compare=False)
    """Since its creation was decided."""
    heartbeat_seconds: float | None = field(default=None, compare=False)
    """Since its agent reported last; None: no agent is known to have reported."""
    asked_seconds: float | None = field(default=None, compare=False)
    """Since its release was asked for; None: it was not."""
    released_seconds: float | None = field(default=None, compare=False)
    """Since the provider accepted that; None: that it did is not on record."""
    quarantined: bool = False
    """It counts, but is neither set aside nor taken back, and its absence stops nobody."""


@dataclass(frozen=True, slots=True)
class Departed:
    """A machine that was of the provider and is out of the BMDB's care."""

    machine_id: UUID
    provider_id: ProviderId
    released: bool
    """Given back to the provider; else it was forgotten, because the provider had it no more."""


@dataclass(frozen=True, slots=True)
class Intent:
    """A creation that was decided and whose outcome is not recorded."""

    machine_id: UUID
    capacity_id: str | None
    age_seconds: float = 0.0


@dataclass(frozen=True)
class Ledger:
    """All that the BMDB knows about one provider's machines and capacity."""

    provided: tuple[Provided, ...] = ()
    intents: tuple[Intent, ...] = ()
    penalized: frozenset[str] = frozenset()
    """Capacity ids to be left alone now."""
    departed: tuple[Departed, ...] = ()

    @cached_property
    def known(self) -> Mapping[ProviderId, Provided]:
        """What is provided, by provider id."""
        return {provided.provider_id: provided for provided in self.provided}
