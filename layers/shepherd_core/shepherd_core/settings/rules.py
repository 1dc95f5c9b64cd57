"""
The cross-setting rules, also between those of different functions: pure.

Each says what goes wrong if it is broken. A setting that is missing or faulty
breaks no rule: that is a fault of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from shepherd_core.domain.pace import Pace
from shepherd_core.rules.policy import parse_policy, possible
from shepherd_core.settings.deployment import AGENT_API_CONNECTIONS, loop_minutes
from shepherd_core.settings.functions.specs import FUNCTION_SECONDS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from shepherd_core.domain.provider import Capability
    from shepherd_core.domain.remediation import Step

Broken: TypeAlias = Callable[..., str | None]
"""Returns, for the values of settings, what goes wrong and what to do about it; None: nothing."""

INTERVALS = 2.5
"""A machine counts as healthy for at least this many intervals after a heartbeat (the view machine_need)."""
LOST_REQUESTS_SECONDS = 230
"""
The longest time without a heartbeat of a healthy machine that loses three requests in a row, for intervals below 92
seconds. (For longer ones it is less than two and a half intervals.) It is the sum of an interval with its jitter, four
requests of 20 seconds each (the last one arrives), and the pauses between them of at most 10, 15 and 22.5 seconds.
"""
_SHORTEST_INTERVAL = 10
"""Seconds. Agents do not report more often."""
_LONGEST_MINUTES = 30
"""At most so many may pass between two runs of the Recoverer, whatever the heartbeat timeout is."""
_TIMEOUTS = 3
"""How many heartbeat timeouts may pass between two runs of the Recoverer."""
_RETRIES = 2
"""How many requests for each heartbeat the agent API must have room for, because agents repeat lost ones."""
_DAY = 86_400


@dataclass(frozen=True, slots=True)
class SettingsRule:
    """A cross-setting rule."""

    keys: tuple[str, ...]
    """The settings: their keys in the document or, without one, their variables."""
    broken: Broken
    capabilities: bool = False
    """Whether ``broken`` also gets what the provider can do with at least some machines."""
    recoverer: bool = False
    """Whether the rule is about the Recoverer: it holds if the provider can take any step of the policy."""


def check(values: Mapping[str, Any], capabilities: Collection[Capability]) -> list[str]:
    """
    Return a line for each rule that *values* break: the settings, their values, what goes wrong, what to do.

    *values* are those of the settings that are right, as ``SettingsRule.keys`` names them.
    """
    return [fault for rule in RULES for fault in _faults(rule, values, capabilities)]


def _faults(rule: SettingsRule, values: Mapping[str, Any], capabilities: Collection[Capability]) -> Iterator[str]:
    if not all(key in values for key in rule.keys):
        return
    if rule.recoverer and _POLICY in values and not _taken(values[_POLICY], capabilities):
        return
    given = [values[key] for key in rule.keys]
    if text := rule.broken(*given, *((capabilities,) if rule.capabilities else ())):
        named = [f"{key} is {plain(value)}" for key, value in zip(rule.keys, given, strict=True)]
        yield f"{' and '.join(part for part in (', '.join(named[:-1]), named[-1]) if part)}: {text}"


def plain(value: object) -> str:
    """Return a value as an operator writes it."""
    match value:
        case None:
            return "unset"
        case bool():
            return str(value).lower()
        case float():
            return f"{value:g}"
        case _:
            return str(value)


def _taken(policy: str | None, capabilities: Collection[Capability]) -> list[Step]:
    """Return the steps before quarantine that are ever taken; without a policy, none."""
    steps = parse_policy(policy) if policy else ()
    kinds = possible(steps, capabilities)
    return [step for step in steps if step.kind in kinds]


def _rarely(every: str, timeout: float) -> str | None:
    minutes = loop_minutes(every)["recoverer"]
    longest = min(_TIMEOUTS * timeout / 60, _LONGEST_MINUTES)
    if minutes <= longest:
        return None
    more = f", or set the timeout to {minutes * 60 / _TIMEOUTS:g} or more" if minutes <= _LONGEST_MINUTES else ""
    oftener = f"run the Recoverer every {math.floor(longest)} minutes or more often" if longest >= 1 else ""
    return f"unhealthy machines would wait for several times their timeout: {oftener}{more}".replace(": , or", ":")


def _lost_requests(heartbeat: float, startup: float) -> str | None:
    if min(heartbeat, startup) >= LOST_REQUESTS_SECONDS:
        return None
    return (
        "healthy machines that lose three requests in a row would be recovered: set each to "
        f"{LOST_REQUESTS_SECONDS} or more"
    )


def _too_often(interval: int) -> str | None:
    if interval >= _SHORTEST_INTERVAL:
        return None
    return f"agents do not report more often than every {_SHORTEST_INTERVAL} seconds: set it to that or more"


def _steps(policy: str | None, every: str, capabilities: Collection[Capability]) -> str | None:
    again = max(Pace().start_backoff_seconds, 60 * loop_minutes(every)["initializer"])
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


def _history(days: int, policy: str, timeout: float, interval: int, capabilities: Collection[Capability]) -> str | None:
    longest = max(timeout, INTERVALS * interval)
    reset = max(timeout, Pace().reset_after_seconds)
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


def _connections(
    every: str,
    reserved_loop: int | None,
    reserved_api: int | None,
    roles: str | None,
    policy: str,
    offered: int,
    capabilities: Collection[Capability],
) -> str | None:
    concurrent = sum(
        min(most := math.ceil(FUNCTION_SECONDS[loop] / (60 * minutes)), reserved_loop or most)
        for loop, minutes in loop_minutes(every).items()
        if minutes and (loop != "recoverer" or _taken(policy, capabilities))
    )
    # Without users of their own, nothing but the account limits the agent API, and its limit is not known here.
    agent_api = reserved_api if roles is None else reserved_api or AGENT_API_CONNECTIONS
    needed = concurrent + (agent_api or 0) + 1
    if needed <= offered:
        return None
    return (
        f"up to {needed} connections are open at once (loops {concurrent}, Migrator 1, agent API "
        f"{agent_api or 'not counted'}): let the database accept more, reserve less concurrency, or run loops less "
        "often"
    )


def _heartbeats(rate: int | None, machines: int, interval: int) -> str | None:
    needed = math.ceil(_RETRIES * machines / interval)
    if rate is None or needed <= rate:
        return None
    return (
        f"heartbeats would be refused, since this fleet sends up to {needed} a second while some are lost: set "
        f"SHEPHERD_AGENT_API_RATE in template.yaml to {needed} and deploy, lower max_machines, or let agents report "
        "less often"
    )


def _own_agent(owner: str | None, source: str | None, sha256: str | None) -> str | None:
    if source is None and sha256 is not None:
        return "it is the hash of an agent of your own: set agent_source, too, or neither"
    if owner is None or source is None or sha256 is not None:
        return None
    return (
        'whatever is in the bucket would run as root on the machines: set agent_sha256 to the file\'s, or to "any" to '
        "accept that"
    )


def _launch(groups: str | None, template: str | None) -> str | None:
    if template is not None and not template.startswith("lt-"):
        return "permissions name launch templates by id: set the id, lt-…"
    if not groups and not template:
        return "functions may not launch into the default group: set one of them"
    return None


DOCUMENTS = {
    "provider.static.machines": "machines.json",
    "provider.redfish.machines": "machines.json",
    "provider.redfish.ca_source": "bmc-ca.pem",
    "bmdb.bmdb_ca_source": "bmdb-ca.pem",
    "initializer.agent_ca_source": "agent-ca.pem",
    "initializer.agent_source": "agent",
}
"""Settings that name a document, and its name in S3 and SSM, as the permissions of a deployment have it."""


def _named(document: str) -> Broken:
    def broken(source: str | None) -> str | None:
        if source is None or not source.startswith(("s3://", "ssm:")) or source.endswith(f"/documents/{document}"):
            return None
        kind = "s3://BUCKET" if source.startswith("s3://") else "ssm:/STACK"
        return f"functions may read {kind}/documents/{document} and no other: rename it"

    return broken


_TIMEOUT, _STARTUP = "recoverer.heartbeat_timeout_seconds", "recoverer.startup_timeout_seconds"
_POLICY, _INTERVAL = "recoverer.remediation_policy", "agent_api.heartbeat_interval_seconds"
_EVERY = "SHEPHERD_LOOP_MINUTES"

RULES = (
    SettingsRule((_EVERY, _TIMEOUT), _rarely, recoverer=True),
    SettingsRule((_TIMEOUT, _STARTUP), _lost_requests, recoverer=True),
    SettingsRule((_INTERVAL,), _too_often),
    SettingsRule((_POLICY, _EVERY), _steps, capabilities=True),
    SettingsRule(("recoverer.failed_policy", _EVERY), _steps, capabilities=True),
    SettingsRule(("history_days", _POLICY, _TIMEOUT, _INTERVAL), _history, capabilities=True),
    SettingsRule(
        (
            _EVERY,
            "SHEPHERD_LOOP_CONCURRENCY",
            "SHEPHERD_AGENT_API_CONCURRENCY",
            "bmdb.bmdb_roles",
            _POLICY,
            "bmdb.bmdb_max_connections",
        ),
        _connections,
        capabilities=True,
    ),
    SettingsRule(("SHEPHERD_AGENT_API_RATE", "provisioner.max_machines", _INTERVAL), _heartbeats),
    SettingsRule(("SHEPHERD_BUCKET_OWNER", "initializer.agent_source", "initializer.agent_sha256"), _own_agent),
    SettingsRule(("provider.ec2.security_groups", "provider.ec2.launch_template"), _launch),
    *(SettingsRule((key,), _named(document)) for key, document in DOCUMENTS.items()),
)
