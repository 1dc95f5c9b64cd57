"""How far recovery goes, and where it stops: the rules by themselves."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shepherd_core.domain.errors import ConfigError
from shepherd_core.domain.machine import Capability, WorkEvent
from shepherd_core.domain.remediation import HistoryLine, NextStep, PastAttempt, Step, StepName, Timeouts
from shepherd_core.rules.remediation import DEFAULT, healthy_until, next_step, parse_policy, past_attempts, possible
from shepherd_core.settings.functions import RecovererSettings, load

if TYPE_CHECKING:
    from collections.abc import Sequence

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = 3600.0
EVERYTHING = frozenset(Capability)
REMEDIATION_POLICY = parse_policy("reboot:3,power-cycle:2,quarantine")


def at(seconds: float) -> datetime:
    """Return a moment so many seconds after the beginning."""
    return BEGIN + timedelta(seconds=seconds)


def taken(*steps: str, failed: str | None = None, every: float = HOUR) -> list[PastAttempt]:
    """Return attempts at these steps, one after the other, all of them concluded."""
    return [PastAttempt(step, at(number * every), failed, concluded=True) for number, step in enumerate(steps)]


def move(
    attempts: Sequence[PastAttempt],
    ladder: Sequence[Step] = REMEDIATION_POLICY,
    can: frozenset[Capability] = EVERYTHING,
) -> NextStep:
    """Return what is next long after these attempts."""
    return next_step(ladder, can, "closet", attempts, at(1000 * HOUR))


def test_the_default_ladder_begins_with_a_reboot_and_destroys_nothing() -> None:
    """What nobody asked for must not cost anybody their data."""
    rungs = parse_policy(DEFAULT)
    assert [(rung.step, rung.attempts) for rung in rungs] == [("reboot", 3), ("power-cycle", 2), ("quarantine", 1)]


def test_a_rung_may_have_waits_of_its_own() -> None:
    """A reinstall takes longer than a reboot; what a rung does not say is as for all."""
    first, second, last = parse_policy(
        " restart-agent , reinstall:2:settle=900:grace=7200, quarantine", Timeouts(settle=60, grace=600, cooldown=30)
    )
    assert first == Step(StepName.RESTART_AGENT, 1, Timeouts(settle=0, grace=600, cooldown=30))
    assert second == Step(StepName.REINSTALL, 2, Timeouts(settle=900, grace=7200, cooldown=30))
    assert last.step is StepName.QUARANTINE


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", "'' is no step: restart-agent, reboot, power-cycle, reinstall, quarantine are"),
        ("kick:3,quarantine", "'kick' is no step"),
        ("Reboot,quarantine", "'Reboot' is no step"),
        ("reboot:3", "the last step was wanted to be quarantine"),
        ("quarantine,reboot", "the last step was wanted to be quarantine"),
        ("quarantine", "a step before quarantine was wanted"),
        ("reboot,power-cycle,reboot,quarantine", "reboot is there more than once: say how often with reboot:2"),
        ("reboot:0,quarantine", "'0' of reboot is neither a number of attempts"),
        ("reboot:-1,quarantine", "'-1' of reboot is neither"),
        ("reboot:many,quarantine", "'many' of reboot is neither"),
        ("reboot:grace,quarantine", "'grace' of reboot is neither"),
        ("reboot:grace=soon,quarantine", "'grace=soon' of reboot is neither"),
        ("reboot:grace=1e9,quarantine", "'grace=1e9' of reboot is neither"),
        ("reboot:grace=604801,quarantine", "at most a week"),
        ("reboot:patience=3,quarantine", "'patience=3' of reboot is neither"),
        ("reboot,quarantine:2", "quarantine was wanted without '2'"),
        ("reboot:60,power-cycle:41,quarantine", "at most 100 attempts in all"),
        ("reboot,,quarantine", "'' is no step"),
    ],
)
def test_what_is_no_ladder_is_refused_in_words(text: str, wanted: str) -> None:
    """A ladder that is not what its author meant power-cycles machines."""
    with pytest.raises(ValueError, match=wanted.replace("(", r"\(")):
        parse_policy(text)


def test_the_ladder_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Told with its fault beside all the others; the waits that it does not name are settings too."""
    for name, value in {"BMDB_HOST": "db", "PROVIDER": "redfish", "REMEDIATION_POLICY": "reboot:2,quarantine"}.items():
        monkeypatch.setenv(f"SHEPHERD_{name}", value)
    monkeypatch.setenv("SHEPHERD_GRACE_SECONDS", "60")
    (settings,) = load(RecovererSettings)
    assert settings.rungs[0] == Step(StepName.REBOOT, 2, Timeouts(settle=120, grace=60, cooldown=600))
    monkeypatch.setenv("SHEPHERD_REMEDIATION_POLICY", "kick")
    with pytest.raises(ConfigError, match="SHEPHERD_REMEDIATION_POLICY is 'kick': Value error, 'kick' is no step"):
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
        (["power-cycle"], "power-cycle", 2),  # the ladder was another then; it does not go down
        (["sing"], "reboot", 1),
    ],
)
def test_a_machine_climbs_when_the_attempts_at_a_rung_are_used_up(attempts: list[str], step: str, number: int) -> None:
    """What did not help three times is not tried for ever."""
    found = move(taken(*attempts))
    assert (found.rung.step, found.number) == (step, number)


