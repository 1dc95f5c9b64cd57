"""What is wrong with a fleet: one list behind ``status``, ``causes``, Prometheus, the console and the alarms. Pure."""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import groupby
from typing import TYPE_CHECKING

from shepherd_core.domain.budget import WHOLE_PROVIDER, Brake, where
from shepherd_core.domain.clock import TOLERANCE_SECONDS
from shepherd_core.domain.errors.kinds import FailureKind
from shepherd_core.domain.provider import Capability
from shepherd_core.domain.states import State
from shepherd_core.settings.functions.specs import FUNCTION_SECONDS
from shepherd_core.settings.providers import find, known
from shepherd_core.telemetry import Metric

from shepherdctl.descriptions.condition import Condition, ConditionName
from shepherdctl.descriptions.cures import CURES, told
from shepherdctl.output.formats import span
from shepherdctl.output.printing import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from shepherd_core.bmdb.listings.provisioning import Waiting
    from shepherd_core.bmdb.machines.overview import FleetCount, Unsteady
    from shepherd_core.bmdb.recovery.budget import ShownBudget
    from shepherd_core.bmdb.wire.server import Transaction
    from shepherd_core.bmdb.work.ticks import Tick
    from shepherd_core.domain.records import BadAgent

OLD_TRANSACTION_SECONDS = 600.0
SILENT_SECONDS = 1_800.0
"""No machine reported for so long, though some should: as the alarm of the agent API says."""
_LONG_WAIT_SECONDS = 1_800
"""As the alarm says."""
_NEAR_TIMEOUT = 0.8
"""Of a loop's timeout, as the alarm says."""
_MISSED = 3
_JUMPED_SECONDS = 60
_TICK_SECONDS = 300
"""The longest time that a tick may take: it is recorded when it ends."""
_WORST = 3
"""Locations that are named."""
_AWAY = {FailureKind.PROVIDER_UNAVAILABLE, FailureKind.PROVIDER_UNUSABLE, FailureKind.LISTING_INVALID}


@dataclass(frozen=True, slots=True)
class FleetStatus:
    """What ``shepherdctl status`` reads, at one moment."""

    now: datetime
    """By the database's clock."""
    clock_ahead_seconds: float
    """By how much that is ahead of the clock here; negative: behind it."""
    checkpoint_ahead_seconds: float
    """By how much the database's last checkpoint lies in its future; negative: in its past."""
    machines: Sequence[FleetCount]
    """By location, and by whether the last heartbeat is younger than ``SILENT_SECONDS``."""
    unsteady: Sequence[Unsteady]
    bad_agents: Sequence[BadAgent]
    budgets: Sequence[ShownBudget]
    waiting: Sequence[Waiting]
    pauses: int
    oldest_transaction: Transaction | None
    limited_user: str | None
    """Who does not see the transactions of others."""
    read_only: bool
    """The database takes no writes."""
    full: bool
    """Its disk has no room; looked for if no loop has recorded a tick."""
    ticks: Sequence[Tick]
    """The last of each loop at each provider."""


def conditions(fleet: FleetStatus, loop_minutes: Mapping[str, int]) -> list[Condition]:
    """
    Return what is wrong, the most urgent first and, of the same name, the one with the most machines, then the longest.

    A loop is late if its last tick ended more than three of its intervals and five minutes ago, or if
    it has left no tick. A provider is no longer in use if all its loops are late, it has no machines and none is
    being created. Unhealthy machines need no operator: Shepherd repairs them.
    """
    found = [
        *_of_database(fleet),
        *_of_budgets(fleet),
        *_of_loops(fleet, loop_minutes),
        *_of_no_loop(fleet, loop_minutes),
        *_of_machines(fleet),
        *_of_unsteady(fleet.unsteady),
        *_of_agents(fleet.bad_agents),
    ]
    names = list(ConditionName)
    return sorted(found, key=lambda each: (names.index(each.name), -(each.machines or 0), each.since or fleet.now))


def only(
    found: Iterable[Condition], provider: str | None, location: str | None, counts: Iterable[FleetCount]
) -> list[Condition]:
    """
    Return the conditions of a provider, or of one location; those of everything concern each.

    Which providers have machines at the location is in the *counts* of the fleet.
    """
    asked = {provider} if provider else {each.provider for each in counts if location in (None, each.location)}
    return [
        each
        for each in found
        if (each.provider is None or each.provider in asked or not (provider or location))
        and (None in (location, each.location) or location == each.location)
    ]


def few(found: Sequence[Condition], most: int) -> tuple[list[Condition], dict[ConditionName, int]]:
    """Return at most so many conditions of each name, so that many of one hide no other, and how many are left."""
    of_name = {name: list(each) for name, each in groupby(found, lambda one: one.name)}
    shown = [one for each in of_name.values() for one in each[:most]]
    return shown, {name: len(each) - most for name, each in of_name.items() if len(each) > most}


