"""The Updater: updates the BMDB's records of machines from their provider's listing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shepherd_core import telemetry
from shepherd_core.bmdb.listings import provider_facts
from shepherd_core.bmdb.session import Session
from shepherd_core.domain.machine import ProviderStatus
from shepherd_core.loops.base import Closing, tick_head
from shepherd_core.rules.drift import YOUNG_SECONDS, in_use
from shepherd_core.telemetry import Metric

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shepherd_core.bmdb.connection import Connection
    from shepherd_core.domain.clock import Clock, Deadline
    from shepherd_core.domain.machine import Machine
    from shepherd_core.domain.provider import Provider


def changes(
    listing: Sequence[Machine], known: Sequence[provider_facts.KnownMachine]
) -> list[provider_facts.FactsChange]:
    """
    Return the changes that make the records of *known* machines, all or some, match the complete *listing*.

    Raises:
        ListingInvalid: the listing contradicts itself.
    """
    used = in_use(listing, {each.provider_id for each in known})
    found = [provider_facts.FactsChange(each, _now(each, used.get(each.provider_id))) for each in known]
    return [change for change in found if change.now != change.known.facts]


def _now(known: provider_facts.KnownMachine, machine: Machine | None) -> provider_facts.ProviderFacts:
    if machine is not None:
        return provider_facts.ProviderFacts.of(machine)
    # A permanent failure stays on record when the machine is gone. It is then stranded, not vanished, so the drift
    # limit does not count it.
    if known.age_seconds <= YOUNG_SECONDS or known.facts.status is ProviderStatus.PROVISIONING_FAILED_PERMANENT:
        return known.facts
    return replace(known.facts, status=ProviderStatus.MISSING)


@dataclass(frozen=True, slots=True)
class Updater:
    """
    One provider's Updater. Any number may run at once: one works, the others end.

    Steady machines are compared after *update_seconds*, the others in every invocation. An invocation asks the provider
    for one listing, whatever the number of machines, or for none if there is nothing to compare.
    """

    provider: Provider
    connection: Connection
    clock: Clock
    session_seconds: float
    update_seconds: float

    def plan(self, deadline: Deadline) -> dict[str, object]:
        """Return the ``changes`` that ``run`` would make. Raises as ``run``."""
        outlook = provider_facts.check(self.connection, self.provider.name, self.update_seconds)
        if not outlook.wanted or outlook.paused:
            return {"changes": []}
        known = provider_facts.known(self.connection, self.provider.name, everything=outlook.due)
        found = changes(self.provider.list_machines(deadline), known)
        return {"changes": [change.summary for change in found]}

    def run(self, deadline: Deadline, runtime_info: str) -> dict[Metric, float]:
        """
        Update the records and return the counts; none if it is skipped, and the log has the reason.

        Raises:
            ProviderError: the listing failed; nothing was done.
            SessionExpired, BmdbError: the next invocation continues with the changes that were not written.
        """
        name = self.provider.name
        session = Session.open(
            self.connection, self.clock, tick_head("updater", name), runtime_info, self.session_seconds
        )
        counts: dict[Metric, float] = {}
        with Closing(session, lambda: counts):
            outlook = provider_facts.check(self.connection, name, self.update_seconds)
            if outlook.wanted and (
                outlook.paused or outlook.holder_alive or not provider_facts.begin(session, name, outlook.holder)
            ):
                telemetry.info("update skipped", reason=outlook.paused or "another Updater is running")
                counts = {} if outlook.paused else {Metric.LEFT: 1}
                return {}
            updates = dict.fromkeys((Metric.UPDATED, Metric.MISSING, Metric.INCOMPLETE), 0)
            counts = {**updates, Metric.NOT_READY: outlook.not_ready}
            if not outlook.wanted:
                return counts
            known = provider_facts.known(self.connection, name, everything=outlook.due)
            found = changes(session.run_renewing(lambda: self.provider.list_machines(deadline)), known)
            while found and deadline.remaining() > 0:
                for change in provider_facts.write(session, name, found[: provider_facts.CHUNK]):
                    counts[Metric.UPDATED] += 1
                    counts[Metric.MISSING] += change.now.status is ProviderStatus.MISSING
                    telemetry.info("machine updated", **change.summary)
                found = found[provider_facts.CHUNK :]
            if outlook.due and not found:
                provider_facts.end(session, name)
            counts[Metric.INCOMPLETE] = min(1, len(found))
        return counts
