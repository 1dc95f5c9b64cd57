"""
The way out of a disagreement: what an operator has done about single machines.

Two complete looks at both sides must agree before anything is done. The second
is taken right before, with the provider's lock in hand: no Provisioner and no
other operator is at work meanwhile. Everything may be interrupted anywhere and
asked for again; what was done by then is found done.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from shepherd_core import telemetry
from shepherd_core.bmdb.listings import provisioning
from shepherd_core.bmdb.session import Session
from shepherd_core.domain.errors import ProviderError, TimeLimitExceeded, WorkConflict
from shepherd_core.operator.adopt_forget import Result
from shepherd_core.rules.drift import Comparison

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shepherd_core.bmdb.connection import Connection
    from shepherd_core.domain.clock import Clock, Deadline
    from shepherd_core.domain.provider import Provider
    from shepherd_core.operator.adopt_forget import OperatorAction, Outcome

LOCK_SECONDS = 120.0
"""For which a Provisioner that is at work, or another operator, is waited for."""

LOOK_SECONDS = 2.0
"""Between two looks whether that one is done."""


@dataclass(frozen=True, slots=True)
class TwoPhase:
    """What is done about one provider's machines on an operator's behalf."""

    provider: Provider
    connection: Connection
    clock: Clock
    max_machines: int
    """As the Provisioner's; 0: no limit."""
    session_seconds: float
    interval_seconds: float
    """Between two looks at least."""

    def look(self, deadline: Deadline) -> Comparison:
        """
        Return what both sides say now, and change nothing.

        Raises:
            ProviderError: the listing failed.
            BmdbError: the BMDB did.
        """
        listing = self.provider.list_machines(deadline)
        return Comparison.of(listing, provisioning.ledger(self.connection, self.provider.name), self.clock.monotonic())

    def look_again(self, first: Comparison, deadline: Deadline) -> Comparison:
        """Return the same once more, when the interval is over. Raises what ``look`` raises."""
        self._wait(first)
        return self.look(deadline)

    def carry_out(
        self, remedy: OperatorAction, first: Comparison, deadline: Deadline, runtime_info: str
    ) -> list[Outcome]:
        """
        Look again, do what both looks allow, and return what became of each machine. May run twice.

        Raises:
            WorkConflict: somebody else is at work with this provider's machines; nothing was done.
            ProviderError: the listing failed; nothing was done.
            SessionExpired, BmdbError: ask again; what was done by then is found done.
        """
        self._wait(first)
        with self._alone(deadline, runtime_info) as session:
            second = self._look_in(session, deadline)
            verdicts = [self._do(remedy, session, verdict, second, deadline) for verdict in remedy.judge(first, second)]
            if any(verdict.result is Result.BEGUN for verdict in verdicts):
                last = self._look_in(session, deadline)
                verdicts = [remedy.finish(session, self.provider, verdict, last) for verdict in verdicts]
            return verdicts

    def _do(
        self, remedy: OperatorAction, session: Session, verdict: Outcome, look: Comparison, deadline: Deadline
    ) -> Outcome:
        if verdict.result is not Result.READY:
            return verdict
        session.renew()
        try:
            done = remedy.do(session, self.provider, verdict, look, deadline)
        except (ProviderError, WorkConflict, TimeLimitExceeded) as error:
            return verdict.now(Result.REFUSED, f"{type(error).__name__}: {error}")
        telemetry.info("resolved", **done.told)
        return done

    def _look_in(self, session: Session, deadline: Deadline) -> Comparison:
        listing = session.keep_alive(lambda: self.provider.list_machines(deadline))
        return Comparison.of(listing, provisioning.ledger(self.connection, self.provider.name), self.clock.monotonic())

    def _wait(self, first: Comparison) -> None:
        self.clock.sleep(max(0.0, first.at + self.interval_seconds - self.clock.monotonic()))

    @contextmanager
    def _alone(self, deadline: Deadline, runtime_info: str) -> Iterator[Session]:
        """Hold the provider's lock, as a Provisioner does."""
        name = self.provider.name
        session = Session.open(self.connection, self.clock, f"shepherdctl/{name}", runtime_info, self.session_seconds)
        try:
            patience = deadline.within(LOCK_SECONDS)
            while provisioning.take_lock(session, name) is None:
                if patience.remaining() <= 0:
                    message = f"a Provisioner of {name}, or another operator, is still at work: nothing was done"
                    raise WorkConflict(message)
                session.renew()
                session.keep_alive(partial(self.clock.sleep, LOOK_SECONDS))
            yield session
        finally:
            session.close()