def test_a_rung_that_the_provider_lacks_is_skipped_and_said_so_once() -> None:
    """Whoever reads the history must not wonder where the reboots are."""
    found = move([], can=frozenset({Capability.POWER_CYCLE}))
    assert (found.rung.step, found.skipped) == (
        StepName.POWER_CYCLE,
        ((StepName.REBOOT, "the provider closet cannot reboot machines"),),
    )
    assert move(taken("power-cycle"), can=frozenset({Capability.POWER_CYCLE})).skipped == ()
    last = move(taken(*["reboot"] * 3), can=frozenset({Capability.REBOOT}))
    assert (last.rung.step, [step for step, _ in last.skipped]) == (StepName.QUARANTINE, [StepName.POWER_CYCLE])


def test_what_turned_out_not_to_be_supported_is_not_tried_again() -> None:
    """A provider may be able to in general, and not with this machine."""
    found = move(taken("reboot", failed="NotSupported: the BMC offers no reset"))
    assert (found.rung.step, found.number) == (StepName.POWER_CYCLE, 1)


def test_attempts_that_failed_count_once_in_the_time_that_each_is_given() -> None:
    """A provider that is away for ten minutes must not bring every silent machine into quarantine."""
    away = "ProviderUnavailable: 503"
    assert move(taken(*["reboot"] * 20, failed=away, every=60)).number == 2
    assert move(taken(*["reboot"] * 3, failed=away, every=1800)).rung.step is StepName.POWER_CYCLE
    assert move(taken(*["reboot"] * 3, every=60)).rung.step is StepName.POWER_CYCLE, (
        "those that did not fail count each"
    )


def test_an_attempt_that_died_counts_and_is_waited_for_but_not_repeated() -> None:
    """Perhaps the machine is booting, or being installed: a second time would break it."""
    died = [PastAttempt("reboot", at(0))]
    found = next_step(REMEDIATION_POLICY, EVERYTHING, "closet", died, at(1799))
    assert (found.rung.step, found.concludes) == (StepName.REBOOT, True)
    later = next_step(REMEDIATION_POLICY, EVERYTHING, "closet", died, at(1800))
    assert (later.rung.step, later.number, later.concludes) == (StepName.REBOOT, 2, False)


def test_a_quarantine_that_died_is_repeated() -> None:
    """It has no effect outside."""
    attempts = [*taken(*["reboot"] * 3, *["power-cycle"] * 2), PastAttempt("quarantine", at(999 * HOUR))]
    found = next_step(REMEDIATION_POLICY, EVERYTHING, "closet", attempts, at(999 * HOUR + 1))
    assert (found.rung.step, found.concludes) == (StepName.QUARANTINE, False)
    assert found.told == "still silent after reboot 3 times, power-cycle 2 times"


