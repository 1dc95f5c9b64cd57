"""
Giving machines back to their provider, and keeping them after all.

A release is on record before the provider is asked, and the machine is on hold
from then on. When the provider accepted, and has it no more, it is taken out of
the BMDB: here if that is at once, else by the Provisioner. Until then it counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shepherd_core.bmdb.listings import departures
from shepherd_core.domain.errors import NotSupported, ProviderRefused
from shepherd_core.domain.machine import ProviderId
from shepherd_core.operator.adopt_forget import OnePhase, Outcome, Result, absent, machine_id_of
from shepherd_core.rules.drift import YOUNG_SECONDS, alive

if TYPE_CHECKING:
    from uuid import UUID

    from shepherd_core.bmdb.listings.departures import Order
    from shepherd_core.bmdb.session import Session
    from shepherd_core.domain.clock import Deadline
    from shepherd_core.domain.provider import Provider
    from shepherd_core.rules.drift import Comparison

RELEASE_SECONDS = 60.0
"""What one release at the provider may take."""


@dataclass(frozen=True, slots=True)
class Release:
    """Give machines back to the provider; what is on them is lost."""

    machine_ids: tuple[UUID, ...]
    order: Order

    def judge(self, first: Comparison, second: Comparison) -> list[Outcome]:
        """See ``Remedy``."""
        return [self._judge(machine_id, first, second) for machine_id in self.machine_ids]

    def _judge(self, machine_id: UUID, first: Comparison, second: Comparison) -> Outcome:
        provided = second.machine(machine_id)
        if provided is None:
            return absent(machine_id, second)
        name = provided.provider_id
        verdict = Outcome(Result.REFUSED, "", name, machine_id)
        if provided.released_seconds is not None and not second.has(name):
            return verdict.now(Result.BEGUN, "released")
        if first.machine(machine_id) is None or first.has(name) != second.has(name):
            return verdict.now(Result.REFUSED, "the two looks do not agree whether the provider has it in use")
        if not second.has(name) and provided.asked_seconds is None:
            return verdict.now(Result.REFUSED, "the provider does not have it in use; see forget")
        if alive(provided) and not self.order.despite_heartbeat:
            words = f"its agent reported {provided.heartbeat_seconds:.0f} s ago"
            return verdict.now(Result.REFUSED, words)
        return verdict.now(Result.READY, "will be given back")

    def do(
        self, session: Session, provider: Provider, verdict: Outcome, look: Comparison, deadline: Deadline
    ) -> Outcome:
        """See ``Remedy``. The record comes first, so that whoever finds the machine gone finds why."""
        del look
        machine_id, name = machine_id_of(verdict), verdict.provider_id or ProviderId("")
        new = departures.ask_release(session, provider.name, machine_id, self.order)
        limit = deadline.within(RELEASE_SECONDS, session.left)
        try:
            limit.check()
            session.keep_alive(lambda: provider.release(name, limit))
        except (ProviderRefused, NotSupported):
            # This call did nothing; an earlier one, of which no answer came, may have.
            if new:
                departures.withdraw(session, provider.name, machine_id)
            raise
        departures.accept(session, machine_id)
        return verdict.now(Result.BEGUN, "accepted; until the provider lists it no more it counts as a machine")

    def finish(self, session: Session, provider: Provider, verdict: Outcome, look: Comparison) -> Outcome:
        """See ``Remedy``. What is still listed here is left to the Provisioner."""
        if verdict.result is not Result.BEGUN or verdict.provider_id is None or look.has(verdict.provider_id):
            return verdict
        removed = departures.remove(session, provider.name, machine_id_of(verdict))
        return verdict.now(Result.DONE, "released") if removed else verdict


@dataclass(frozen=True, slots=True)
class CancelRelease(OnePhase):
    """Keep machines after all whose release was asked for and did not happen."""

    machine_ids: tuple[UUID, ...]

    def judge(self, first: Comparison, second: Comparison) -> list[Outcome]:
        """See ``Remedy``."""
        return [self._judge(machine_id, first, second) for machine_id in self.machine_ids]

    def _judge(self, machine_id: UUID, first: Comparison, second: Comparison) -> Outcome:
        provided = second.machine(machine_id)
        if provided is None:
            return absent(machine_id, second, gone=Result.REFUSED)
        verdict = Outcome(Result.REFUSED, "", provided.provider_id, machine_id)
        if provided.asked_seconds is None:
            return verdict.now(Result.DONE, "is not to be released")
        if provided.released_seconds is not None:
            return verdict.now(Result.REFUSED, "the provider accepted its release")
        if not (first.has(provided.provider_id) and second.has(provided.provider_id)):
            return verdict.now(Result.REFUSED, "the provider does not have it in use")
        if provided.asked_seconds <= YOUNG_SECONDS:
            words = f"its release was asked for {provided.asked_seconds:.0f} s ago and may yet show an effect"
            return verdict.now(Result.REFUSED, words)
        return verdict.now(Result.READY, "will be kept")

    def do(
        self, session: Session, provider: Provider, verdict: Outcome, look: Comparison, deadline: Deadline
    ) -> Outcome:
        """See ``Remedy``."""
        del look, deadline
        departures.withdraw(session, provider.name, machine_id_of(verdict))
        return verdict.now(Result.DONE, "kept")