def _of_database(fleet: FleetStatus) -> Iterator[Condition]:
    if fleet.read_only:
        yield Condition(
            ConditionName.DATABASE_READ_ONLY,
            "the database takes no writes: it is a standby, or was made read-only",
            "point SHEPHERD_BMDB_HOST at the primary, or end its read-only mode: a full disk is the usual reason",
        )
    if fleet.full:
        yield Condition(
            ConditionName.DATABASE_READ_ONLY,
            "the database takes no writes: its disk is full",
            "give it more room, or remove what fills it (logs, replication slots); then the loops resume by themselves",
        )
    ahead = fleet.clock_ahead_seconds
    if abs(ahead) > TOLERANCE_SECONDS:
        name = ConditionName.CLOCK_DIFFERS
        text = f"the database's clock is {span(abs(ahead))} {'ahead of' if ahead > 0 else 'behind'} the one here"
        yield Condition(name, f"{text}: until they agree, no loop runs and no heartbeat is taken", CURES[name])
    elif (jumped := fleet.checkpoint_ahead_seconds) > _JUMPED_SECONDS:
        yield Condition(
            ConditionName.CLOCK_JUMPED,
            f"the database's clock was ahead by {span(jumped)} or more, and was corrected",
            "run `CHECKPOINT` as its administrator: PostgreSQL makes none until then; find out what moved the clock",
        )
    if fleet.oldest_transaction is not None:
        text, cure = old_transaction(fleet.oldest_transaction)
        since = fleet.now - timedelta(seconds=fleet.oldest_transaction.seconds)
        yield Condition(ConditionName.OLD_TRANSACTION, text, cure, since=since)


def _of_budgets(fleet: FleetStatus) -> Iterator[Condition]:
    paused_at: Counter[tuple[str, str | None]] = Counter()
    for each in fleet.machines:
        if each.paused and each.state in (State.UNHEALTHY, State.NEEDS_AGENT):
            for place in (WHOLE_PROVIDER, each.location):
                paused_at[each.provider, place] += each.paused
    for one in fleet.budgets:
        worst = "" if one.location else _worst(fleet.machines, one.provider)
        paused = paused_at[one.provider, one.location]
        text = f"recovery takes {pace(one.per_hour)}: {one.provider}, {where(one.location)}; {one.reason}{worst}"
        yield Condition(
            ConditionName.RECOVERY_LIMITED,
            f"{text}; {counted(paused, 'machine')} paused" if paused else text,
            f"`shepherdctl pauses` says who paused machines; {_reboot(one)}" if paused else _reboot(one),
            one.provider,
            one.location or None,
            "recoverer",
            one.began_at,
            one.waiting,
        )


def _worst(counts: Sequence[FleetCount], provider: str) -> str:
    """Return at which locations the unhealthy machines of a whole provider are."""
    unhealthy: Counter[str] = Counter()
    for each in counts:
        if each.provider == provider and each.state == State.UNHEALTHY and each.location:
            unhealthy[each.location] += each.machines
    if not unhealthy:
        return ""
    places = ", ".join(f"{count} at {name}" for name, count in unhealthy.most_common(_WORST))
    more = f" and {len(unhealthy) - _WORST} more locations" if len(unhealthy) > _WORST else ""
    return f"; unhealthy: {places}{more}"


def _of_loops(fleet: FleetStatus, loop_minutes: Mapping[str, int]) -> Iterator[Condition]:
    def late(tick: Tick) -> bool:
        age = (fleet.now - tick.ended_at).total_seconds()
        return age > _MISSED * loop_minutes[tick.loop] * 60 + _TICK_SECONDS

    ticks = {(each.provider, each.loop): each for each in fleet.ticks if loop_minutes.get(each.loop, 0)}
    used = {each.provider for each in fleet.machines} | {each.provider for each in ticks.values() if not late(each)}
    away: dict[str, list[Tick]] = defaultdict(list)
    for provider in sorted(used):
        for loop in (each for each, minutes in loop_minutes.items() if minutes and _runs(each, provider)):
            tick = ticks.get((provider, loop))
            here = f"the {loop.capitalize()} of {provider}"
            if tick is None:
                yield _late(f"{here} has not run in the last two weeks", provider, loop)
            elif late(tick):
                lasted = span((fleet.now - tick.ended_at).total_seconds())
                yield _late(f"{here} has not run for {lasted}", provider, loop, tick.ended_at)
            elif tick.kind in _AWAY:
                away[provider].append(tick)
            elif tick.outcome != "Succeeded":
                yield _failed(tick, here)
            else:
                yield from _of_tick(tick, here)
    for provider, failed in away.items():
        loops = ", ".join(each.loop.capitalize() for each in failed)
        newest = max(failed, key=lambda each: each.ended_at)
        yield Condition(
            ConditionName.PROVIDER_AWAY,
            f"{provider} does not answer as it should: {loops} failed with {told(newest.kind, newest.cause)}",
            CURES[str(newest.kind)],
            provider,
            loop=failed[0].loop if len(failed) == 1 else None,
            since=min((each.failing_since for each in failed if each.failing_since), default=None),
        )


