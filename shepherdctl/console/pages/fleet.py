"""The page of the whole fleet, in four statements."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from shepherd_core.bmdb.machines import overview
from shepherd_core.bmdb.work.ticks import HALF_HOURS, Tick, TickTotals, last_ticks, tick_totals
from shepherd_core.domain.budget import where
from shepherd_core.domain.states import State

from shepherdctl.console.pages import charts, fails
from shepherdctl.descriptions.commands import OF_FLEET
from shepherdctl.descriptions.conditions import pace
from shepherdctl.descriptions.cures import told
from shepherdctl.options import SYSTEM_OWNERS
from shepherdctl.output.formats import did, scope_in_words, span
from shepherdctl.output.printing import columns, counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shepherd_core.bmdb.connection import Connection
    from shepherd_core.bmdb.machines.overview import FleetCount, Notice

STATES = (
    State.RUNNING,
    State.INSTALLED,
    State.STARTING,
    State.CREATING,
    State.NEEDS_AGENT,
    State.UNHEALTHY,
    State.FAILED,
    State.QUARANTINED,
)
"""In the order of the bar: healthy ones first."""
AGES = (60, 120, 300, 600, 1800, 3600, 86_400)
_AGE_NAMES = (
    "under 1 min",
    "1 to 2 min",
    "2 to 5 min",
    "5 to 10 min",
    "10 to 30 min",
    "30 to 60 min",
    "1 to 24 h",
    "older",
)
TICKS = 30
_BAD = (State.QUARANTINED, State.FAILED, State.UNHEALTHY)
_PLACES = 30
"""Locations that are shown: a page of a fleet with thousands must stay readable."""


def fleet(connection: Connection) -> dict[str, Any]:
    """Return the context of the page's template."""
    counts = overview.fleet_counts(connection, AGES)
    notices = overview.fleet_notices(connection)
    ticks = last_ticks(connection, TICKS)
    totals = tick_totals(connection)
    now = notices.pop(0).since
    places = _places(counts)
    wrong = [each for each in places if any(each["worst"])]
    states = [state for state in reversed(STATES) if any(each["states"][state] for each in wrong[:_PLACES])]
    by_state: dict[str, int] = {state: sum(one.machines for one in counts if one.state == state) for state in STATES}
    return {
        "now": now,
        "machines": sum(by_state.values()),
        "by_state": by_state,
        "bar": charts.bar(by_state),
        "bad": _BAD,
        "wrong": sum(by_state[state] for state in _BAD),
        "places": wrong[:_PLACES],
        "more_places": len(wrong[_PLACES:]),
        "healthy_places": len(places) - len(wrong),
        "place_states": states,
        "place_heads": (
            "Location",
            *(f"{state.replace('_', ' ').capitalize()}#" for state in states),
            "Machines#",
            "Provider",
        ),
        "notices": sorted((_notice(one) for one in notices), key=lambda one: (not one["severe"], one["since"])),
        "notices_limit": overview.NOTICES - 1,
        "heartbeats": _heartbeats(counts),
        "loops": _loops(ticks),
        "day": _day(totals),
        "commands": OF_FLEET,
    }


def _places(counts: Sequence[FleetCount]) -> list[dict[str, Any]]:
    """Return the number of machines in each state, by provider and location, the worst first."""
    found: defaultdict[tuple[str, str], dict[str, int]] = defaultdict(lambda: dict.fromkeys(STATES, 0))
    for one in counts:
        found[one.provider, one.location or ""][one.state] += one.machines
    rows: list[dict[str, Any]] = [
        {
            "provider": provider,
            "location": location,
            "states": states,
            "machines": sum(states.values()),
            "worst": (sum(states[state] for state in _BAD), states[State.NEEDS_AGENT]),
        }
        for (provider, location), states in sorted(found.items())
    ]
    return sorted(rows, key=lambda each: each["worst"], reverse=True)


def _heartbeats(counts: Sequence[FleetCount]) -> list[dict[str, Any]]:
    """Return the number of machines by age of the last heartbeat, youngest first, and the share of each bar."""
    by_class = [0] * len(_AGE_NAMES)
    for one in counts:
        for age_class, machines in one.ages.items():
            by_class[len(AGES) - int(age_class)] += machines
    most = max(by_class) or 1
    return [
        {"name": name, "machines": machines, "width": round(charts.WIDTH * machines / most, 2)}
        for name, machines in zip(_AGE_NAMES, by_class, strict=True)
    ]


def _notice(one: Notice) -> dict[str, Any]:
    """Return the description of a budget, limit, quarantine or pause, in words."""
    place, severe, reason, query = one.provider, False, one.reason, ""
    match one.kind:
        case "budget":
            what, severe = f"Recovery takes {pace(one.machines or 0)}", True
            place = f"{one.provider}, {where(one.location or '')}"
            query = fails.query(fails.WAIT, one.provider, one.location)
        case "limit":
            what = f"{counted(one.machines or 0, 'place')} unused"
            reason = f"the limit of {one.reason} machines is reached"
        case "quarantine":
            what, severe = f"{counted(one.machines or 0, 'machine')} quarantined", True
            query = fails.query((State.QUARANTINED,), None, None)
        case _:
            scope = scope_in_words(None, one.process, one.provider, one.location, one.with_labels)
            machines = None if one.machines is None else counted(one.machines, "machine")
            set_aside = one.owner in SYSTEM_OWNERS
            what = f"{machines or scope[:1].upper() + scope[1:]} {'set aside' if set_aside else 'paused'}"
            query = urlencode({"paused": "yes"} | ({"provider": one.provider} if one.provider else {}))
    return {**columns(one), "what": what, "place": place, "severe": severe, "why": reason, "query": query}


def _loops(ticks: Sequence[Tick]) -> list[dict[str, Any]]:
    """Return the last tick of each loop with the durations of those before it, oldest first."""
    series: defaultdict[tuple[str, str], list[Tick]] = defaultdict(list)
    for one in ticks:
        series[one.provider, one.loop].append(one)
    return [
        {
            "loop": loop.capitalize(),
            "provider": provider,
            "last": found[0],
            "took": None if found[0].outcome == "Expired" else span(found[0].seconds),
            "did": told(found[0].kind, found[0].cause) or ", ".join(did(found[0].counts)) or "nothing to do",
            "backlog": int(found[0].counts.get("backlog", 0)),
            "series": charts.columns(loop, "tick", [one.seconds for one in reversed(found)]),
            "outcomes": [one.outcome for one in reversed(found)],
            "failed": sum(one.outcome != "Succeeded" for one in found),
        }
        for (provider, loop), found in series.items()
    ]


def _day(totals: Sequence[TickTotals]) -> list[charts.Columns]:
    """Return the counts of events in each half hour of the last day."""

    def each(loop: str, count: str) -> list[float]:
        values = [0.0] * HALF_HOURS
        for one in totals:
            if one.loop == loop and 0 <= one.half_hour < HALF_HOURS:
                values[one.half_hour] += getattr(one, count)
        return values

    return [
        charts.columns("machines created", "good", each("provisioner", "created")),
        charts.columns("agents started", "good", each("initializer", "finished")),
        charts.columns("agent starts failed", "bad", each("initializer", "failed")),
        charts.columns("recovery steps taken", "step", each("recoverer", "finished")),
        charts.columns("recovery steps failed", "bad", each("recoverer", "failed")),
    ]
