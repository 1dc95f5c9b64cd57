"""The remediation policy: which step comes next, and when recovery gives up."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shepherd_core.domain.clock import Deadline
from shepherd_core.domain.errors import ConfigError
from shepherd_core.domain.errors.provider import NotSupported
from shepherd_core.domain.machine import ProviderId, WorkEvent
from shepherd_core.domain.provider import Capability
from shepherd_core.domain.remediation import (
    POWER_CYCLE,
    QUARANTINE,
    REBOOT,
    REINSTALL,
    RESTART_AGENT,
    STEPS,
    HistoryLine,
    NextStep,
    PastAttempt,
    Step,
    StepKind,
    Timeouts,
)
from shepherd_core.providers.static import StaticProvider
from shepherd_core.rules.remediation import (
    MAX_ATTEMPTS,
    all_attempts,
    healthy_until,
    next_step,
    outage_reason,
    parse_policy,
    past_attempts,
    possible,
    uninterrupted,
)
from shepherd_core.settings.functions.loops import RecovererSettings
from shepherd_core.settings.sources import load

from tests.conftest import ManualClock
from tests.support import defaults

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = 3600.0
EVERYTHING = frozenset(Capability)
REMEDIATION_POLICY = defaults.policy("reboot:3,power-cycle:2,quarantine")


def at(seconds: float) -> datetime:
    """Return a moment so many seconds after the beginning."""
    return BEGIN + timedelta(seconds=seconds)


def taken(*steps: str, failed: str | None = None, every: float = HOUR) -> list[PastAttempt]:
    """Return attempts at these steps, one after the other, all of them concluded."""
    return [PastAttempt(step, at(number * every), failed, concluded=True) for number, step in enumerate(steps)]


def move(
    attempts: Sequence[PastAttempt],
    policy: Sequence[Step] = REMEDIATION_POLICY,
    can: frozenset[Capability] = EVERYTHING,
) -> NextStep:
    """Return what is next long after these attempts."""
    return next_step(policy, can, "acme", attempts, at(1000 * HOUR))


def test_the_default_policy_starts_with_a_reboot_and_destroys_nothing() -> None:
    """A default must not delete data."""
    steps = defaults.policy()
    assert [(step.name, step.attempts) for step in steps] == [("reboot", 3), ("power-cycle", 2), ("quarantine", 1)]


def test_a_step_may_have_timeouts_of_its_own() -> None:
    """A reinstall takes longer than a reboot; what a step does not set is as for all."""
    first, second, last = parse_policy(
        " restart-agent , reinstall:2:boot-wait=900:grace=7200, quarantine",
        Timeouts(boot_wait=60, grace=600, cooldown=30),
    )
    assert first == Step(RESTART_AGENT, 1, Timeouts(boot_wait=0, grace=600, cooldown=30))
    assert second == Step(REINSTALL, 2, Timeouts(boot_wait=900, grace=7200, cooldown=30))
    assert last.kind is QUARANTINE


@pytest.mark.parametrize("text", ["reboot:99,quarantine", "reboot:60,power-cycle:39,quarantine"])
def test_a_policy_may_have_as_many_attempts_as_are_read(text: str) -> None:
    """Quarantine is one of the hundred."""
    assert sum(step.attempts for step in defaults.policy(text)) == MAX_ATTEMPTS


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", f"'' is not a step; use {', '.join(STEPS)}"),
        ("kick:3,quarantine", "'kick' is not a step"),
        ("Reboot,quarantine", "'Reboot' is not a step"),
        ("reboot:3", "the policy must end with quarantine, which may appear only once"),
        ("quarantine,reboot", "the policy must end with quarantine, which may appear only once"),
        ("quarantine", "the policy must have a step before quarantine"),
        ("reboot,power-cycle,reboot,quarantine", "reboot appears more than once; write reboot:2 for several attempts"),
        ("reboot:0,quarantine", "'0' of reboot is neither a number of attempts"),
        ("reboot:-1,quarantine", "'-1' of reboot is neither"),
        ("reboot:many,quarantine", "'many' of reboot is neither"),
        ("reboot:grace,quarantine", "'grace' of reboot is neither"),
        ("reboot:grace=soon,quarantine", "'grace=soon' of reboot is neither"),
        ("reboot:grace=1e9,quarantine", "'grace=1e9' of reboot is neither"),
        ("reboot:grace=604801,quarantine", "at most a week"),
        ("reboot:patience=3,quarantine", "'patience=3' of reboot is neither"),
        ("reboot,quarantine:2", "quarantine takes no options, but has '2'"),
        ("reboot:60,power-cycle:41,quarantine", "at most 100 attempts in all"),
        ("reboot,,quarantine", "'' is not a step"),
    ],
)
def test_an_invalid_policy_is_refused_with_the_reason(text: str, wanted: str) -> None:
    """A policy that its author did not mean would power-cycle machines."""
    with pytest.raises(ValueError, match=wanted.replace("(", r"\(")):
        defaults.policy(text)


def test_the_policy_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its fault is reported with all others; the timeouts that it does not set are settings too."""
    for name, value in {"BMDB_HOST": "db", "PROVIDER": "redfish", "REMEDIATION_POLICY": "reboot:2,quarantine"}.items():
        monkeypatch.setenv(f"SHEPHERD_{name}", value)
    monkeypatch.setenv("SHEPHERD_GRACE_SECONDS", "60")
    (settings,) = load(RecovererSettings)
    assert settings.policy[0] == Step(REBOOT, 2, Timeouts(boot_wait=120, grace=60, cooldown=600))
    monkeypatch.setenv("SHEPHERD_REMEDIATION_POLICY", "kick")
    with pytest.raises(ConfigError, match="SHEPHERD_REMEDIATION_POLICY is 'kick': 'kick' is not a step"):
        load(RecovererSettings)


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
    """A step that did not help three times is not repeated without end."""
    found = move(taken(*attempts))
    assert (found.step.name, found.number) == (step, number)


