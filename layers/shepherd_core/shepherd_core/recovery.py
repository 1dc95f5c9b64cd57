"""
A step of recovery on a machine: what came before it, taking it, and what came of it.

A step is recorded before it is taken, so that it counts even if the process is killed then. One that the provider
certainly did not take is no attempt. If no answer came, it may have been taken: it is waited for.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shepherd_core import telemetry
from shepherd_core.bmdb.recovery import remediation
from shepherd_core.bmdb.work.work import Failure, fail, finish_recovery
from shepherd_core.domain.errors import NoLongerDue
from shepherd_core.domain.errors.provider import (
    MachineNotFound,
    ProviderError,
    ProviderNotAsked,
    ProviderUnavailable,
    ProviderUnusable,
)
from shepherd_core.domain.machine import ProviderStatus
from shepherd_core.domain.remediation import RELEASE
from shepherd_core.rules.remediation import past_attempts

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime
    from uuid import UUID

    from shepherd_core.bmdb.recovery.remediation import RecoveryRecord
    from shepherd_core.bmdb.session import Session
    from shepherd_core.bmdb.work.work import Work
    from shepherd_core.domain.backoff import Backoff
    from shepherd_core.domain.clock import Deadline, Permission
    from shepherd_core.domain.machine import ProviderId
    from shepherd_core.domain.provider import Provider
    from shepherd_core.domain.remediation import NextStep, PastAttempt, StepKind, Take

_FAILURES = 3
"""After this many failures of the provider in a row, it is not asked any more."""


@dataclass(frozen=True, slots=True)
class Taken:
    """The step was taken, or may have been."""

    decision: NextStep
    error: Exception | None = None
    """Why no answer came to the request for the step; None: the provider accepted it."""


@dataclass(frozen=True, slots=True)
class NotTaken:
    """Nothing was done to the machine."""

    error: Exception
    recorded: bool = False
    """The step was on record."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The step failed after a request that interrupts the machine: it may have been taken."""

    error: Exception


Outcome = Taken | NotTaken | Failed


def position(past: RecoveryRecord, reset_after_seconds: float) -> tuple[list[PastAttempt], datetime | None]:
    """
    Return the attempts since the machine's policy started over; and if that is now, until when it was healthy, or None.

    It is healthy from the start of its agent, or from the last attempt if that is later, to its last heartbeat.
    """
    attempts, until = past_attempts(past.history), past.last_heartbeat_at
    if attempts and past.started_at is not None and until is not None:
        since = max(past.started_at, attempts[-1].at)
        if (until - since).total_seconds() >= reset_after_seconds:
            return [], until
    return attempts, None


class Steps:
    """Takes steps; if the provider fails for several machines, it is not asked for the rest. Safe in any thread."""

    def __init__(self, takes: Mapping[StepKind, Take], backoff: Backoff, provider: Provider | None = None) -> None:
        """
        Take steps with an effect outside as *takes* says; *backoff* follows a step that failed.

        Before a step on a machine that failed for good, the *provider* is asked whether it still says so.
        """
        self._takes = takes
        self._provider = provider
        self._backoff = backoff
        self._lock = threading.Lock()
        self._failures = 0
        self._cause: ProviderError | None = None

    def take(self, work: Work, decision: NextStep, permission: Permission) -> Outcome:
        """Take a step that is on record; the provider is asked at most once for a step that it accepts."""
        recorded = not (decision.concludes or decision.alive)
        try:
            if recorded and decision.step.kind in self._takes:
                self._ask(decision, work.provider_id, permission)
            else:
                permission.confirm()
        except Exception as error:  # noqa: BLE001 - it is the outcome
            if not permission.interrupted:
                return NotTaken(error, recorded)
            if not isinstance(error, ProviderUnavailable):
                return Failed(error)
            telemetry.warning("remediation step: no answer", machine_id=work.machine_id, cause=error)
            return Taken(decision, error)
        return Taken(decision)

    def _ask(self, decision: NextStep, provider_id: ProviderId | None, permission: Permission) -> None:
        kind = decision.step.kind
        if provider_id is None:
            message = "the machine is not provided: it has no provider id"
            raise MachineNotFound(message)
        if kind.needs is None:
            self._takes[kind](provider_id, permission)
            return
        with self._lock:
            if self._failures >= _FAILURES:
                message = f"the provider was not asked, because it failed for {self._failures} machines: {self._cause}"
                raise ProviderNotAsked(message)
        permission.deadline.check()
        try:
            if decision.failed and self._provider is not None:
                _require_failed(self._provider, kind, provider_id, permission.deadline)
            self._takes[kind](provider_id, permission)
        except ProviderError as error:
            self._answered(error if isinstance(error, (ProviderUnavailable, ProviderUnusable)) else None)
            raise
        self._answered(None)

    def _answered(self, failure: ProviderError | None) -> None:
        """Count failures that are no machine's fault, until the provider answers about a machine."""
        with self._lock:
            self._failures = self._failures + 1 if failure else 0
            self._cause = failure
            if self._failures == _FAILURES:
                telemetry.warning("provider outage: recovery waits", machines=self._failures, cause=failure)

    def finish(self, session: Session, outcomes: Mapping[Work, Outcome]) -> set[UUID]:
        """Commit the outcomes, and return the machines whose work that ended."""
        ended: set[UUID] = set()
        if not_taken := {work: each.error for work, each in outcomes.items() if isinstance(each, NotTaken)}:
            ended |= remediation.leave_alone(session, not_taken, self._backoff)
        if failed := {
            work: Failure(each.error, self._backoff.next(work.last_interval_seconds))
            for work, each in outcomes.items()
            if isinstance(each, Failed)
        }:
            ended |= fail(session, failed)
        taken = {work: each for work, each in outcomes.items() if isinstance(each, Taken)}
        for step in {each.decision.step for each in taken.values()}:
            errors = {work: each.error for work, each in taken.items() if each.decision.step == step}
            ended |= finish_recovery(session, errors, step)
        return ended


def _require_failed(provider: Provider, kind: StepKind, provider_id: ProviderId, deadline: Deadline) -> None:
    """
    Check that the provider still reports the machine as failed for good; one that is gone can only be released.

    Raises:
        NoLongerDue: it does not.
        ProviderError: it is unknown whether it does.
    """
    try:
        status = provider.get_machine(provider_id, deadline).status
    except MachineNotFound:
        if kind is RELEASE:
            return
        raise
    if status is not ProviderStatus.PROVISIONING_FAILED_PERMANENT:
        message = f"its provider does not report it as failed any more, but as {status or 'unknown'}"
        raise NoLongerDue(message)
