"""The remediation policy: which step comes next, and when recovery gives up."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shepherd_core.domain.errors.kinds import FailureKind
from shepherd_core.domain.provider import Capability
from shepherd_core.domain.remediation import POWER_CYCLE, QUARANTINE, REBOOT, STEPS, NextStep, PastAttempt, Step
from shepherd_core.rules.policy import possible
from shepherd_core.rules.remediation import next_step

from tests.support import defaults

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = 3600.0
EVERYTHING = frozenset(Capability)
REMEDIATION_POLICY = defaults.policy("reboot:3,power-cycle:2,quarantine")


def at(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


def taken(*steps: str, failed: FailureKind | None = None, every: float = HOUR) -> list[PastAttempt]:
    return [PastAttempt(step, at(number * every), failed, concluded=True) for number, step in enumerate(steps)]


def decide(
    attempts: Sequence[PastAttempt],
    policy: Sequence[Step] = REMEDIATION_POLICY,
    can: frozenset[Capability] = EVERYTHING,
) -> NextStep:
    """Return the next step long after these attempts."""
    return next_step(policy, can, attempts, at(1000 * HOUR))


@pytest.mark.parametrize(
    ("attempts", "step", "number"),
    [
        ([], "reboot", 1),
        (["reboot"], "reboot", 2),
        (["reboot"] * 2, "reboot", 3),
        (["reboot"] * 3, "power-cycle", 1),
        (["reboot"] * 3 + ["power-cycle"], "power-cycle", 2),
        (["reboot"] * 3 + ["power-cycle"] * 2, "quarantine", 1),
        (["reboot"] * 50, "power-cycle", 1),
        (["power-cycle"], "power-cycle", 2),  # the policy was another then; it does not go back
        (["sing"], "reboot", 1),
    ],
)
def test_the_next_step_follows_when_the_attempts_are_used_up(attempts: list[str], step: str, number: int) -> None:
    found = decide(taken(*attempts))
    assert (found.step.name, found.number) == (step, number)


@pytest.mark.parametrize(
    ("attempts", "step"),
    [
        ([], "reinstall"),
        (["reboot"] * 3, "reinstall"),
        (["reinstall"], "release"),  # taken while it was unhealthy, too
        (["reinstall", "release"], "quarantine"),
    ],
)
def test_a_failed_machine_is_installed_anew_or_released(attempts: list[str], step: str) -> None:
    assert decide(taken(*attempts), defaults.policy("reinstall,release,quarantine")).step.name == step


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
    refused = [
        PastAttempt("reboot", at(60 * number), FailureKind.PROVIDER_REFUSED, concluded=True) for number in range(20)
    ]
    answered = [PastAttempt("power-cycle", at(each * HOUR), None, concluded=True) for each in (2, 3)]
    policy = defaults.policy("reboot:1,power-cycle:2,quarantine")
    assert decide([*refused, *answered], policy).summary == (
        "still unhealthy after power-cycle 2 times; the provider refused reboot 1 time"
    )
    silent = PastAttempt("reboot", at(0), FailureKind.PROVIDER_UNAVAILABLE, concluded=True)
    assert decide([silent], defaults.policy("reboot:1,quarantine")).summary == (
        "the provider did not answer reboot 1 time"
    )


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
    most = sum(step.attempts for step in policy)
    for fate, wait in [*fates, *[("done", 7200)] * most]:
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
