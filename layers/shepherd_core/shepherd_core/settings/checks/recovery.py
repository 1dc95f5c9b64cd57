"""The rules between settings that are about health and recovery."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from shepherd_core.domain.remediation import Timeouts
from shepherd_core.rules.remediation import parse_policy, possible
from shepherd_core.settings.checks.rule import Rule

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from shepherd_core.domain.provider import Capability
    from shepherd_core.domain.remediation import Step

AGENT_HEARTBEAT_SECONDS = 60
"""How often an agent reports unless it is told otherwise."""
HEARTBEATS = 5
"""How many intervals an agent may wait after failures before it reports again."""
_LONGEST_MINUTES = 30
_TIMEOUTS = 3
"""How many heartbeat timeouts may pass between two runs of the Recoverer."""
_DAY = 86_400
_ABILITIES = ("provider.abilities",)
_POLICY = (
    "recoverer.remediation_policy",
    "recoverer.boot_wait_seconds",
    "recoverer.grace_seconds",
    "recoverer.cooldown_seconds",
)


def can_recover(policy: str, abilities: Collection[Capability]) -> bool:
    """Return whether a provider with these *abilities* can take any step of the policy, so that the Recoverer works."""
    return bool(possible(parse_policy(policy, Timeouts(boot_wait=0, grace=0, cooldown=0)), abilities))


def _taken(policy: Sequence[Any], abilities: Collection[Capability]) -> list[Step]:
    """Return the steps before quarantine that are ever taken; *policy* has the values of ``_POLICY``."""
    text, boot_wait, grace, cooldown = policy
    steps = parse_policy(text, Timeouts(boot_wait=boot_wait, grace=grace, cooldown=cooldown))
    kinds = possible(steps, abilities)
    return [step for step in steps if step.kind in kinds]


def _rarely(minutes: int, timeout: float) -> str | None:
    longest = min(_TIMEOUTS * timeout / 60, _LONGEST_MINUTES)
    if minutes <= longest:
        return None
    more = f", or set the timeout to {minutes * 60 / _TIMEOUTS:g} or more" if minutes <= _LONGEST_MINUTES else ""
    oftener = f"run the Recoverer every {math.floor(longest)} minutes or more often" if longest >= 1 else ""
    return (
        "unhealthy machines would wait for several times their timeout, since a gap between two runs of the Recoverer "
        f"counts for no machine: {oftener}{more}".replace(": , or", ":")
    )


def _lost_heartbeats(interval: float | None, timeout: float) -> str | None:
    seconds = interval or AGENT_HEARTBEAT_SECONDS
    if timeout > HEARTBEATS * seconds:
        return None
    return (
        f"healthy machines would be recovered that lose {HEARTBEATS} heartbeats to a network or an outage: set "
        f"the timeout to more than {HEARTBEATS * seconds:g}, or the interval to less than {timeout / HEARTBEATS:g}"
    )


def _steps(*values: Any) -> str | None:
    *policy, backoff, minutes, abilities = values
    again = max(backoff, 60 * minutes)
    short = [
        f"{step.name} has boot-wait {step.timeouts.boot_wait:g} and grace {step.timeouts.grace:g}"
        for step in _taken(policy, abilities)
        if step.timeouts.boot_wait + again >= step.timeouts.grace
    ]
    if not short:
        return None
    return (
        "machines would get the next step before an agent start was tried twice after the last one: grace must be "
        f"longer than boot-wait and the {again:g} seconds until the next try; {'; '.join(short)}"
    )


def _reset(reset: float, timeout: float) -> str | None:
    if reset >= timeout:
        return None
    return (
        "a machine that fails again and again would never reach quarantine: set reset_after_seconds to "
        f"{timeout:g} or more"
    )


def _history(days: int, *values: Any) -> str | None:
    *policy, reset, timeout, abilities = values
    way = sum(
        step.attempts * (max(step.timeouts.grace, step.timeouts.cooldown) + reset + timeout)
        for step in _taken(policy, abilities)
    )
    if not days or days * _DAY >= way:
        return None
    return (
        "the policy would start over in the middle, since the next step follows from the history: keep "
        f"{math.ceil(way / _DAY)} days or more, or 0"
    )


RULES = (
    Rule(("recoverer.loop_minutes", "recoverer.heartbeat_timeout_seconds"), _rarely),
    Rule(("initializer.agent_heartbeat_seconds", "recoverer.heartbeat_timeout_seconds"), _lost_heartbeats),
    Rule(("initializer.agent_heartbeat_seconds", "recoverer.startup_timeout_seconds"), _lost_heartbeats),
    Rule((*_POLICY, "initializer.backoff_initial_seconds", "initializer.loop_minutes"), _steps, _ABILITIES),
    Rule(("recoverer.reset_after_seconds", "recoverer.heartbeat_timeout_seconds"), _reset),
    *(
        Rule(
            (
                f"{loop}.history_days",
                *_POLICY,
                "recoverer.reset_after_seconds",
                "recoverer.heartbeat_timeout_seconds",
            ),
            _history,
            _ABILITIES,
        )
        for loop in ("initializer", "recoverer")
    ),
)
