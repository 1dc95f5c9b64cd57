"""
The Provisioner: turns unused capacity at the provider into machines of the BMDB.

An invocation takes the provider's lock, reads listing and ledger at the same time,
lets ``make_plan`` decide, and carries out the plan step by step. Before it asks the
provider for a machine, it records an intent, whose machine id is the token of the
creation. If it is killed at any point, the next one finds the intent, and with it
either the machine that was created or the capacity to retry on.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from shepherd_core import telemetry
from shepherd_core.bmdb.listings import decommissioning, provisioning
from shepherd_core.bmdb.session import Session
from shepherd_core.domain import records
from shepherd_core.domain.clock import CREATE_SECONDS
from shepherd_core.domain.errors import DriftLimitExceeded, TimeLimitExceeded
from shepherd_core.domain.errors.provider import (
    CapacityTaken,
    ProviderError,
    ProviderForbidden,
    ProviderRefused,
    ProviderUnavailable,
    ProviderUnusable,
)
from shepherd_core.domain.machine import ProviderStatus
from shepherd_core.loops.base import Closing, tick_head
from shepherd_core.rules.provisioning import ProvisioningPlan, make_plan, unanswered
from shepherd_core.telemetry import Metric

if TYPE_CHECKING:
    from uuid import UUID

    from shepherd_core.bmdb.connection import Connection
    from shepherd_core.bmdb.listings.provisioning import PreviousInvocation
    from shepherd_core.domain.clock import Clock, Deadline
    from shepherd_core.domain.machine import Machine, ProviderId
    from shepherd_core.domain.provider import Provider
    from shepherd_core.domain.records import Intent
    from shepherd_core.rules.provisioning import Creation, PlanLimits


WAITING_RECORD_SECONDS = 300.0
"""The age at which the record of waiting capacity is written again although it has not changed."""

REFUSALS = 3
"""This many refused creations end an invocation: the capacity is probably not the cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimits:
    """How fast machines are created, in seconds."""

    session_seconds: float
    creation_seconds: float
    """Between two creations at the provider, also across invocations; 0: none. An existing machine needs none."""
    penalty_seconds: float
    """For which failed capacity is not used."""
    boot_seconds: float | None = None
    """For which no agent start is tried on a machine that is ``Provisioning``; None: the provider's usual boot time."""


@dataclass(frozen=True, slots=True)
class _Origin:
    """The origin of a machine that is recorded."""

    metric: Metric
    created: bool = True
    """At the provider; else it existed already."""
    age_seconds: float = 0.0
    """Of its intent."""


