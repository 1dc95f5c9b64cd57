"""The rules between settings that are about the time and the connections of functions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from shepherd_core.domain.clock import (
    ANSWER_SECONDS,
    CLOSING_SECONDS,
    CREATE_SECONDS,
    FLOOR_SECONDS,
    MARGIN_SECONDS,
    RENEWALS,
)
from shepherd_core.settings.checks.rule import SettingsRule
from shepherd_core.settings.deployment import LOOPS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from shepherd_core.settings.checks.rule import Broken

_RETRIES = 2
"""How many requests for each heartbeat the agent API must have room for, because agents repeat lost ones."""
CLAIM_SECONDS = 30.0
"""How long claims, and what comes before them, may take."""


def _takeover(connect: float, answer: float, machine: float) -> str | None:
    if connect + answer < machine:
        return None
    return (
        "the work on a machine would end before its agent may have answered: set machine_seconds to more than "
        f"{connect + answer:g}"
    )


def _look(look: float, machine: float) -> str | None:
    if look <= machine / 2:
        return None
    return f"too little time would be left for the step after a look: set look_seconds to {machine / 2:g} or less"


def _no_machine(machine: float, timeout: float) -> str | None:
    needed = machine + MARGIN_SECONDS + CLOSING_SECONDS + CLAIM_SECONDS
    if needed <= timeout:
        return None
    return (
        "no machine would be worked on, since work begins only if there is time to end it: set machine_seconds to "
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


def _statement(kept: float) -> Broken:
    def broken(*values: float) -> str | None:
        *parts, timeout = values
        if sum(parts) + kept <= timeout:
            return None
        return (
            "with a slow database the function would be killed before it could report the reason: set "
            f"bmdb_statement_timeout_seconds to {timeout - kept - sum(parts[:-1]):g} or less"
        )

    return broken


def _transaction(connect: float, statement: float) -> str | None:
    # The server ends a transaction that is idle for as long as a statement and a connection may take (connection.py).
    if 2 * statement + connect < FLOOR_SECONDS:
        return None
    return (
        f"a transaction could last {FLOOR_SECONDS} seconds after it made a machine due, and claims would then not find "
        "the machine: bmdb_statement_timeout_seconds and half of bmdb_connect_timeout_seconds must together be less "
        f"than {FLOOR_SECONDS / 2:g}"
    )


class _Connections(NamedTuple):
    """The values on which the number of connections depends, in the order of the rule's settings."""

    minutes: Mapping[str, int]
    seconds: Mapping[str, int]
    loop_concurrency: int | None
    agent_api_concurrency: int | None
    roles: str | None
    agent_api_connections: int
    offered: int
    enabled: Collection[str]


def _connections(*values: Any) -> str | None:
    given = _Connections(*values)
    most = [
        math.ceil(given.seconds[loop] / (60 * each))
        for loop, each in given.minutes.items()
        if each and loop in given.enabled
    ]
    concurrent = sum(min(each, given.loop_concurrency or each) for each in most)
    # Without users of their own, nothing but the account limits the agent API, and its limit is not known here.
    requests, allowed = given.agent_api_concurrency, given.agent_api_connections
    agent_api = requests if given.roles is None else min(allowed, requests or allowed)
    needed = concurrent + (agent_api or 0) + 1
    if needed <= given.offered:
        return None
    lower = f"{'' if given.roles is None else 'lower agent_api_connections, '}reserve less concurrency"
    return (
        f"up to {needed} connections are open at once (loops {concurrent}, Migrator 1, agent API "
        f"{agent_api or 'not counted'}): let the database accept more, {lower}, or run loops less often"
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


def _backoff(initial: float, maximum: float) -> str | None:
    if initial <= maximum:
        return None
    return f"the maximum would have no effect: set it to {initial:g} or more"


def _bmc(request: float, machine: float) -> str | None:
    if request < machine:
        return None
    return f"a slow BMC would use up all the time for its machine: set the timeout to less than {machine:g}"


def _listing(request: float, timeout: float) -> str | None:
    if request + CLOSING_SECONDS < timeout:
        return None
    return f"a listing would not end in time: set the timeout to less than {timeout - CLOSING_SECONDS:g}"


RULES = (
    SettingsRule(
        (
            "initializer.ssh_connect_timeout_seconds",
            "initializer.agent_timeout_seconds",
            "initializer.machine_seconds",
        ),
        _takeover,
    ),
    SettingsRule(("recoverer.look_seconds", "recoverer.machine_seconds"), _look),
    *(
        SettingsRule((f"{loop}.machine_seconds", f"{loop}.function_seconds"), _no_machine)
        for loop in ("initializer", "recoverer")
    ),
    SettingsRule(("provisioner.chunk", "provisioner.creation_seconds", "provisioner.function_seconds"), _chunk),
    *(SettingsRule((f"{loop}.session_seconds", f"{loop}.bmdb_statement_timeout_seconds"), _renewal) for loop in LOOPS),
    *(SettingsRule((f"{loop}.session_seconds", f"{loop}.function_seconds"), _long_session) for loop in LOOPS),
    *(
        SettingsRule(
            (f"{loop}.bmdb_statement_timeout_seconds", f"{loop}.function_seconds"), _statement(CLOSING_SECONDS)
        )
        for loop in LOOPS
    ),
    *(
        SettingsRule(
            (f"{function}.bmdb_connect_timeout_seconds", f"{function}.bmdb_statement_timeout_seconds"), _transaction
        )
        for function in (*LOOPS, "agent_api")
    ),
    SettingsRule(
        (
            "agent_api.bmdb_connect_timeout_seconds",
            "agent_api.bmdb_statement_timeout_seconds",
            "agent_api.function_seconds",
        ),
        _statement(0),
    ),
    SettingsRule(("migrator.bmdb_statement_timeout_seconds", "migrator.function_seconds"), _statement(ANSWER_SECONDS)),
    SettingsRule(
        (
            "deployment.loop_minutes",
            "deployment.function_seconds",
            "deployment.loop_concurrency",
            "deployment.agent_api_concurrency",
            "migrator.bmdb_roles",
            "migrator.agent_api_connections",
            "bmdb.bmdb_max_connections",
        ),
        _connections,
        ("deployment.enabled",),
    ),
    SettingsRule(
        ("deployment.agent_api_rate", "provisioner.max_machines", "agent_api.heartbeat_interval_seconds"), _heartbeats
    ),
    *(
        SettingsRule((f"{loop}.backoff_initial_seconds", f"{loop}.backoff_maximum_seconds"), _backoff)
        for loop in ("initializer", "recoverer")
    ),
    SettingsRule(("provider.redfish_timeout_seconds", "recoverer.machine_seconds"), _bmc),
    *(
        SettingsRule(("provider.redfish_timeout_seconds", f"{loop}.function_seconds"), _listing)
        for loop in ("provisioner", "updater")
    ),
)