def _of_no_loop(fleet: FleetStatus, loop_minutes: Mapping[str, int]) -> Iterator[Condition]:
    """Yield that no loop has run, where nothing tells for which provider one should."""
    loops = [loop for loop, minutes in loop_minutes.items() if minutes]
    if loops and not (fleet.ticks or fleet.machines):
        yield _late("no loop has run in the last two weeks", None, loops[0])


def _runs(loop: str, provider: str) -> bool:
    """Return whether a deployment runs the loop: it leaves the Recoverer out where the provider cannot reboot."""
    return loop != "recoverer" or not known(provider) or Capability.REBOOT in find(provider).always


def _late(text: str, provider: str | None, loop: str, since: datetime | None = None) -> Condition:
    cure = (
        f"`shepherdctl run {loop} --dry-run` says whether it could work; if it could, look at its schedule, its "
        "reserved concurrency and the failure queue"
    )
    return Condition(ConditionName.LOOP_LATE, text, cure, provider, loop=loop, since=since)


def _failed(tick: Tick, here: str) -> Condition:
    name = ConditionName.LOOP_FAILS
    text = f"{here} was cut off"
    cure = f"`shepherdctl run {tick.loop} --dry-run` says what it waits for; if it ends at once, look in its log"
    if tick.outcome != "Expired":
        text = f"{here} failed: {told(tick.kind, tick.cause)}"
        cure = CURES[str(tick.kind)] if tick.kind else "look in its log"
    if tick.kind is FailureKind.DRIFT_LIMIT_EXCEEDED:
        name, cure = ConditionName.DRIFT_LIMIT_EXCEEDED, f"`shepherdctl reconcile` names every machine. {cure}"
    return Condition(name, text, cure, tick.provider, loop=tick.loop, since=tick.failing_since)


def _of_tick(tick: Tick, here: str) -> Iterator[Condition]:
    """Yield what the last tick of a loop counted that needs an operator."""
    condition = Condition(ConditionName.LOOP_SLOW, "", "", tick.provider, loop=tick.loop)
    timeout = FUNCTION_SECONDS[tick.loop]
    if tick.seconds > _NEAR_TIMEOUT * timeout:
        text = f"{here} took {span(tick.seconds)}, and is killed after {timeout} s"
        cure = "look in its log for what became slow: provider, machines or database"
        yield replace(condition, text=text, cure=cure)
    waited = tick.counts.get(Metric.OLDEST_DUE_AGE, 0)
    if waited > _LONG_WAIT_SECONDS:
        text = f"a machine has waited for the {tick.loop.capitalize()} of {tick.provider} for {span(waited)}"
        cure = (
            "see `shepherdctl pauses`; without one, raise the number of machines that an invocation works on at once, "
            "or the reserved concurrency"
        )
        began = tick.ended_at - timedelta(seconds=waited)
        yield replace(condition, name=ConditionName.LONG_WAIT, text=text, cure=cure, since=began)
    since = {name: tick.ended_at - timedelta(seconds=each) for name, each in (tick.lasting or {}).items()}
    for metric, (name, what, cure) in _COUNTED.items():
        if count := int(tick.counts.get(metric, 0)):
            text = f"{counted(count, 'machine')} of {tick.provider} {what}"
            yield replace(condition, name=name, text=text, cure=cure, since=since.get(metric), machines=count)
    if tick.counts.get(Metric.SETTINGS_REFUSED):
        text = f"the settings document was refused: {here} works with the last good one"
        cure = "correct it until `shepherdctl settings check FILE` accepts it, and upload it again"
        first = since.get(Metric.SETTINGS_REFUSED)
        yield replace(condition, name=ConditionName.SETTINGS_REFUSED, text=text, cure=cure, since=first)


_COUNTED = {
    Metric.NO_ACCESS: (
        ConditionName.NO_ACCESS,
        "let no agent start until you act",
        "`shepherdctl causes` says why, with the cure of each",
    ),
    Metric.FOUND_ALIVE: (
        ConditionName.FOUND_ALIVE,
        "did not report and answered over SSH",
        "`shepherdctl machine list --sort state` names them; if it happens again, find what keeps their reports away",
    ),
    Metric.DRIFTED: (
        ConditionName.DRIFTED,
        "differ between provider and BMDB",
        "`shepherdctl reconcile` names them, with the command that repairs each",
    ),
}