def test_a_step_that_the_provider_lacks_is_skipped_and_recorded_once() -> None:
    """A reader of the history must see why there are no reboots."""
    found = move([], can=frozenset({Capability.POWER_CYCLE}))
    assert (found.step.name, found.skipped) == (
        "power-cycle",
        (("reboot", "the provider acme cannot reboot machines"),),
    )
    assert move(taken("power-cycle"), can=frozenset({Capability.POWER_CYCLE})).skipped == ()
    last = move(taken(*["reboot"] * 3), can=frozenset({Capability.REBOOT}))
    assert (last.step.name, [step for step, _ in last.skipped]) == ("quarantine", ["power-cycle"])


def test_a_step_that_turned_out_unsupported_is_not_tried_again() -> None:
    """A provider may be able to in general, and not with this machine."""
    found = move(taken("reboot", failed="NotSupported: the BMC offers no reset"))
    assert (found.step.kind, found.number) == (POWER_CYCLE, 1)


def test_failed_attempts_count_once_within_the_grace_time() -> None:
    """A provider that is away for ten minutes must not bring every unhealthy machine into quarantine."""
    away = "ProviderUnavailable: 503"
    assert move(taken(*["reboot"] * 20, failed=away, every=60)).number == 2
    assert move(taken(*["reboot"] * 3, failed=away, every=1800)).step.kind is POWER_CYCLE
    assert move(taken(*["reboot"] * 3, every=60)).step.kind is POWER_CYCLE, "those that did not fail count each"


def asked(seconds: float, outcome: str) -> PastAttempt:
    """Return a reboot at that time that was "lost" or "accepted", or whose outcome is not on record yet ("begun")."""
    lost = outcome == "lost"
    return PastAttempt(
        "reboot", at(seconds), "ProviderUnavailable: 504" if lost else None, outcome != "begun", unanswered=lost
    )


