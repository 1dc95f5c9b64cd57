"""
Drift repair: an operator's actions on single machines.

A comparison of provider and BMDB decides. It is made just before the actions,
while holding the provider's lock, so that no Provisioner and no other operator
works meanwhile. A command may be interrupted at any point and run again; it
then finds the earlier actions done.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from shepherd_core import telemetry
from shepherd_core.bmdb.listings import provisioning
from shepherd_core.bmdb.session import Session
from shepherd_core.domain.errors import TimeLimitExceeded, cause_of
from shepherd_core.domain.errors.bmdb import WorkConflict
from shepherd_core.domain.errors.provider import ProviderError
from shepherd_core.operator.adopt_forget import ActionResult
from shepherd_core.rules.drift import Comparison

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shepherd_core.bmdb.connection import Connection
    from shepherd_core.domain.clock import Clock, Deadline
    from shepherd_core.domain.machine import Machine
    from shepherd_core.domain.provider import Provider
    from shepherd_core.operator.adopt_forget import ActionOutcome, OperatorAction

LOCK_SECONDS = 120.0
"""How long to wait for a Provisioner or another operator that holds the lock."""

RETRY_SECONDS = 2.0
"""Between two attempts to take the lock."""


@dataclass(frozen=True, slots=True)
class DriftRepair:
    """Carries out operator actions on one provider's machines."""

    provider: Provider
    connection: Connection
    clock: Clock
    max_machines: int
    """As the Provisioner's; 0: no limit."""
    session_seconds: float

    def compare(self, deadline: Deadline) -> Comparison:
        """
        Compare both sides now, and change nothing.

        Raises:
            ProviderError: the listing failed.
            BmdbError: the BMDB failed.
        """
        return self._with_ledger(self.provider.list_machines(deadline))

    def carry_out(
        self, action: OperatorAction, confirmed: Sequence[ActionOutcome], deadline: Deadline, runtime_info: str
    ) -> list[ActionOutcome]:
        """
        Compare both sides, apply the action where it is allowed, and return the outcome for each machine.

        A machine that was not ready when the operator *confirmed* is left alone. May run twice.

        Raises:
            WorkConflict: a Provisioner or another operator holds the provider's lock; nothing was done.
            ProviderError: the listing failed; nothing was done.
            SessionExpired, BmdbError: run it again; it finds the earlier actions done.
        """
        with self._alone(deadline, runtime_info) as session:
            comparison = self._compare_in(session, deadline)
            outcomes = [
                self._apply(action, session, was, outcome, comparison, deadline)
                for was, outcome in zip(confirmed, action.evaluate(comparison), strict=True)
            ]
            if any(outcome.result is ActionResult.BEGUN for outcome in outcomes):
                last = self._compare_in(session, deadline)
                outcomes = [action.finish(session, self.provider, outcome, last) for outcome in outcomes]
            return outcomes

    def _apply(
        self,
        action: OperatorAction,
        session: Session,
        was: ActionOutcome,
        outcome: ActionOutcome,
        comparison: Comparison,
        deadline: Deadline,
    ) -> ActionOutcome:
        """Apply *action* to a machine that is ready, and *was* when the operator confirmed."""
        if outcome.result is not ActionResult.READY:
            return outcome
        if was.result is not ActionResult.READY:
            return outcome.with_result(ActionResult.REFUSED, f"when you confirmed, it was {was.result}: {was.text}")
        session.renew()
        try:
            done = action.apply(session, self.provider, outcome, comparison, deadline)
        except (ProviderError, WorkConflict, TimeLimitExceeded) as error:
            return outcome.with_result(ActionResult.REFUSED, str(cause_of(error)))
        telemetry.info("operator action applied", **done.record)
        return done

    def _compare_in(self, session: Session, deadline: Deadline) -> Comparison:
        return self._with_ledger(session.run_renewing(lambda: self.provider.list_machines(deadline)))

    def _with_ledger(self, listing: Sequence[Machine]) -> Comparison:
        return Comparison.of(listing, provisioning.ledger(self.connection, self.provider.name))

    @contextmanager
    def _alone(self, deadline: Deadline, runtime_info: str) -> Iterator[Session]:
        """Hold the provider's lock, as a Provisioner does."""
        name = self.provider.name
        session = Session.open(self.connection, self.clock, f"shepherdctl/{name}", runtime_info, self.session_seconds)
        try:
            wait = deadline.within(LOCK_SECONDS)
            while provisioning.take_lock(session, name) is None:
                if wait.remaining() <= 0:
                    message = f"a Provisioner of {name}, or another operator, is still running: nothing was done"
                    raise WorkConflict(message)
                session.renew()
                session.run_renewing(partial(self.clock.sleep, RETRY_SECONDS))
            yield session
        finally:
            session.close()
