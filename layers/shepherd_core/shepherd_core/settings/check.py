"""
The rules between settings, also between those of different functions: pure.

Each says what goes wrong if it is broken. A setting that is missing or faulty
breaks no rule: that is a fault of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from shepherd_core.domain.remediation import Timeouts
from shepherd_core.domain.time_budget import (
    ANSWER_SECONDS,
    CLOSING_SECONDS,
    CREATE_SECONDS,
    MARGIN_SECONDS,
    RENEWALS,
)
from shepherd_core.rules.remediation import parse_policy
from shepherd_core.settings.base import PREFIX
from shepherd_core.settings.deployment import LOOPS, CapacitySettings
from shepherd_core.settings.functions import FUNCTIONS
from shepherd_core.settings.keys import place
from shepherd_core.settings.providers import PROVIDERS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    All = Mapping[str, Mapping[str, Any]]
    """
    The settings of each function by its name, with those of ``bmdb`` and of the ``provider``.

    Those of a function also have ``loop_minutes`` (for a loop; 0: off) and ``function_seconds``, and those of the
    ``deployment`` its own.
    """

AGENT_HEARTBEAT_SECONDS = 60
"""How often an agent reports unless it is told otherwise."""
HEARTBEATS = 5
"""How many intervals an agent may wait after failures before it reports again."""
CLAIM_SECONDS = 30.0
"""How long claims, and what comes before them, may take."""
_LONGEST_MINUTES = 30
_TIMEOUTS = 3
"""How many heartbeat timeouts may pass between two runs of the Recoverer."""
_DAY = 86_400


class _Broken(Protocol):
    def __call__(self, *values: Any) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule between settings."""

    keys: tuple[str, ...]
    """The settings, each as ``function.name``."""
    broken: _Broken
    """Returns, for the values of the settings, what goes wrong and what to do about it; None: nothing."""


def check(settings: All) -> list[str]:
    """Return a line for each rule that *settings* break: both settings, their values, what goes wrong, what to do."""
    return [fault for rule in RULES for fault in _faults(rule, settings)]


def _faults(rule: Rule, settings: All) -> Iterator[str]:
    parts = [key.partition(".")[::2] for key in rule.keys]
    if not all(name in settings.get(function, {}) for function, name in parts):
        return
    values = [settings[function][name] for function, name in parts]
    if text := rule.broken(*values):
        named = [f"{_name(*part)} is {_plain(value)}" for part, value in zip(parts, values, strict=True)]
        yield f"{' and '.join(part for part in (', '.join(named[:-1]), named[-1]) if part)}: {text}"


def _name(function: str, name: str) -> str:
    """Return how an operator knows a setting: by its key in the document or, without one, by its variable."""
    if name == "loop_minutes" and function in FUNCTIONS:
        return f"minutes between two runs of the {function} ({PREFIX}LOOP_MINUTES)"
    if name == "function_seconds" and function in FUNCTIONS:
        return f"timeout of the {function} ({PREFIX}FUNCTION_SECONDS)"
    for settings_type in (FUNCTIONS.get(function), CapacitySettings, *PROVIDERS.values()):
        if settings_type is not None and name in settings_type.model_fields and (key := place(settings_type, name)):
            return key
    return PREFIX + name.upper()


def _plain(value: object) -> str:
    match value:
        case None:
            return "unset"
        case float():
            return f"{value:g}"
        case dict():
            return ",".join(map(str, value.values()))
        case _:
            return str(value)


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
        f"healthy machines would be recovered, since after failures an agent waits up to {HEARTBEATS} intervals: set "
        f"the timeout to more than {HEARTBEATS * seconds:g}, or the interval to less than {timeout / HEARTBEATS:g}"
    )


def _takeover(connect: float, answer: float, machine: float) -> str | None:
    if connect + answer < machine:
        return None
    return (
        "the work on a machine would end before its agent may have answered: set machine_seconds to more than "
        f"{connect + answer:g}"
    )