class Provisioner:
    """One provider's Provisioner. Any number may run at once: one works, the others end."""

    def __init__(
        self, provider: Provider, connection: Connection, clock: Clock, limits: PlanLimits, rates: RateLimits
    ) -> None:
        self._provider = provider
        self._connection = connection
        self._clock = clock
        self._limits = limits
        self._rates = rates
        self._counts: Counter[Metric] = Counter()
        self._refusals = 0
        self._forbidden: list[tuple[Intent, ProviderForbidden]] = []

    def plan(self, deadline: Deadline) -> ProvisioningPlan:
        """Return the present plan, and change nothing. Raises as ``run``."""
        name = self._provider.name
        if reason := provisioning.paused(self._connection, name):
            telemetry.info("provisioning paused", reason=reason)
            return ProvisioningPlan()
        listing = self._provider.list_machines(deadline)
        plan = make_plan(listing, provisioning.ledger(self._connection, name), self._limits)
        self._ask(unanswered(listing), deadline)
        return plan

    def run(self, deadline: Deadline, runtime_info: str) -> dict[Metric, float]:
        """
        Carry out the plan until it is complete or *deadline* comes near, and return the counts.

        Raises:
            DriftLimitExceeded: too many machines drifted; nothing was done. The caller counts it.
            ProviderError: the provider's listing failed; nothing was done. Or all was done, and the states of most
                machines are unknown.
            ProviderUnusable: our credentials, permissions or settings are wrong; no capacity is penalized for it.
            SessionExpired: the session was lost; the next invocation continues.
            BmdbError: the BMDB failed; the next invocation continues.
        """
        name = self._provider.name
        head = tick_head("provisioner", name)
        session = Session.open(self._connection, self._clock, head, runtime_info, self._rates.session_seconds)
        with Closing(session, lambda: self._counts):
            past = provisioning.take_lock(session, name)
            if past is None:
                telemetry.info("another Provisioner is running")
                self._counts[Metric.LEFT] = 1
                return {}
            if reason := provisioning.paused(self._connection, name):
                telemetry.info("provisioning paused", reason=reason)
                return {}
            plan, doubtful = self._read(session, deadline)
            self._apply(plan, session)
            self._record_waiting(plan, session, past)
            self._create_machines(plan, session, deadline, past.idle_seconds)
            self._penalize_forbidden(session)
            session.run_renewing(partial(self._ask, doubtful, deadline))
        counted = (
            Metric.CREATED, Metric.INTENTS_COMPLETED, Metric.INTENTS_ABANDONED, Metric.ASSIMILATED, Metric.DRIFTED,
            Metric.CAPACITY_PENALIZED, Metric.MACHINES_TOTAL, Metric.WAITING_FOR_LIMIT, Metric.DRIFT_LIMIT_EXCEEDED,
            Metric.INCOMPLETE,
        )  # fmt: skip
        return {metric: self._counts[metric] for metric in counted}

    def _read(self, session: Session, deadline: Deadline) -> tuple[ProvisioningPlan, ProviderId | None]:
        """Read listing and ledger at the same time: the listing in a thread, the ledger here."""
        found = session.start_renewing(lambda: self._provider.list_machines(deadline))
        ledger = provisioning.ledger(self._connection, self._provider.name)
        try:
            listing = found()
            return make_plan(listing, ledger, self._limits), unanswered(listing)
        except DriftLimitExceeded as error:
            for each in error.drift:
                telemetry.error("drift limit exceeded", drift=each)
            raise

    def _ask(self, doubtful: ProviderId | None, deadline: Deadline) -> None:
        """
        Ask for a machine whose state, like that of most, the listing does not know.

        Raises:
            ProviderError: it is not known either: for one machine that is an error.
        """
        if doubtful is not None:
            try:
                self._provider.get_machine(doubtful, deadline)
            except (ProviderUnavailable, ProviderUnusable) as error:
                raise type(error)(f"the states of most machines are unknown: {error}") from error

    def _apply(self, plan: ProvisioningPlan, session: Session) -> None:
        self._counts[Metric.MACHINES_TOTAL] = plan.managed
        self._counts[Metric.DRIFTED] = len(plan.drift)
        for each in plan.drift:
            telemetry.warning("drift: machine set aside", drift=each)
        session.renew()  # not every statement below checks that the session has not expired
        for provided in plan.decommissioned:
            if decommissioning.remove_released(session, self._provider.name, provided.machine_id):
                released = {"machine_id": provided.machine_id, "provider_id": provided.provider_id}
                telemetry.info("released machine removed", **released)
        for provided in plan.take_back:
            provisioning.take_back(session, provided.machine_id)
        for provided in plan.set_aside:
            provisioning.set_aside(session, provided.machine_id, "the provider does not have it")
        for intent, machine in plan.complete:
            self._record(
                session, intent.machine_id, machine, _Origin(Metric.INTENTS_COMPLETED, age_seconds=intent.age_seconds)
            )
        for intent in plan.abandon:
            self._abandon(session, intent)
        for machine in plan.assimilate:
            machine_id = provisioning.adopt(session, self._provider.name, machine)
            if machine_id is not None:
                self._recorded(machine_id, machine, Metric.ASSIMILATED)

    def _record_waiting(self, plan: ProvisioningPlan, session: Session, past: PreviousInvocation) -> None:
        """Log and record what waits for the limit; ``shepherdctl status`` shows the record."""
        self._counts[Metric.WAITING_FOR_LIMIT] = plan.waiting
        limit = self._limits.max_machines
        if plan.waiting:
            telemetry.info("machine limit reached", waiting=plan.waiting, max_machines=limit)
        if plan.waiting != past.waiting or (plan.waiting and past.waiting_seconds > WAITING_RECORD_SECONDS):
            provisioning.record_waiting(session, self._provider.name, plan.waiting, limit)

    def _create_machines(
        self, plan: ProvisioningPlan, session: Session, deadline: Deadline, idle_seconds: float
    ) -> None:
        next_at = self._clock.monotonic() - idle_seconds + self._rates.creation_seconds
        creations, spare = deque(plan.create), deque(plan.spare)
        begun = plan.managed + sum(creation.intent is None for creation in plan.create)
        room = self._limits.max_machines - begun if self._limits.max_machines else len(spare)
        while creations:
            creation = creations.popleft()
            wait = 0.0 if creation.takes_over else max(0.0, next_at - self._clock.monotonic())
            if deadline.remaining() < wait + CREATE_SECONDS:
                self._counts[Metric.INCOMPLETE] = 1
                return
            if wait:
                session.run_renewing(partial(self._clock.sleep, wait))
            if not creation.takes_over:
                next_at = self._clock.monotonic() + self._rates.creation_seconds
            forbidden = len(self._forbidden)
            if not self._create(session, creation, deadline):
                return
            if len(self._forbidden) > forbidden and spare:
                room += creation.intent is None  # its intent was abandoned; one of an earlier invocation still counts
                if room > 0:
                    creations.append(spare.popleft())
                    room -= 1

    def _create(self, session: Session, creation: Creation, deadline: Deadline) -> bool:
        """Create one machine. False: the provider failed or is paused, and this invocation must end."""
        capacity, intent = creation.capacity, creation.intent
        session.renew()
        if intent is None:
            machine_id = provisioning.create_intent(session, self._provider.name, capacity.capacity_id)
            if machine_id is None:
                return False
            intent = records.Intent(machine_id, capacity.capacity_id)
        limit = deadline.within(CREATE_SECONDS, session.seconds_left)
        try:
            machine = session.run_renewing(lambda: self._provider.create_machine(capacity, intent.machine_id, limit))
        except ProviderUnusable as error:
            if creation.intent is None:
                self._abandon(session, intent)
            if not isinstance(error, ProviderForbidden):
                raise
            self._forbidden.append((intent, error))
            return True
        except (CapacityTaken, ProviderRefused) as error:
            self._penalize(session, intent, error)
            # This call created nothing, but an earlier one whose answer was lost may have.
            if creation.intent is None or isinstance(error, CapacityTaken):
                self._abandon(session, intent)
            self._refusals += isinstance(error, ProviderRefused)
            return self._refusals < REFUSALS
        except (ProviderError, TimeLimitExceeded) as error:
            # It may have been created. The intent stays: later the machine is adopted, or its creation repeated. A
            # provider that asks to retry later does not object to the capacity.
            if getattr(error, "retry_after", None) is None:
                self._penalize(session, intent, error)
            self._counts[Metric.INCOMPLETE] = 1
            return False
        self._record(session, intent.machine_id, machine, _Origin(Metric.CREATED, created=not creation.takes_over))
        return True

    def _penalize_forbidden(self, session: Session) -> None:
        """
        Penalize the capacity on which a creation was forbidden, if another creation was allowed.

        Raises:
            ProviderForbidden: every creation was forbidden, so our permission is at fault and not the capacity.
        """
        if self._forbidden and not self._counts[Metric.CREATED]:
            raise self._forbidden[-1][1]
        for intent, error in self._forbidden:
            self._penalize(session, intent, error)

    def _record(self, session: Session, machine_id: UUID, machine: Machine, origin: _Origin) -> None:
        usual = self._rates.boot_seconds if self._rates.boot_seconds is not None else self._provider.boot_seconds
        left = max(0.0, usual - origin.age_seconds) if machine.status is ProviderStatus.PROVISIONING else 0.0
        name = self._provider.name
        provisioning.provide(session, name, machine_id, machine, created=origin.created, boot_seconds=left)
        self._recorded(machine_id, machine, origin.metric)

    def _recorded(self, machine_id: UUID, machine: Machine, metric: Metric) -> None:
        self._counts[metric] += 1
        self._counts[Metric.MACHINES_TOTAL] += metric is Metric.CREATED  # the others are counted already
        telemetry.info("machine provided", machine_id=machine_id, provider_id=machine.provider_id, how=metric)

    def _abandon(self, session: Session, intent: Intent) -> None:
        provisioning.delete_intent(session, self._provider.name, intent)
        self._counts[Metric.INTENTS_ABANDONED] += 1

    def _penalize(self, session: Session, intent: Intent, error: Exception) -> None:
        telemetry.warning("capacity penalized", capacity_id=intent.capacity_id, cause=error)
        if intent.capacity_id is not None:
            seconds = self._rates.penalty_seconds
            provisioning.penalize(session, self._provider.name, intent.capacity_id, seconds, error)
            self._counts[Metric.CAPACITY_PENALIZED] += 1
