"""The defaults of the settings, as rules and loops take them: the numbers stand in the product alone."""

from dataclasses import replace

from shepherd_core.domain.health import HealthTimeouts
from shepherd_core.domain.pace import Pace
from shepherd_core.domain.remediation import USUAL_TIMEOUTS, Step
from shepherd_core.loops.recoverer import RecoveryRules
from shepherd_core.rules.policy import parse_policy
from shepherd_core.settings.functions.loops import RecovererSettings

_RECOVERER = RecovererSettings.model_construct()  # type: ignore[call-arg]  # what has a default

HEALTH = HealthTimeouts(
    startup_timeout_seconds=_RECOVERER.startup_timeout_seconds,
    heartbeat_timeout_seconds=_RECOVERER.heartbeat_timeout_seconds,
    grace_seconds=USUAL_TIMEOUTS.grace,
)
LIMITS = _RECOVERER.budget_limits
TIMEOUTS = USUAL_TIMEOUTS
POLICY = _RECOVERER.remediation_policy


def policy(text: str = POLICY, *, boot_wait: float = TIMEOUTS.boot_wait) -> tuple[Step, ...]:
    return parse_policy(text, replace(TIMEOUTS, boot_wait=boot_wait))


RULES = RecoveryRules(
    timeouts=HEALTH,
    backoff=Pace().step_backoff,
    policy=policy(),
    limits=LIMITS,
    reset_after_seconds=Pace().reset_after_seconds,
)
