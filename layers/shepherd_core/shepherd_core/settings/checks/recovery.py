"""The rules between settings that are about health and recovery."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from shepherd_core.domain.remediation import Timeouts
from shepherd_core.rules.policy import parse_policy, possible
from shepherd_core.settings.checks.rule import SettingsRule

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from shepherd_core.domain.provider import Capability
    from shepherd_core.domain.remediation import Step

_SHORTEST_INTERVAL = 10
"""Seconds. Agents do not report more often."""
INTERVALS = 2.5
"""A machine counts as healthy for at least this many intervals after a heartbeat (the view machine_need)."""
_LOST_REQUESTS_SECONDS = 260
"""
The longest time without a heartbeat of a healthy machine that loses three requests in a row, for intervals below 103
seconds. (For longer ones it is less than two and a half intervals.) It is the sum of an interval with its jitter, a
relay that hangs for a twelfth of the interval and 8 seconds, four requests of 20 seconds each (the last one arrives),
and the pauses between them of at most 10, 15 and 22.5 seconds.
"""
_LONGEST_MINUTES = 30
"""At most so many may pass between two runs of the Recoverer, whatever the heartbeat timeout is."""
_TIMEOUTS = 3
"""How many heartbeat timeouts may pass between two runs of the Recoverer."""
_DAY = 86_400
_CAPABILITIES = ("provider.capabilities",)
_INTERVAL = "agent_api.heartbeat_interval_seconds"
_POLICY = (
    "recoverer.remediation_policy",
    "recoverer.boot_wait_seconds",
    "recoverer.grace_seconds",
    "recoverer.cooldown_seconds",
)


def can_recover(policy: str, capabilities: Collection[Capability]) -> bool:
    """Return whether a provider with these *capabilities* can take any step of the policy: then the Recoverer works."""
    return bool(possible(parse_policy(policy, Timeouts(boot_wait=0, grace=0, cooldown=0)), capabilities))


def _taken(policy: Sequence[Any], capabilities: Collection[Capability]) -> list[Step]:
    """Return the steps before quarantine that are ever taken; *policy* has the values of ``_POLICY``."""
    text, boot_wait, grace, cooldown = policy
    steps = parse_policy(text, Timeouts(boot_wait=boot_wait, grace=grace, cooldown=cooldown))
    kinds = possible(steps, capabilities)
    return [step for step in steps if step.kind in kinds]


def _rarely(minutes: int, timeout: float) -> str | None:
    longest = min(_TIMEOUTS * timeout / 60, _LONGEST_MINUTES)
    if minutes <= longest:
        return None
    more = f", or set the timeout to {minutes * 60 / _TIMEOUTS:g} or more" if minutes <= _LONGEST_MINUTES else ""
    oftener = f"run the Recoverer every {math.floor(longest)} minutes or more often" if longest >= 1 else ""
    return (
        "unhealthy machines would wait for several times their timeout, since a long gap between two runs of the "
        f"Recoverer does not count as time without a heartbeat: {oftener}{more}".replace(": , or", ":")
    )


def _lost_requests(interval: int, timeout: float) -> str | None:  # noqa: ARG001 - it holds for the interval before this one too
    if timeout >= _LOST_REQUESTS_SECONDS:
        return None
    return (
        "healthy machines that lose three requests in a row would be recovered, as some agents may still have an "
        f"interval of up to 102 seconds: set the timeout to {_LOST_REQUESTS_SECONDS} or more"
    )


def _too_often(interval: int, report: float) -> str | None:
    shortest = max(_SHORTEST_INTERVAL, math.ceil(2 * report))
    if interval >= shortest:
        return None
    return (
        f"agents do not report more often than every {_SHORTEST_INTERVAL} seconds, and reports sooner than "
        f"min_report_seconds after the last one are refused: set heartbeat_interval_seconds to {shortest} or more"
    )


def _steps(*values: Any) -> str | None:
    *policy, backoff, minutes, capabilities = values
    again = max(backoff, 60 * minutes)
    short = [
        f"{step.name} has boot-wait {step.timeouts.boot_wait:g} and grace {step.timeouts.grace:g}"
        for step in _taken(policy, capabilities)
        if step.timeouts.boot_wait + again >= step.timeouts.grace
    ]
    if not short:
        return None
    return (
        "machines would get the next step before an agent start was tried twice after the last step: grace must be "
        f"longer than boot-wait plus the {again:g} seconds between the two; {'; '.join(short)}"
    )


def _reset(reset: float, timeout: float) -> str | None:
    if reset >= timeout:
        return None
    return (
        "a machine that fails again and again would never reach quarantine: set reset_after_seconds to "
        f"{timeout:g} or more"
    )


def _history(days: int, *values: Any) -> str | None:
    *policy, reset, timeout, interval, capabilities = values
    longest = max(timeout, INTERVALS * interval)
    way = sum(
        step.attempts * (max(step.timeouts.grace, step.timeouts.cooldown) + reset + longest)
        for step in _taken(policy, capabilities)
    )
    if not days or days * _DAY >= way:
        return None
    return (
        "the policy would start over in the middle, since the next step follows from the history: keep "
        f"{math.ceil(way / _DAY)} days or more, or 0"
    )


RULES = (
    SettingsRule(("recoverer.loop_minutes", "recoverer.heartbeat_timeout_seconds"), _rarely),
    SettingsRule((_INTERVAL, "recoverer.heartbeat_timeout_seconds"), _lost_requests),
    SettingsRule((_INTERVAL, "recoverer.startup_timeout_seconds"), _lost_requests),
    SettingsRule((_INTERVAL, "agent_api.min_report_seconds"), _too_often),
    SettingsRule((*_POLICY, "initializer.backoff_initial_seconds", "initializer.loop_minutes"), _steps, _CAPABILITIES),
    SettingsRule(("recoverer.reset_after_seconds", "recoverer.heartbeat_timeout_seconds"), _reset),
    *(
        SettingsRule(
            (
                f"{loop}.history_days",
                *_POLICY,
                "recoverer.reset_after_seconds",
                "recoverer.heartbeat_timeout_seconds",
                _INTERVAL,
            ),
            _history,
            _CAPABILITIES,
        )
        for loop in ("initializer", "recoverer")
    ),
)