@pytest.mark.parametrize(
    ("others", "counts"),
    [
        ([], True),
        ([[(60, "lost")]], True),
        ([[(60, "lost"), (120, "lost")]], True),
        ([[(60, "lost")], [(-60, "lost")]], False),
        ([[(1800, "lost")], [(-1800, "lost")]], False),
        ([[(1801, "lost")], [(-60, "lost")]], True),
        ([[(60, "lost")], [(-1801, "lost")]], True),
        ([[(60, "lost")], [(-60, "begun")]], True),
        ([[(60, "lost")], [(-60, "lost")], [(30, "accepted")]], True),
        ([[(60, "lost")], [(-60, "lost")], [(-30, "accepted")]], True),
        ([[(60, "lost")], [(-60, "lost")], [(90, "accepted")], [(-90, "accepted")]], False),
        ([[(60, "lost"), (90, "accepted")], [(-60, "lost"), (91, "accepted")]], False),
        ([[(60, "lost")], [(-60, "lost")], [(30, "begun")]], False),
    ],
)
def test_an_attempt_in_an_outage_of_the_provider_does_not_count(
    others: list[list[tuple[float, str]]], counts: bool
) -> None:
    """If three machines get no answer within a grace, and none a step in between, it is not about the machines."""
    own = asked(0, "lost")
    reason = outage_reason(
        own, [[own], *([asked(*each) for each in attempts] for attempts in others)], REMEDIATION_POLICY
    )
    assert (reason is None) is counts
    assert outage_reason(asked(0, "accepted"), [[own]] * 5, REMEDIATION_POLICY) is None


def test_an_attempt_that_does_not_count_is_named_by_the_next() -> None:
    """So that the history says why a machine stays at its step; a step that was not taken changes nothing about it."""
    lost = (WorkEvent.FINISHED, None, "ProviderUnavailable: 504")
    history = lines(
        (WorkEvent.ATTEMPTED, "reboot", None),
        (WorkEvent.FINISHED, None, None),
        (WorkEvent.ATTEMPTED, "reboot", None),
        lost,
        (WorkEvent.ATTEMPTED, "reboot", None),
        (WorkEvent.NOT_TAKEN, "reboot", "ProviderUnavailable: 503"),
        (WorkEvent.ATTEMPTED, "reboot", "the last attempt does not count: …"),
        lost,
    )
    assert [(each.at, each.unanswered) for each in past_attempts(history)] == [(at(0), False), (at(6 * HOUR), True)]
    assert [each.counts for each in all_attempts(history)] == [True, False, False, True]


def test_the_cause_of_quarantine_counts_what_used_up_the_policy() -> None:
    """A refusal that was repeated twenty times within the grace is one attempt, and not twenty."""
    refused = [
        PastAttempt("reboot", at(60 * number), "ProviderRefused: locked", concluded=True, refused=True)
        for number in range(20)
    ]
    answered = [PastAttempt("power-cycle", at(each * HOUR), None, concluded=True) for each in (2, 3)]
    policy = defaults.policy("reboot:1,power-cycle:2,quarantine")
    assert move([*refused, *answered], policy).summary == (
        "still unhealthy after power-cycle 2 times; the provider refused reboot 1 time"
    )


def test_an_attempt_whose_function_was_killed_counts_and_is_not_repeated() -> None:
    """The machine may be booting or being installed: a second step would break it."""
    died = [PastAttempt("reboot", at(0))]
    found = next_step(REMEDIATION_POLICY, EVERYTHING, "acme", died, at(1799))
    assert (found.step.kind, found.concludes) == (REBOOT, True)
    later = next_step(REMEDIATION_POLICY, EVERYTHING, "acme", died, at(1800))
    assert (later.step.kind, later.number, later.concludes) == (REBOOT, 2, False)


def test_a_quarantine_whose_function_was_killed_is_repeated() -> None:
    """It has no effect outside."""
    attempts = [*taken(*["reboot"] * 3, *["power-cycle"] * 2), PastAttempt("quarantine", at(999 * HOUR))]
    found = next_step(REMEDIATION_POLICY, EVERYTHING, "acme", attempts, at(999 * HOUR + 1))
    assert (found.step.kind, found.concludes) == (QUARANTINE, False)
    assert found.summary == "still unhealthy after reboot 3 times, power-cycle 2 times"


