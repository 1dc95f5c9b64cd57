from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shepherd_core.domain.clock import Deadline, Permission
from shepherd_core.domain.errors import ConfigError
from shepherd_core.domain.errors.provider import NotSupported
from shepherd_core.domain.machine import ProviderId
from shepherd_core.domain.provider import Capability
from shepherd_core.domain.remediation import (
    QUARANTINE,
    REBOOT,
    REINSTALL,
    RESTART_AGENT,
    STEPS,
    Step,
    StepKind,
    Timeouts,
    provider_steps,
)
from shepherd_core.providers.static import StaticProvider
from shepherd_core.rules.policy import MAX_ATTEMPTS, parse_policy, possible
from shepherd_core.settings.functions.loops import RecovererSettings
from shepherd_core.settings.sources import load

from tests.conftest import ManualClock
from tests.support import defaults

EVERYTHING = frozenset(Capability)


def test_the_default_policy_starts_with_a_reboot_and_destroys_nothing() -> None:
    steps = defaults.policy()
    assert [(step.name, step.attempts) for step in steps] == [("reboot", 3), ("power-cycle", 2), ("quarantine", 1)]


def test_a_step_may_have_timeouts_of_its_own() -> None:
    first, second, last = parse_policy(
        " restart-agent , reinstall:2:boot-wait=900:grace=7200, quarantine",
        Timeouts(boot_wait=60, grace=600, cooldown=30),
    )
    assert first == Step(RESTART_AGENT, 1, Timeouts(boot_wait=0, grace=600, cooldown=30))
    assert second == Step(REINSTALL, 2, Timeouts(boot_wait=900, grace=7200, cooldown=30))
    assert last.kind is QUARANTINE


@pytest.mark.parametrize("text", ["reboot:99,quarantine", "reboot:60,power-cycle:39,quarantine"])
def test_a_policy_may_have_as_many_attempts_as_are_read(text: str) -> None:
    assert sum(step.attempts for step in defaults.policy(text)) == MAX_ATTEMPTS


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", f"'' is not a step; use {', '.join(STEPS)}"),
        ("kick:3,quarantine", "'kick' is not a step"),
        ("Reboot,quarantine", "'Reboot' is not a step"),
        ("reboot:3", "the policy must have a step, and then end with quarantine, which may appear only once"),
        ("quarantine,reboot", "the policy must have a step, and then end with quarantine, which may appear only once"),
        ("quarantine", "the policy must have a step, and then end with quarantine, which may appear only once"),
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
        ("reboot:100,quarantine", "at most 100 attempts in all"),
        ("reboot,,quarantine", "'' is not a step"),
    ],
)
def test_an_invalid_policy_is_refused_with_the_reason(text: str, wanted: str) -> None:
    with pytest.raises(ValueError, match=wanted.replace("(", r"\(")):
        defaults.policy(text)


@given(st.text(alphabet="reboot:,quarantine=123 x", max_size=40))
def test_any_text_is_a_policy_or_refused(text: str) -> None:
    try:
        steps: Any = defaults.policy(text)
    except ValueError:
        return
    assert steps[-1].kind is QUARANTINE


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("REMEDIATION", "reboot:2:grace=60,quarantine", Step(REBOOT, 2, Timeouts(grace=60))),
        ("REMEDIATION", "kick", "'kick' is not a step"),
        ("REMEDIATION", "reinstall,release,quarantine", "'release' is not a step"),  # it may be alive
        ("FAILED", "reinstall:2:grace=60,release,quarantine", Step(REINSTALL, 2, Timeouts(grace=60))),
        ("FAILED", "reboot,quarantine", "'reboot' is not a step"),  # a boot does not install what is missing
    ],
)
def test_each_policy_is_a_setting_with_steps_of_its_own(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, wanted: Step | str
) -> None:
    for key, value in {"BMDB_HOST": "db", "PROVIDER": "ironic", f"{name}_POLICY": text}.items():
        monkeypatch.setenv(f"SHEPHERD_{key}", value)
    if isinstance(wanted, str):
        with pytest.raises(ConfigError, match=f"SHEPHERD_{name}_POLICY is '{text}': {wanted}"):
            load(RecovererSettings)
    else:
        (settings,) = load(RecovererSettings)
        assert (settings.policy if name == "REMEDIATION" else settings.policy_if_failed)[0] == wanted


@pytest.mark.parametrize(
    ("policy", "can", "steps"),
    [
        ("reboot,quarantine", EVERYTHING, ["reboot"]),
        ("reboot,quarantine", frozenset(), []),
        ("restart-agent,reboot,quarantine", frozenset(), ["restart-agent"]),
        ("reinstall,power-cycle,quarantine", frozenset({Capability.REINSTALL}), ["reinstall"]),
    ],
)
def test_possible_lists_steps_the_provider_can_take(policy: str, can: frozenset[Capability], steps: list[str]) -> None:
    assert [kind.name for kind in possible(defaults.policy(policy), can)] == steps


@pytest.mark.parametrize("kind", STEPS.values(), ids=STEPS)
def test_a_step_asks_for_the_capability_it_needs(kind: StepKind) -> None:
    take = provider_steps(StaticProvider(lambda: b"[]")).get(kind)
    if take is None:
        assert kind.needs is None
        return
    with pytest.raises(NotSupported, match=f"the provider static cannot {kind.needs} machines"):
        take(ProviderId("machine"), Permission(Deadline(ManualClock(), 1)))
