from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shepherd_core.bmdb.recovery.remediation import RecoveryRecord
from shepherd_core.domain.errors import SecretMissing, SecretUnavailable, ShepherdError, TimeLimitExceeded
from shepherd_core.domain.errors.kinds import FailureKind
from shepherd_core.domain.errors.machine import SshAuthenticationFailed
from shepherd_core.domain.errors.provider import (
    MachineNotFound,
    NotSupported,
    ProviderForbidden,
    ProviderNotAsked,
    ProviderRefused,
    ProviderUnavailable,
    ProviderUnusable,
)
from shepherd_core.domain.machine import WorkEvent
from shepherd_core.domain.provider import Capability
from shepherd_core.domain.remediation import (
    POWER_CYCLE,
    QUARANTINE,
    REBOOT,
    STEPS,
    AgentState,
    HistoryLine,
    NextStep,
    PastAttempt,
    Step,
)
from shepherd_core.recovery import position
from shepherd_core.rules.policy import possible
from shepherd_core.rules.remediation import looks, next_step, past_attempts, uninterrupted

from tests.support import defaults

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = 3600.0
EVERYTHING = frozenset(Capability)
REMEDIATION_POLICY = defaults.policy("reboot:3,power-cycle:2,quarantine")
FAILED_POLICY = defaults.policy("reinstall,release,quarantine")