def _no_machine(machine: float, timeout: float) -> str | None:
    needed = machine + MARGIN_SECONDS + CLOSING_SECONDS + CLAIM_SECONDS
    if needed <= timeout:
        return None
    return (
        "no machine would be worked on, since one is begun only if there is time to end: set machine_seconds to "
        f"{timeout - needed + machine:g} or less, or give the function {needed:g} seconds"
    )


def _chunk(chunk: int, creation: float, timeout: float) -> str | None:
    needed = chunk * creation + CREATE_SECONDS + CLOSING_SECONDS
    if needed <= timeout:
        return None
    return (
        f"an invocation could not create its chunk, which may take {needed:g} seconds: create fewer at once, or wait "
        "less between creations"
    )


def _renewal(session: float, statement: float) -> str | None:
    needed = statement * RENEWALS / (RENEWALS - 1)
    if session >= needed:
        return None
    return (
        "a session could expire behind one slow statement, since it is renewed between statements, "
        f"{RENEWALS} times in its length: set session_seconds to {math.ceil(needed)} or more"
    )


def _long_session(session: float, timeout: float) -> str | None:
    if session <= timeout:
        return None
    return (
        "the machines of a killed invocation would wait longer than an invocation can last: set session_seconds to "
        f"{timeout:g} or less"
    )


def _statement(kept: float) -> _Broken:
    def broken(*values: float) -> str | None:
        *parts, timeout = values
        if sum(parts) + kept <= timeout:
            return None
        return (
            "a slow database would let the function be killed instead of failing with the reason: a statement may "
            f"take {timeout - kept - sum(parts[:-1]):g} seconds or less"
        )

    return broken


def _connections(
    minutes: Mapping[str, int], seconds: Mapping[str, int], limit: int | None, agent_api: int | None, offered: int
) -> str | None:
    most = [math.ceil(seconds[loop] / (60 * each)) for loop, each in minutes.items() if each]
    concurrent = sum(min(each, limit or each) for each in most)
    needed = concurrent + (agent_api or 0) + 1
    if needed <= offered:
        return None
    return (
        f"up to {needed} invocations run at once, each with a connection of its own (loops {concurrent}, Migrator 1, "
        f"agent API {agent_api or 'not counted'}): let the database accept more, reserve less concurrency, or run "
        "loops less often"
    )


def _backoff(initial: float, maximum: float) -> str | None:
    if initial <= maximum:
        return None
    return f"the maximum would have no effect: set it to {initial:g} or more"