def _of_machines(fleet: FleetStatus) -> Iterator[Condition]:
    quarantined: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    watched: Counter[str] = Counter()
    heard: Counter[str] = Counter()
    for each in fleet.machines:
        quarantined[each.provider] += each.machines * (each.state == State.QUARANTINED)
        failed[each.provider] += each.machines * (each.state == State.FAILED)
        if each.state in (State.RUNNING, State.UNHEALTHY):
            watched[each.provider] += each.machines
            heard[each.provider] += each.ages.get("1", 0)
    since = {each.provider: each.quarantined_since for each in fleet.unsteady}
    for provider, machines in sorted(quarantined.items()):
        if machines:
            yield Condition(
                ConditionName.QUARANTINED,
                f"{counted(machines, 'machine')} of {provider} in quarantine",
                f"`shepherdctl machine list --provider {provider} --state quarantined`; when one is repaired, "
                "`shepherdctl machine unquarantine ID --reason TEXT`",
                provider,
                since=since.get(provider),
                machines=machines,
            )
    for provider, machines in sorted(failed.items()):
        if machines:
            yield Condition(
                ConditionName.PLACES_LOST,
                f"{counted(machines, 'place')} of {provider} lost to machines that failed for good there",
                f"`shepherdctl machine list --provider {provider} --state failed` names them, "
                "`shepherdctl machine why ID` says why; `shepherdctl machine release ID` gives one back",
                provider,
                machines=machines,
            )
    for provider, machines in sorted(watched.items()):
        if machines and not heard[provider]:
            yield Condition(
                ConditionName.NO_REPORTS,
                f"no machine of {provider} has reported for half an hour",
                "look at the alarms and the log of the agent API, and at what is between machines and endpoint: name, "
                "certificate, firewall",
                provider,
                machines=machines,
            )


def _of_agents(agents: Iterable[BadAgent]) -> Iterator[Condition]:
    for each in agents:
        cure = (
            "`shepherdctl causes` says how it fails; deploy a version whose agent works, or set agent_source; then "
            f"`shepherdctl machine retry --cause {each.kind} --reason 'new agent'`"
        )
        yield Condition(ConditionName.BAD_AGENT, f"no step is taken: {each}", cure, machines=each.machines)


def _of_unsteady(unsteady: Sequence[Unsteady]) -> Iterator[Condition]:
    for each in unsteady:
        if machines := each.reports_again:
            name = ConditionName.REPORTS_AGAIN
            text = f"{counted(machines, 'machine')} of {each.provider} in quarantine, and the agent reports"
            yield Condition(name, text, CURES[name], each.provider, machines=machines)
        if machines := each.recovered_often:
            name = ConditionName.RECOVERED_OFTEN
            text = f"{counted(machines, 'machine')} of {each.provider} recovered more than five times in a day"
            cure = f"`shepherdctl machine list --sort recoveries` names them. {CURES[name]}"
            yield Condition(name, text, cure, each.provider, machines=machines)


def pace(per_hour: int) -> str:
    """Return in words how many machines may be interrupted in an hour."""
    return f"at most {counted(per_hour, 'step')} an hour" if per_hour else "no step"


def _reboot(budget: ShownBudget) -> str:
    """Return the commands that say what the machines have in common, and reboot those that wait for the budget."""
    place = f"--provider {budget.provider}" + (f" --location {shlex.quote(budget.location)}" if budget.location else "")
    which = (
        "needs_agent --cause ssh-timed-out --cause ssh-refused --cause ssh-connection-lost"
        if budget.brake == Brake.SSH
        else "unhealthy"
    )
    reboot = f"shepherdctl machine reboot {place} --state {which} --reason 'they are down'"
    return f"`shepherdctl causes {place}` says what fails there; if the machines are down: `{reboot}`"


def old_transaction(found: Transaction) -> tuple[str, str]:
    """Return the description of a transaction that slows the BMDB, and how to end it."""
    lasted = span(found.seconds)
    if found.kind == "prepared":
        name = f"{found.application!r} of {found.owner}"
        return (
            f"the transaction {name} was prepared {lasted} ago, and slows every claim",
            "an administrator ends it with COMMIT PREPARED or ROLLBACK PREPARED",
        )
    by = f" ({found.application})" if found.application else ""
    return (
        f"a transaction of {found.owner}{by} has been open for {lasted}, and slows every claim",
        f"an administrator ends it with SELECT pg_terminate_backend({found.pid})",
    )