def at(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


ATTEMPTED, NOT_TAKEN, FINISHED = WorkEvent.ATTEMPTED, WorkEvent.NOT_TAKEN, WorkEvent.FINISHED
FAILED, LOOKED = WorkEvent.FAILED, WorkEvent.LOOKED
line = partial(HistoryLine, UUID(int=1))


def lines(*events: tuple[WorkEvent, str | None, ShepherdError | None], others_taken: bool = False) -> list[HistoryLine]:
    return [
        line(
            event,
            at(number * HOUR),
            step,
            kind=None if error is None else error.kind,
            fault=None if error is None else error.fault,
            others_taken=others_taken,
        )
        for number, (event, step, error) in enumerate(events)
    ]


def test_the_position_is_read_from_the_history() -> None:
    history = lines(
        (FINISHED, None, None),  # from before there were policies
        (ATTEMPTED, "reboot", None),
        (FINISHED, None, None),
        (ATTEMPTED, "reboot", None),
        (FAILED, None, ProviderRefused("no")),
        (ATTEMPTED, "power-cycle", None),
    )
    assert past_attempts(history) == [
        PastAttempt("reboot", at(HOUR), None, concluded=True),
        PastAttempt("reboot", at(3 * HOUR), FailureKind.PROVIDER_REFUSED, concluded=True),
        PastAttempt("power-cycle", at(5 * HOUR)),
    ]


@pytest.mark.parametrize(
    ("end", "error", "alone", "among_others"),
    [
        (FINISHED, None, True, True),
        # It refuses this machine.
        (NOT_TAKEN, ProviderRefused("422"), True, True),
        (NOT_TAKEN, MachineNotFound("404"), True, True),
        (NOT_TAKEN, NotSupported(), True, True),
        (FAILED, ProviderRefused("422"), True, True),
        # It may refuse or not answer about every machine.
        (NOT_TAKEN, ProviderForbidden("403"), False, True),
        (NOT_TAKEN, ProviderUnusable("401"), False, True),
        (NOT_TAKEN, ProviderUnavailable("503"), False, True),
        (FINISHED, ProviderUnavailable("504"), False, True),
        (FAILED, ProviderUnusable("401"), False, True),
        # It was not asked.
        (NOT_TAKEN, ProviderNotAsked(), False, False),
        (NOT_TAKEN, TimeLimitExceeded(), False, False),
        (NOT_TAKEN, SshAuthenticationFailed(), False, False),
        (NOT_TAKEN, None, False, False),
        # We failed after it was asked.
        (FAILED, TimeLimitExceeded(), True, True),
        (FAILED, SecretUnavailable(), True, True),
    ],
)
def test_a_providers_failure_counts_if_it_serves_other_machines(
    end: WorkEvent, error: ShepherdError | None, alone: bool, among_others: bool
) -> None:
    """An outage or our credential brings no machine into quarantine, and no machine waits for ever."""
    for others_taken, counts in ((False, alone), (True, among_others)):
        history = lines((ATTEMPTED, "reboot", None), (end, "reboot", error), others_taken=others_taken)
        assert [each.counts for each in past_attempts(history) if each.counts] == [True] * counts
        # A machine whose release got no answer may be gone, and only another request tells.
        lost = lines((ATTEMPTED, "release", None), (end, "release", error), others_taken=others_taken)
        if (end, type(error)) == (FINISHED, ProviderUnavailable):
            assert past_attempts(lost) == []
        if type(error) is ProviderRefused and end is NOT_TAKEN:
            assert [each.counts for each in past_attempts(lost)] == [True]


def test_an_attempt_of_unknown_outcome_is_returned_though_uncounted() -> None:
    (found,) = past_attempts(lines((ATTEMPTED, "reboot", None), (FAILED, None, ProviderUnusable("401"))))
    assert (found.counts, found.concluded) == (False, False)


def test_a_failure_of_later_work_says_nothing_about_an_attempt() -> None:
    """A look that failed by our own fault began no attempt: the one before is still as it was recorded."""
    first, second = UUID(int=1), UUID(int=2)
    failed = SecretMissing("no key")
    history = [
        line(ATTEMPTED, at(0), "reboot", session_id=first),
        line(FAILED, at(HOUR), kind=failed.kind, fault=failed.fault, session_id=second),
    ]
    assert past_attempts(history) == [PastAttempt("reboot", at(0), session_id=first)]
    history.append(line(FINISHED, at(2 * HOUR), session_id=second))
    assert past_attempts(history) == [PastAttempt("reboot", at(0), concluded=True, session_id=first)]


def test_the_last_days_looks_are_counted_by_their_findings() -> None:
    """An agent that ended does not count as an installation; nor does a look that was followed by a step."""

    def look(hours: float, seen: AgentState | None, step: str | None = "restart-agent") -> HistoryLine:
        return line(LOOKED, at(hours * HOUR), step, seen=seen)

    ended = AgentState.ENDED
    history = [look(0, ended), look(1, ended), look(2, AgentState.INSTALLS, "await-installation")]
    history += [look(3, ended, None), look(4, None, None), look(5, ended)]
    assert looks(history, at(24 * HOUR)) == {AgentState.INSTALLS: 1, AgentState.ENDED: 2}


@pytest.mark.parametrize("event", [WorkEvent.HEALTHY, WorkEvent.UNQUARANTINED])
def test_the_policy_starts_over_after_health_and_after_quarantine(event: WorkEvent) -> None:
    """What was mended, or mended itself, is a new fault when it comes back."""
    history = lines((ATTEMPTED, "reboot", None), (event, None, None), (ATTEMPTED, "power-cycle", None))
    assert [attempt.step for attempt in past_attempts(history)] == ["power-cycle"]


@pytest.mark.parametrize(
    ("started", "heard", "healthy"),
    [
        (None, None, False),
        (None, 60 + HOUR, False),  # its agent is being restarted
        (60, None, False),
        (60, 60 + HOUR - 1, False),
        (60, 60 + HOUR, True),
        (-9 * HOUR, HOUR - 1, False),  # since the last attempt, which failed, less than an hour
        (-9 * HOUR, HOUR, True),
    ],
)
def test_health_lasts_until_the_last_heartbeat(started: float | None, heard: float | None, healthy: bool) -> None:
    """Ten minutes of heartbeats between two faults are no recovery."""
    known = [None if moment is None else at(moment) for moment in (started, heard)]
    attempt = line(ATTEMPTED, at(0), "reboot")
    past = RecoveryRecord(
        UUID(int=1), at(HOUR), known[0], known[1], None, "", None, None, None, failed=False, history=[attempt]
    )
    assert position(past, HOUR) == (([], known[1]) if healthy else ([PastAttempt("reboot", at(0))], None))
    assert position(replace(past, history=[]), HOUR) == ([], None), "there is nothing to forget"


@pytest.mark.parametrize(
    ("event", "step", "restarted"),
    [
        (LOOKED, "restart-agent", True),
        (ATTEMPTED, "restart-agent", True),
        (LOOKED, None, False),
        (ATTEMPTED, "quarantine", False),
        (WorkEvent.UNQUARANTINED, None, True),
    ],
)
def test_agent_restarts_interrupt_no_machine(event: WorkEvent, step: str | None, restarted: bool) -> None:
    """It may be healthy although it has no agent on record, so it is looked at."""
    history = [line(LOOKED, at(0), None), line(event, at(1), step), line(LOOKED, at(3), None)]
    found = [uninterrupted(history, rebooted_at) for rebooted_at in (None, at(0), at(1), at(2))]
    assert found == [restarted, restarted, False, False]


def taken(*steps: str, failed: FailureKind | None = None, every: float = HOUR) -> list[PastAttempt]:
    return [PastAttempt(step, at(number * every), failed, concluded=True) for number, step in enumerate(steps)]


def decide(
    attempts: Sequence[PastAttempt],
    policy: Sequence[Step] = REMEDIATION_POLICY,
    can: frozenset[Capability] = EVERYTHING,
) -> NextStep:
    return next_step(policy, can, attempts, at(1000 * HOUR))


@pytest.mark.parametrize(
    ("policy", "attempts", "step", "number"),
    [
        (REMEDIATION_POLICY, [], "reboot", 1),
        (REMEDIATION_POLICY, ["reboot"], "reboot", 2),
        (REMEDIATION_POLICY, ["reboot"] * 2, "reboot", 3),
        (REMEDIATION_POLICY, ["reboot"] * 3, "power-cycle", 1),
        (REMEDIATION_POLICY, ["reboot"] * 3 + ["power-cycle"], "power-cycle", 2),
        (REMEDIATION_POLICY, ["reboot"] * 3 + ["power-cycle"] * 2, "quarantine", 1),
        (REMEDIATION_POLICY, ["reboot"] * 50, "power-cycle", 1),
        (REMEDIATION_POLICY, ["power-cycle"], "power-cycle", 2),  # the policy was another then; it does not go back
        (REMEDIATION_POLICY, ["sing"], "reboot", 1),
        (FAILED_POLICY, [], "reinstall", 1),
        (FAILED_POLICY, ["reboot"] * 3, "reinstall", 1),
        (FAILED_POLICY, ["reinstall"], "release", 1),  # taken while it was unhealthy, too
        (FAILED_POLICY, ["reinstall", "release"], "quarantine", 1),
    ],
)
def test_the_next_step_follows_when_the_attempts_are_used_up(
    policy: tuple[Step, ...], attempts: list[str], step: str, number: int
) -> None:
    found = decide(taken(*attempts), policy)
    assert (found.step.name, found.number) == (step, number)


def test_a_release_without_outcome_is_asked_for_again() -> None:
    """If the function died then, nobody knows whether the machine is gone; waiting would not tell."""
    policy = defaults.policy("release,quarantine")
    begun = [PastAttempt("release", at(0))]
    for later in (60, 1000 * HOUR):
        found = next_step(policy, EVERYTHING, begun, at(later))
        assert (found.step.name, found.number, found.concludes) == ("release", 1, False)
    for other, can in ((REMEDIATION_POLICY, EVERYTHING), (policy, EVERYTHING - {Capability.RELEASE})):
        assert next_step(other, can, begun, at(60)).step.name != "release"


def test_a_step_that_the_provider_lacks_is_skipped() -> None:
    """Its refusals would use up days."""
    assert decide([], can=frozenset({Capability.POWER_CYCLE})).step.name == "power-cycle"
    assert decide(taken(*["reboot"] * 3), can=frozenset({Capability.REBOOT})).step.name == "quarantine"


def test_a_step_that_turned_out_unsupported_is_not_tried_again() -> None:
    """A provider may be able to in general, and not with this machine."""
    found = decide(taken("reboot", failed=FailureKind.NOT_SUPPORTED))
    assert (found.step.kind, found.number) == (POWER_CYCLE, 1)


def test_failed_attempts_count_once_within_the_grace_time() -> None:
    """A provider that is away for ten minutes must not bring every unhealthy machine into quarantine."""
    away = FailureKind.PROVIDER_UNAVAILABLE
    assert decide(taken(*["reboot"] * 20, failed=away, every=60)).number == 2
    assert decide(taken(*["reboot"] * 3, failed=away, every=1800)).step.kind is POWER_CYCLE
    assert decide(taken(*["reboot"] * 3, every=60)).step.kind is POWER_CYCLE, "those that did not fail count each"


def test_the_cause_of_quarantine_counts_what_used_up_the_policy() -> None:
    """A refusal that was repeated twenty times within the grace is one attempt, and not twenty."""
    refused = taken(*["reboot"] * 20, failed=FailureKind.PROVIDER_REFUSED, every=60)
    answered = [PastAttempt("power-cycle", at(each * HOUR), None, concluded=True) for each in (2, 3)]
    found = decide([*refused, *answered], defaults.policy("reboot:1,power-cycle:2,quarantine"))
    assert found.summary == "still unhealthy after power-cycle 2 times; the provider refused reboot 1 time"
    silent = PastAttempt("reboot", at(0), FailureKind.PROVIDER_UNAVAILABLE, concluded=True)
    found = decide([silent], defaults.policy("reboot:1,quarantine"))
    assert found.summary == "the provider did not answer reboot 1 time"


DIED = PastAttempt("reboot", at(0))
UNCOUNTED = PastAttempt("reboot", at(0), FailureKind.PROVIDER_UNUSABLE, counts=False)


@pytest.mark.parametrize(
    ("attempt", "seconds", "number", "concludes"),
    [
        # The machine may be booting or being installed: a second step would break it.
        (DIED, 1799, 1, True),
        (DIED, 1800, 2, False),
        # Nobody knows whether the provider took it; afterwards it is taken for the first time.
        (UNCOUNTED, 1799, 1, True),
        (UNCOUNTED, 1800, 1, False),
        # An earlier version took it, of whose grace this one knows nothing.
        (PastAttempt("sing", at(0)), 1, 1, False),
    ],
    ids=["killed", "killed long ago", "uncounted", "uncounted long ago", "unknown"],
)
def test_an_attempt_that_may_go_on_is_not_repeated(
    attempt: PastAttempt, seconds: float, number: int, *, concludes: bool
) -> None:
    found = next_step(REMEDIATION_POLICY, EVERYTHING, [attempt], at(seconds))
    assert (found.step.kind, found.number, found.concludes) == (REBOOT, number, concludes)


def test_a_quarantine_whose_function_was_killed_is_repeated() -> None:
    """It has no effect outside."""
    attempts = [*taken(*["reboot"] * 3, *["power-cycle"] * 2), PastAttempt("quarantine", at(999 * HOUR))]
    found = next_step(REMEDIATION_POLICY, EVERYTHING, attempts, at(999 * HOUR + 1))
    assert (found.step.kind, found.concludes) == (QUARANTINE, False)
    assert found.summary == "still unhealthy after reboot 3 times, power-cycle 2 times"


steps = st.sampled_from([*STEPS, "sing"])
capabilities = st.frozensets(st.sampled_from(list(Capability)))


@st.composite
def policies(draw: st.DrawFn) -> tuple[Step, ...]:
    before = draw(
        st.lists(st.sampled_from([each for each in STEPS if each != QUARANTINE.name]), min_size=1, unique=True)
    )
    return defaults.policy(",".join([*(f"{step}:{draw(st.integers(1, 5))}" for step in before), "quarantine"]))


@given(policies(), capabilities, st.lists(st.tuples(st.sampled_from(["died", "failed", "done"]), st.integers(0, 7200))))
def test_every_policy_ends_and_never_goes_back(
    policy: tuple[Step, ...], can: frozenset[Capability], fates: list[tuple[str, int]]
) -> None:
    attempts: list[PastAttempt] = []
    now, position = 0.0, 0
    order = [step.name for step in policy]
    for fate, wait in [*fates, *[("done", 7200)] * sum(step.attempts for step in policy)]:
        now += wait
        found = next_step(policy, can, attempts, at(now))
        assert found.step.kind in {*possible(policy, can), QUARANTINE}
        assert order.index(found.step.name) >= position
        position = order.index(found.step.name)
        assert 1 <= found.number <= found.step.attempts
        if found.concludes:
            attempts[-1] = PastAttempt(attempts[-1].step, attempts[-1].at, None, concluded=True)
        elif found.step.kind is not QUARANTINE:
            cause = FailureKind.PROVIDER_UNAVAILABLE if fate == "failed" else None
            attempts.append(PastAttempt(found.step.name, at(now), cause, concluded=fate != "died"))
    assert next_step(policy, can, attempts, at(now + 7200)).step.kind is QUARANTINE