@pytest.mark.parametrize(
    ("policy", "can", "steps"),
    [
        ("reboot,quarantine", EVERYTHING, ["reboot"]),
        ("reboot,quarantine", frozenset(), []),
        ("restart-agent,reboot,quarantine", frozenset(), ["restart-agent"]),
        ("reinstall,power-cycle,quarantine", frozenset({Capability.REINSTALL}), ["reinstall"]),
    ],
)
def test_possible_lists_the_steps_that_the_provider_can_take(
    policy: str, can: frozenset[Capability], steps: list[str]
) -> None:
    """A Recoverer that can do nothing but give up is refused."""
    assert [kind.name for kind in possible(defaults.policy(policy), can)] == steps


@pytest.mark.parametrize("kind", STEPS.values(), ids=STEPS)
def test_a_step_asks_the_provider_for_the_capability_that_it_needs(kind: StepKind) -> None:
    """Else a policy would be checked for one capability and use another."""
    if kind.take is None:
        assert kind.needs is None
        return
    with pytest.raises(NotSupported, match=f"the provider static cannot {kind.needs} machines"):
        kind.take(StaticProvider(lambda: b"[]"), ProviderId("machine"), Deadline(ManualClock(), 1))


def lines(*events: tuple[str, str | None, str | None]) -> list[HistoryLine]:
    """Return lines of history an hour apart: event, step, cause."""
    return [HistoryLine(event, at(number * HOUR), step, cause) for number, (event, step, cause) in enumerate(events)]


def test_the_position_is_read_from_the_history() -> None:
    """It is stored nowhere else, so nothing can contradict it."""
    history = lines(
        ("Finished", None, None),  # from before there were policies
        (WorkEvent.ATTEMPTED, "reboot", None),
        (WorkEvent.FINISHED, None, None),
        (WorkEvent.ATTEMPTED, "reboot", None),
        (WorkEvent.FAILED, None, "ProviderRefused: no"),
        (WorkEvent.ATTEMPTED, "power-cycle", None),
    )
    assert past_attempts(history) == [
        PastAttempt("reboot", at(HOUR), None, concluded=True),
        PastAttempt("reboot", at(3 * HOUR), "ProviderRefused: no", concluded=True),
        PastAttempt("power-cycle", at(5 * HOUR)),
    ]


def test_a_failure_of_later_work_says_nothing_about_an_attempt() -> None:
    """A look that failed by our own fault began no attempt: the one before is still as it was recorded."""
    first, second = UUID(int=1), UUID(int=2)
    history = [
        HistoryLine(WorkEvent.ATTEMPTED, at(0), "reboot", None, first),
        HistoryLine(WorkEvent.FAILED, at(HOUR), None, "SecretMissing: no key", second),
    ]
    assert all_attempts(history) == [PastAttempt("reboot", at(0), session_id=first)]
    history.append(HistoryLine(WorkEvent.FINISHED, at(2 * HOUR), None, None, second))
    assert all_attempts(history) == [PastAttempt("reboot", at(0), concluded=True, session_id=first)]


@pytest.mark.parametrize("event", [WorkEvent.HEALTHY, WorkEvent.UNQUARANTINED])
def test_the_policy_starts_over_after_health_and_after_quarantine(event: WorkEvent) -> None:
    """What was mended, or mended itself, is a new fault when it comes back."""
    history = lines(
        (WorkEvent.ATTEMPTED, "reboot", None), (event, None, None), (WorkEvent.ATTEMPTED, "power-cycle", None)
    )
    assert [attempt.step for attempt in past_attempts(history)] == ["power-cycle"]


@pytest.mark.parametrize(
    ("started", "heard", "healthy"),
    [
        (None, None, False),
        (60, None, False),
        (60, 60 + HOUR - 1, False),
        (60, 60 + HOUR, True),
        (-9 * HOUR, HOUR - 1, False),  # since the last attempt, which failed, less than an hour
        (-9 * HOUR, HOUR, True),
    ],
)
def test_health_lasts_from_agent_start_or_attempt_to_last_heartbeat(
    started: float | None, heard: float | None, healthy: bool
) -> None:
    """Ten minutes of heartbeats between two faults are no recovery."""
    known = [None if moment is None else at(moment) for moment in (started, heard)]
    found = healthy_until(taken("reboot"), known[0], known[1], HOUR)
    assert found == (known[1] if healthy else None)
    assert healthy_until([], known[0], known[1], HOUR) is None, "there is nothing to forget"


