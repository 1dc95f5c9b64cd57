"""The parts of a fleet's status that need an operator, in words: pure."""

import shlex
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from shepherd_core.bmdb.wire.server import Transaction
from shepherd_core.bmdb.work.ticks import Tick
from shepherd_core.domain.budget import Brake, where
from shepherd_core.domain.states import State

from shepherdctl.output.formats import span
from shepherdctl.output.printing import counted

EXIT_STATUS = 3
"""Of ``shepherdctl status``, if something needs attention."""
OLD_TRANSACTION_SECONDS = 600.0
_MISSED = 3
_UNREACHED = "--cause ssh-timed-out --cause ssh-refused --cause ssh-connection-lost"
_TICK_SECONDS = 300
"""The longest time that a tick may take: it is recorded when it ends."""


def attention(found: Mapping[str, Any], loop_minutes: Mapping[str, int], now: datetime) -> Iterator[str]:
    """
    Yield what needs an operator in *found*, of which ``shepherdctl status`` makes its JSON document.

    A loop is late if its last tick ended more than three of its intervals and five minutes ago. A
    provider is no longer in use if all its loops are late, it has no machines and none is being
    created. Unhealthy machines need no operator: Shepherd repairs them.
    """

    def late(tick: Tick) -> bool:
        age = (now - tick.ended_at).total_seconds()
        return age > _MISSED * loop_minutes[tick.loop] * 60 + _TICK_SECONDS

    ticks = [tick for tick in found["ticks"] if loop_minutes.get(tick.loop, 0)]
    used = {each.provider for each in found["machines"]} | {tick.provider for tick in ticks if not late(tick)}
    if quarantined := sum(each.machines for each in found["machines"] if each.state == State.QUARANTINED):
        yield f"{counted(quarantined, 'machine')} in quarantine"
    for one in found["budgets"]:
        yield f"recovery takes {pace(one['per_hour'])}: {one['provider']}, {where(one['location'])}; {_cure(one)}"
    for tick in ticks:
        loop = f"the {tick.loop.capitalize()} of {tick.provider}"
        if tick.provider not in used:
            continue
        if late(tick):
            yield f"{loop} has not run for {span((now - tick.ended_at).total_seconds())}"
        elif tick.outcome != "Succeeded":
            yield f"{loop} {'was cut off' if tick.outcome == 'Expired' else 'failed'}"
        elif drifted := int(tick.counts.get("drifted", 0)):
            machines = counted(drifted, "machine")
            yield f"{tick.provider} and the BMDB disagree about {machines}: see shepherdctl reconcile"
    if found["oldest_transaction"]:
        yield old_transaction(found["oldest_transaction"])


def pace(per_hour: int) -> str:
    """Return in words how many machines may be interrupted in an hour."""
    return f"at most {counted(per_hour, 'step')} an hour" if per_hour else "no step"


def _cure(budget: Mapping[str, Any]) -> str:
    """Return the command by which an operator reboots the machines that wait for the budget."""
    place = f" --location {shlex.quote(budget['location'])}" if budget["location"] else ""
    which = (
        "needs_agent --cause ssh-timed-out --cause ssh-refused --cause ssh-connection-lost"
        if budget["brake"] == Brake.SSH
        else "unhealthy"
    )
    reboot = f"shepherdctl machine reboot --provider {budget['provider']}{place} --state {which}"
    return f"if the machines are down: {reboot} --reason 'they are down'"


def old_transaction(found: Transaction) -> str:
    """Return the description of a transaction that slows the BMDB, and how to end it."""
    lasted = span(found.seconds)
    if found.kind == "prepared":
        name = f"{found.application!r} of {found.owner}"
        return (
            f"the transaction {name} was prepared {lasted} ago, and slows every claim; "
            "an administrator ends it with COMMIT PREPARED or ROLLBACK PREPARED"
        )
    by = f" ({found.application})" if found.application else ""
    return (
        f"a transaction of {found.owner}{by} has been open for {lasted}, and slows every claim; "
        f"an administrator ends it with SELECT pg_terminate_backend({found.pid})"
    )