@pytest.mark.parametrize(
    ("ladder", "can", "steps"),
    [
        ("reboot,quarantine", EVERYTHING, ["reboot"]),
        ("reboot,quarantine", frozenset(), []),
        ("restart-agent,reboot,quarantine", frozenset(), ["restart-agent"]),
        ("reinstall,power-cycle,quarantine", frozenset({Capability.REINSTALL}), ["reinstall"]),
    ],
)
def test_what_a_provider_can_do_of_a_ladder(ladder: str, can: frozenset[Capability], steps: list[str]) -> None:
    """A Recoverer that can do nothing but give up is refused."""
    assert list(possible(parse_policy(ladder), can)) == steps


def lines(*events: tuple[str, str | None, str | None]) -> list[HistoryLine]:
    """Return lines of history an hour apart: event, step, cause."""
    return [HistoryLine(event, at(number * HOUR), rung, cause) for number, (event, rung, cause) in enumerate(events)]


def test_the_position_is_read_from_the_history() -> None:
    """Nothing else remembers it, so nothing can contradict it."""
    history = lines(
        ("Finished", None, None),  # from before there were ladders
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


@pytest.mark.parametrize("event", [WorkEvent.HEALTHY, WorkEvent.UNQUARANTINED])
def test_the_ladder_begins_anew_after_a_healthy_while_and_after_quarantine(event: WorkEvent) -> None:
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
def test_a_healthy_while_is_from_agent_start_or_last_attempt_to_last_heartbeat(
    started: float | None, heard: float | None, healthy: bool
) -> None:
    """Reports of ten minutes between two faults are no recovery."""
    known = [None if moment is None else at(moment) for moment in (started, heard)]
    found = healthy_until(taken("reboot"), known[0], known[1], HOUR)
    assert found == (known[1] if healthy else None)
    assert healthy_until([], known[0], known[1], HOUR) is None, "there is nothing to forget"


steps = st.sampled_from([*StepName, "sing"])
capabilities = st.frozensets(st.sampled_from(list(Capability)))


@st.composite
def ladders(draw: st.DrawFn) -> tuple[Step, ...]:
    """Return any ladder."""
    before = draw(st.lists(st.sampled_from(list(StepName)[:-1]), min_size=1, unique=True))
    return parse_policy(",".join([*(f"{step}:{draw(st.integers(1, 5))}" for step in before), "quarantine"]))


@given(ladders(), capabilities, st.lists(st.tuples(st.sampled_from(["died", "failed", "done"]), st.integers(0, 7200))))
def test_every_climb_ends_and_never_goes_down(
    ladder: tuple[Step, ...], can: frozenset[Capability], fates: list[tuple[str, int]]
) -> None:
    """Whatever becomes of the attempts; and what a provider cannot do is never asked of it."""
    attempts: list[PastAttempt] = []
    now, height = 0.0, 0
    order = [rung.step for rung in ladder]
    most = sum(rung.attempts for rung in ladder)
    for fate, wait in [*fates, *[("done", 7200)] * most]:
        now += wait
        found = next_step(ladder, can, "closet", attempts, at(now))
        assert found.rung.step in {*possible(ladder, can), StepName.QUARANTINE}
        assert order.index(found.rung.step) >= height
        height = order.index(found.rung.step)
        assert 1 <= found.number <= found.rung.attempts
        if found.concludes:
            attempts[-1] = PastAttempt(attempts[-1].step, attempts[-1].at, None, concluded=True)
        elif found.rung.step is not StepName.QUARANTINE:
            cause = "ProviderUnavailable: ?" if fate == "failed" else None
            attempts.append(PastAttempt(found.rung.step, at(now), cause, concluded=fate != "died"))
    assert next_step(ladder, can, "closet", attempts, at(now + 7200)).rung.step is StepName.QUARANTINE


@given(st.text(alphabet="reboot:,quarantine=123 x", max_size=40))
def test_any_text_is_a_ladder_or_refused(text: str) -> None:
    """Nothing else may leave the parser."""
    try:
        rungs: Any = parse_policy(text)
    except ValueError:
        return
    assert rungs[-1].step is StepName.QUARANTINE