def _steps(policy: str, boot_wait: float, grace: float, cooldown: float, backoff: float, minutes: int) -> str | None:
    again = max(backoff, 60 * minutes)
    short = [
        f"{step.name} has boot-wait {step.timeouts.boot_wait:g} and grace {step.timeouts.grace:g}"
        for step in parse_policy(policy, Timeouts(boot_wait=boot_wait, grace=grace, cooldown=cooldown))[:-1]
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


def _history(
    days: int, policy: str, boot_wait: float, grace: float, cooldown: float, reset: float, timeout: float
) -> str | None:
    way = sum(
        step.attempts * (max(step.timeouts.grace, step.timeouts.cooldown) + reset + timeout)
        for step in parse_policy(policy, Timeouts(boot_wait=boot_wait, grace=grace, cooldown=cooldown))[:-1]
    )
    if not days or days * _DAY >= way:
        return None
    return (
        "the policy would start over in the middle, since the next step follows from the history: keep "
        f"{math.ceil(way / _DAY)} days or more, or 0"
    )


def _bmc(request: float, machine: float) -> str | None:
    if request < machine:
        return None
    return f"a slow BMC would use up all the time for its machine: set the timeout to less than {machine:g}"


def _listing(request: float, timeout: float) -> str | None:
    if request + CLOSING_SECONDS < timeout:
        return None
    return f"a listing would not end in time: set the timeout to less than {timeout - CLOSING_SECONDS:g}"


def _named(document: str) -> _Broken:
    def broken(source: str | None) -> str | None:
        if source is None or not source.startswith(("s3://", "ssm:")) or source.endswith(f"/documents/{document}"):
            return None
        kind = "s3://BUCKET" if source.startswith("s3://") else "ssm:/STACK"
        return f"functions may read {kind}/documents/{document} and no other: rename it"

    return broken


def _launch_template(template: str | None) -> str | None:
    if template is None or template.startswith("lt-"):
        return None
    return "permissions know launch templates by their id: name it as lt-…"


def _groups(groups: str | None, template: str | None) -> str | None:
    if groups or template:
        return None
    return "functions may not launch into the default group: set one of them"


DOCUMENTS = {
    "static_list": ("provider", "machines.json"),
    "redfish_list": ("provider", "machines.json"),
    "redfish_ca_source": ("provider", "bmc-ca.pem"),
    "bmdb_ca_source": ("migrator", "bmdb-ca.pem"),
    "agent_ca_source": ("initializer", "agent-ca.pem"),
}
"""
Settings that name a document, with a function that has the setting, and the name that the permissions of a deployment
have for it in S3 and SSM.
"""

_POLICY = (
    "recoverer.remediation_policy",
    "recoverer.boot_wait_seconds",
    "recoverer.grace_seconds",
    "recoverer.cooldown_seconds",
)

RULES = (
    Rule(("recoverer.loop_minutes", "recoverer.heartbeat_timeout_seconds"), _rarely),
    Rule(("initializer.agent_heartbeat_seconds", "recoverer.heartbeat_timeout_seconds"), _lost_heartbeats),
    Rule(("initializer.agent_heartbeat_seconds", "recoverer.startup_timeout_seconds"), _lost_heartbeats),
    Rule(
        (
            "initializer.ssh_connect_timeout_seconds",
            "initializer.agent_timeout_seconds",
            "initializer.machine_seconds",
        ),
        _takeover,
    ),
    *(
        Rule((f"{loop}.machine_seconds", f"{loop}.function_seconds"), _no_machine)
        for loop in ("initializer", "recoverer")
    ),
    Rule(("provisioner.chunk", "provisioner.creation_seconds", "provisioner.function_seconds"), _chunk),
    *(Rule((f"{loop}.session_seconds", f"{loop}.bmdb_statement_timeout_seconds"), _renewal) for loop in LOOPS),
    *(Rule((f"{loop}.session_seconds", f"{loop}.function_seconds"), _long_session) for loop in LOOPS),
    *(
        Rule((f"{loop}.bmdb_statement_timeout_seconds", f"{loop}.function_seconds"), _statement(CLOSING_SECONDS))
        for loop in LOOPS
    ),
    Rule(
        (
            "agent_api.bmdb_connect_timeout_seconds",
            "agent_api.bmdb_statement_timeout_seconds",
            "agent_api.function_seconds",
        ),
        _statement(0),
    ),
    Rule(("migrator.bmdb_statement_timeout_seconds", "migrator.function_seconds"), _statement(ANSWER_SECONDS)),
    Rule(
        (
            "deployment.loop_minutes",
            "deployment.function_seconds",
            "deployment.loop_concurrency",
            "deployment.agent_api_concurrency",
            "bmdb.bmdb_max_connections",
        ),
        _connections,
    ),
    *(
        Rule((f"{loop}.backoff_initial_seconds", f"{loop}.backoff_maximum_seconds"), _backoff)
        for loop in ("initializer", "recoverer")
    ),
    Rule((*_POLICY, "initializer.backoff_initial_seconds", "initializer.loop_minutes"), _steps),
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
        )
        for loop in ("initializer", "recoverer")
    ),
    Rule(("provider.redfish_timeout_seconds", "recoverer.machine_seconds"), _bmc),
    *(
        Rule(("provider.redfish_timeout_seconds", f"{loop}.function_seconds"), _listing)
        for loop in ("provisioner", "updater")
    ),
    *(Rule((f"{function}.{name}",), _named(document)) for name, (function, document) in DOCUMENTS.items()),
    Rule(("provider.ec2_launch_template",), _launch_template),
    Rule(("provider.ec2_security_groups", "provider.ec2_launch_template"), _groups),
)
