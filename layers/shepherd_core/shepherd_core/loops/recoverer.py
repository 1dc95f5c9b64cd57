"""
The Recoverer: brings back machines whose agent has fallen silent, step by step, and gives up on those that stay so.

Which step is next follows from what was tried before; ``ladder`` has the rules.
A step is put on record before it is taken, and what became of it afterwards. If
this dies in between, nobody knows whether it was taken: then it is not repeated,
but the machine waited for as after any step. Just before it is taken it is
asked once more whether the machine is still silent: one that reports again, or
was paused, is not touched. A step that the provider certainly did not take is
no attempt; if it fails so for several machines, the rest is not asked for.

Before it claims anything it asks whether that many machines can be silent by
themselves, or whether they are not heard through a fault of ours; ``breaker``
has the rule. Then it holds back, and reboots nobody.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, cast

from shepherd_core import telemetry
from shepherd_core.bmdb.recovery import overrides, remediation, suspension
from shepherd_core.bmdb.work.work import finish_recovery
from shepherd_core.domain.errors import (
    MachineNotFound,
    NotSupported,
    ProviderError,
    ProviderRefused,
    ProviderUnavailable,
    ProviderUnusable,
)
from shepherd_core.domain.health import Unhealthy
from shepherd_core.domain.machine import Process
from shepherd_core.domain.remediation import NextStep, StepName, Timeouts
from shepherd_core.loops.base import Admission
from shepherd_core.rules.circuit_breaker import (
    WHOLE_PROVIDER,
    BreakerLimits,
    by_number,
    by_share,
    ssh_outages,
    total,
    where,
)
from shepherd_core.rules.remediation import DEFAULT, healthy_until, next_step, parse_policy, past_attempts, possible
from shepherd_core.telemetry import Metric

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime
    from uuid import UUID

    from shepherd_core.bmdb.recovery.remediation import Spared
    from shepherd_core.bmdb.session import Session
    from shepherd_core.bmdb.work.work import HealthTimeouts, Work
    from shepherd_core.domain.backoff import Backoff
    from shepherd_core.domain.clock import Deadline
    from shepherd_core.domain.errors import NoLongerDue
    from shepherd_core.domain.machine import ProviderId
    from shepherd_core.domain.provider import Provider
    from shepherd_core.domain.remediation import Step
    from shepherd_core.loops.base import Attempt


_FAILURES = 3
"""After so many failures of the provider, with no step taken in between, nothing more is asked of it for a while."""


class Recoverer:
    """Does not wait for the machines: the Initializer comes back when they should be up."""

    process = Process.RECOVERY

    def __init__(
        self,
        provider: Provider,
        *,
        silence: HealthTimeouts,
        boot_wait_seconds: float,
        backoff: Backoff,
        budgets: BreakerLimits | None = None,
        ladder: Sequence[Step] | None = None,
        reset_after_seconds: float = 3600,
    ) -> None:
        """
        Take these settings.

        *boot_wait_seconds*: how long a machine takes to come up, where there is no
        *ladder*; *budgets*: how many may be silent at once; *reset_after_seconds*:
        how long an agent must report for its machine's ladder to begin anew.
        """
        self.silence = silence
        self._judged_by = silence
        self.backoff = backoff
        self._outage = _Outage()
        self._provider = provider
        self._ladder = ladder or parse_policy(DEFAULT, Timeouts(settle=boot_wait_seconds))
        self._healthy_seconds = reset_after_seconds
        self._budgets = budgets or BreakerLimits()

    @property
    def guard(self) -> Recoverer:
        """Return this: it interrupts machines."""
        return self

    def admit(self, session: Session) -> Admission:
        """Hold back where too many machines are silent, and admit as many as were counted elsewhere."""
        provider = self._provider.name
        held, look = self._judge(session, suspension.take_snapshot(session, provider, self.silence))
        self._judged_by = look.silence
        if (patience := look.silence.recover_silent_seconds) > self.silence.heartbeat_timeout_seconds:
            # Else those that are the last to report again after an outage of the BMDB would be rebooted for it.
            telemetry.info(
                "recovery waits longer: nobody looked for a time in which machines may not have been heard",
                gaps=[{"seconds": round(gap.seconds), "ended_ago": round(gap.ended_ago)} for gap in look.silence.gaps],
                silent_for_seconds=round(patience),
            )
        if held or look.held:
            for location in suspension.record(session, provider, held):
                telemetry.info("recovery is held back no more", where=where(location))
        for location, reason in held.items():
            telemetry.warning("recovery is held back", where=where(location), reason=reason)
        outages = self._ssh_outages(session, look)
        quiet = total(look.cells.values()).quiet
        counts = {
            Metric.RECOVERY_SUSPENDED: len(held) + len(outages),
            Metric.UNHEALTHY: quiet[Unhealthy.SILENT],
            Metric.STARTUP_TIMEOUTS: quiet[Unhealthy.NEVER],
            Metric.QUARANTINED: look.quarantined,
            Metric.NO_ACCESS: look.no_access,
        }
        words = tuple(f"{where(location)}: {reason}" for location, reason in sorted([*held.items(), *outages.items()]))
        limit = 0 if WHOLE_PROVIDER in held else look.claimable
        if held and not look.idle:
            limit += self._overridden(session, look.silence)
        return Admission(limit, words, counts, look.silence, idle=look.idle)

    def _overridden(self, session: Session, silence: HealthTimeouts) -> int:
        """Return how many machines may be taken although recovery is held back where they are."""
        taken = overrides.take(session, self._provider.name, silence)
        for each in taken:
            telemetry.warning(
                "machines are recovered although recovery is held back: an operator overrides that",
                where=where(each.location),
                owner=each.owner,
                reason=each.reason,
                machines=each.due,
                new=each.new,
                left=each.left,
            )
        return sum(each.due for each in taken)

    def _ssh_outages(self, session: Session, look: suspension.HealthSnapshot) -> dict[str, str]:
        """Put on record where SSH has an outage; there, machines that did not come back have no more done to them."""
        outages = ssh_outages(look.ssh)
        if outages.keys() != look.outages:
            suspension.record_outages(session, self._provider.name, outages)
        for location in look.outages - outages.keys():
            telemetry.info("SSH works again", where=where(location))
        for location, reason in outages.items():
            telemetry.warning("recovery waits: SSH has an outage", where=where(location), reason=reason)
        return outages

    def _judge(
        self, session: Session, look: suspension.HealthSnapshot
    ) -> tuple[dict[str, str], suspension.HealthSnapshot]:
        """Return where to hold back and why, and what is due elsewhere."""
        held = by_share(look.cells, self._budgets)
        while WHOLE_PROVIDER not in held:
            if held:
                look = suspension.take_snapshot(
                    session, self._provider.name, self.silence, passed_over=held, before=look
                )
            over = by_number(look.cells, self._budgets, held)
            if not over:
                break
            held = over if WHOLE_PROVIDER in over else held | over
        return held, look

    def prepare(self, deadline: Deadline) -> None:  # noqa: ARG002 - nothing takes time
        """Say which steps are never taken; and give the provider another chance."""
        self._outage = _Outage()
        steps = possible(self._ladder, self._provider.capabilities)
        for rung in self._ladder[:-1]:
            if rung.step not in steps:
                telemetry.warning("a step of the ladder is skipped: the provider cannot take it", step=rung.step)

    def decide(self, session: Session, works: Sequence[Work]) -> Mapping[Work, NextStep]:
        """Find each machine's place on the ladder, and put on record what is going to be tried."""
        moves: dict[Work, tuple[NextStep, datetime | None]] = {}
        for work, past in remediation.past(session, works).items():
            taken = past_attempts(past.history)
            until = healthy_until(taken, past.started_at, past.heard_at, self._healthy_seconds)
            move = next_step(
                self._ladder, self._provider.capabilities, self._provider.name, [] if until else taken, past.now
            )
            moves[work] = move, until
        return {work: moves[work][0] for work in remediation.attempt(session, moves)}

    def work_on(self, attempt: Attempt) -> NextStep:
        """Take the step that was decided. A provider that has accepted it was asked once, whatever happens here."""
        work, move = attempt.work, attempt.decision
        telemetry.info("recovery goes on", machine_id=work.machine_id, decision=str(move), skipped=move.skipped)
        try:
            if move.concludes or move.rung.step in {StepName.RESTART_AGENT, StepName.QUARANTINE}:
                attempt.deadline.confirm()
            else:
                self._ask(move.rung.step, work.provider_id, attempt.deadline)
        except Exception:
            if not (move.concludes or attempt.deadline.interrupted):
                attempt.not_taken = move.rung.step
                attempt.host_key = work.host_key  # nothing was done, so the machine is the one that we know
            raise
        return cast("NextStep", move)

    def _ask(self, step: StepName, provider_id: ProviderId | None, deadline: Deadline) -> None:
        """Ask the provider to take the step, unless it fails for everybody."""
        if provider_id is None:
            message = "the machine is not provided by anyone"
            raise MachineNotFound(message)
        self._outage.check()
        deadline.check()
        try:
            match step:
                case StepName.REBOOT:
                    self._provider.reboot(provider_id, deadline)
                case StepName.POWER_CYCLE:
                    self._provider.power_cycle(provider_id, deadline)
                case StepName.REINSTALL:
                    self._provider.reinstall(provider_id, deadline)
        except (ProviderUnavailable, ProviderUnusable) as error:
            self._outage.failed(error)
            raise
        except (ProviderRefused, NotSupported, MachineNotFound):
            self._outage.answered()
            raise
        self._outage.answered()

    def no_longer_due(self, session: Session, works: Sequence[Work]) -> Mapping[Work, NoLongerDue]:
        """Return the machines that report again, or are not to be recovered for another reason."""
        return remediation.no_longer_due(session, works, self._judged_by)

    def spare(self, session: Session, spared: Mapping[Work, Spared]) -> set[UUID]:
        """End the work on machines that are well; nothing was done to them."""
        return remediation.spare(session, spared)

    def finish(self, session: Session, done: Mapping[Work, NextStep]) -> set[UUID]:
        """Drop the tags of the agents that are gone, so that the machines need an agent start; or give machines up."""
        given_up = {work: move.told for work, move in done.items() if move.rung.step is StepName.QUARANTINE}
        ended: set[UUID] = set()
        if given_up:
            ended |= remediation.quarantine(session, given_up)
            for work, cause in given_up.items():
                if work.machine_id in ended:
                    telemetry.warning("machine put into quarantine", machine_id=work.machine_id, cause=cause)
        for rung in {move.rung for work, move in done.items() if work not in given_up}:
            ended |= finish_recovery(
                session,
                [work for work, move in done.items() if move.rung == rung],
                rung.waits.settle,
                grace_seconds=rung.waits.grace,
                cooldown_seconds=rung.waits.cooldown,
                rebooted=rung.step is not StepName.RESTART_AGENT,
            )
        return ended


class _Outage:
    """What the provider answered in this invocation: whether it is worth asking for more. For several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failures = 0
        self._cause: ProviderError | None = None

    def check(self) -> None:
        """
        Return if the provider may be asked.

        Raises:
            ProviderUnavailable: it failed for several machines, one after another.
        """
        with self._lock:
            if self._failures >= _FAILURES:
                message = f"not asked, since the provider failed for {self._failures} machines: {self._cause}"
                raise ProviderUnavailable(message)

    def failed(self, error: ProviderError) -> None:
        """Take note that it failed, which is no machine's fault."""
        with self._lock:
            self._failures += 1
            self._cause = error
            if self._failures == _FAILURES:
                telemetry.warning("recovery waits: the provider fails", machines=self._failures, cause=error)

    def answered(self) -> None:
        """Take note that it answered about a machine."""
        with self._lock:
            self._failures = 0
