"""The defaults of the settings, as rules and loops take them: the numbers stand in the settings alone."""

from dataclasses import replace

from shepherd_core.domain.health import HealthTimeouts
from shepherd_core.domain.remediation import Step, Timeouts
from shepherd_core.loops.recoverer import RecoveryRules
from shepherd_core.rules.policy import parse_policy
from shepherd_core.settings.functions.loops import RecovererSettings

_RECOVERER = RecovererSettings.model_construct()

HEALTH = HealthTimeouts(
    startup_timeout_seconds=_RECOVERER.startup_timeout_seconds,
    heartbeat_timeout_seconds=_RECOVERER.heartbeat_timeout_seconds,
    grace_seconds=_RECOVERER.grace_seconds,
)
LIMITS = _RECOVERER.breaker_limits
TIMEOUTS = Timeouts(
    boot_wait=_RECOVERER.boot_wait_seconds, grace=_RECOVERER.grace_seconds, cooldown=_RECOVERER.cooldown_seconds
)
POLICY = _RECOVERER.remediation_policy


def policy(text: str = POLICY, *, boot_wait: float = TIMEOUTS.boot_wait) -> tuple[Step, ...]:
    """Return the remediation policy *text* with the default timeouts, apart from *boot_wait*."""
    return parse_policy(text, replace(TIMEOUTS, boot_wait=boot_wait))


RULES = RecoveryRules(
    timeouts=HEALTH,
    backoff=_RECOVERER.backoff,
    policy=policy(),
    limits=LIMITS,
    reset_after_seconds=_RECOVERER.reset_after_seconds,
)
