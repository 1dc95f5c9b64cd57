"""
The remediation policy: steps in order, from gentle to violent, each with a number of attempts.

The last step is quarantine. ``rules.remediation`` says which step comes next.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from shepherd_core.domain.remediation import QUARANTINE, STEPS, USUAL_TIMEOUTS, Step

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from shepherd_core.domain.provider import Capability
    from shepherd_core.domain.remediation import StepKind, Timeouts

MAX_ATTEMPTS = 100
"""Of all steps together: as many attempts as are read from the history."""
_MAX_SECONDS = 86_400 * 7


def parse_policy(
    text: str, timeouts: Timeouts = USUAL_TIMEOUTS, names: Collection[str] = tuple(STEPS)
) -> tuple[Step, ...]:
    """
    Return the policy that *text* describes, such as ``reboot:3,power-cycle:2,quarantine``; of steps with these *names*.

    A step is written as its name, the number of attempts, and the timeouts that differ from *timeouts*, in seconds:
    ``reinstall:1:boot-wait=900:grace=7200:cooldown=86400``.

    Raises:
        ValueError: *text* is not a policy; the message says what is wrong.
    """
    steps: list[Step] = []
    for part in text.split(","):
        name, *options = (word.strip() for word in part.split(":"))
        if name not in names:
            message = f"{name!r} is not a step; use {', '.join(names)}"
            raise ValueError(message)
        steps.append(_step(STEPS[name], options, timeouts))
    given = [step.name for step in steps]
    if len(set(given)) < len(given):
        twice = max(given, key=given.count)
        message = f"{twice} appears more than once; write {twice}:{given.count(twice)} for several attempts"
        raise ValueError(message)
    if len(given) == 1 or given[-1] != QUARANTINE.name:
        message = f"the policy must have a step, and then end with {QUARANTINE.name}, which may appear only once"
        raise ValueError(message)
    if (attempts := sum(step.attempts for step in steps)) > MAX_ATTEMPTS:
        message = f"the policy has {attempts} attempts; it may have at most {MAX_ATTEMPTS} attempts in all"
        raise ValueError(message)
    return tuple(steps)


def _step(kind: StepKind, options: Sequence[str], timeouts: Timeouts) -> Step:
    attempts, given = 1, {} if kind.reboots else {"boot_wait": 0.0}
    for option in options:
        key, equals, value = option.partition("=")
        if kind is QUARANTINE:
            message = f"{kind.name} takes no options, but has {option!r}"
            raise ValueError(message)
        if not equals and key.isdecimal() and 1 <= int(key) <= MAX_ATTEMPTS:
            attempts = int(key)
        elif key in {"boot-wait", "grace", "cooldown"} and value.isdecimal() and int(value) <= _MAX_SECONDS:
            given[key.replace("-", "_")] = float(value)
        else:
            message = (
                f"{option!r} of {kind.name} is neither a number of attempts, 1 to {MAX_ATTEMPTS}, nor boot-wait=, "
                "grace= or cooldown= with whole seconds, at most a week"
            )
            raise ValueError(message)
    return Step(kind, attempts, replace(timeouts, **given))


def possible(policy: Iterable[Step], capabilities: Collection[Capability]) -> tuple[StepKind, ...]:
    """Return the steps of *policy* before quarantine that a provider with these *capabilities* can take."""
    return tuple(
        step.kind for step in policy if step.kind is not QUARANTINE and step.kind.needs in {None, *capabilities}
    )


def step_of(policy: Sequence[Step], kind: StepKind) -> Step:
    """Return the step of this *kind*; if *policy* has none, one with the timeouts of its first step."""
    return next((step for step in policy if step.kind is kind), Step(kind, 1, policy[0].timeouts))