steps = st.sampled_from([*STEPS, "sing"])
capabilities = st.frozensets(st.sampled_from(list(Capability)))


@st.composite
def policies(draw: st.DrawFn) -> tuple[Step, ...]:
    """Return any policy."""
    before = draw(st.lists(st.sampled_from(list(STEPS)[:-1]), min_size=1, unique=True))
    return defaults.policy(",".join([*(f"{step}:{draw(st.integers(1, 5))}" for step in before), "quarantine"]))


@given(policies(), capabilities, st.lists(st.tuples(st.sampled_from(["died", "failed", "done"]), st.integers(0, 7200))))
def test_every_policy_ends_and_never_goes_back(
    policy: tuple[Step, ...], can: frozenset[Capability], fates: list[tuple[str, int]]
) -> None:
    """Whatever becomes of the attempts; and what a provider cannot do is never asked of it."""
    attempts: list[PastAttempt] = []
    now, position = 0.0, 0
    order = [step.name for step in policy]
    most = sum(step.attempts for step in policy)
    for fate, wait in [*fates, *[("done", 7200)] * most]:
        now += wait
        found = next_step(policy, can, "acme", attempts, at(now))
        assert found.step.kind in {*possible(policy, can), QUARANTINE}
        assert order.index(found.step.name) >= position
        position = order.index(found.step.name)
        assert 1 <= found.number <= found.step.attempts
        if found.concludes:
            attempts[-1] = PastAttempt(attempts[-1].step, attempts[-1].at, None, concluded=True)
        elif found.step.kind is not QUARANTINE:
            cause = "ProviderUnavailable: ?" if fate == "failed" else None
            attempts.append(PastAttempt(found.step.name, at(now), cause, concluded=fate != "died"))
    assert next_step(policy, can, "acme", attempts, at(now + 7200)).step.kind is QUARANTINE


@given(st.text(alphabet="reboot:,quarantine=123 x", max_size=40))
def test_any_text_is_a_policy_or_refused(text: str) -> None:
    """Nothing else may leave the parser."""
    try:
        steps: Any = defaults.policy(text)
    except ValueError:
        return
    assert steps[-1].kind is QUARANTINE


LOOKED, ATTEMPTED, NOT_TAKEN = WorkEvent.LOOKED, WorkEvent.ATTEMPTED, WorkEvent.NOT_TAKEN


@pytest.mark.parametrize(
    ("lines", "restarted"),
    [
        ([], False),
        ([(LOOKED, "restart-agent")], True),
        ([(ATTEMPTED, "restart-agent")], True),
        ([(ATTEMPTED, "reboot"), (LOOKED, "restart-agent"), (WorkEvent.FINISHED, None)], True),
        # A look that found it dead, and the step that followed.
        ([(LOOKED, None)], False),
        ([(LOOKED, "restart-agent"), (LOOKED, None), (ATTEMPTED, "reboot"), (WorkEvent.FINISHED, None)], False),
        # The step that followed was certainly not taken.
        ([(LOOKED, "restart-agent"), (LOOKED, None), (ATTEMPTED, "reboot"), (NOT_TAKEN, "reboot")], True),
        ([(ATTEMPTED, "reboot"), (ATTEMPTED, "reboot"), (NOT_TAKEN, "reboot")], False),
        # The quarantine of a machine that was alive, or was repaired, has ended.
        ([(ATTEMPTED, "reboot"), (WorkEvent.UNQUARANTINED, None)], True),
        ([(WorkEvent.UNQUARANTINED, None), (LOOKED, None), (ATTEMPTED, "reboot")], False),
        ([(WorkEvent.UNQUARANTINED, None), (LOOKED, None), (ATTEMPTED, "reboot"), (NOT_TAKEN, "reboot")], True),
    ],
)
def test_a_machine_was_not_interrupted_since_its_agent_alone_was_restarted(
    lines: Sequence[tuple[WorkEvent, str | None]], restarted: bool
) -> None:
    """It may be healthy although it has no agent on record, so it is looked at."""
    history = [HistoryLine(event, at(number), step) for number, (event, step) in enumerate(lines)]
    assert uninterrupted(history) is restarted
