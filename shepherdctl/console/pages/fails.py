"""The page of what is wrong with the fleet, and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from shepherd_core.bmdb.machines import lookup, overview
from shepherd_core.domain.states import State

from shepherdctl import fleet_status
from shepherdctl.descriptions.condition import ConditionName, Severity
from shepherdctl.descriptions.conditions import few
from shepherdctl.descriptions.cures import CURES, told
from shepherdctl.output.formats import loop_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shepherd_core.bmdb.connection import Connection

WAIT = (State.UNHEALTHY, State.NEEDS_AGENT)
"""The states of the machines that limited recovery is about."""
_MACHINES = {
    ConditionName.RECOVERY_LIMITED: WAIT,
    ConditionName.NO_REPORTS: (State.UNHEALTHY,),
    ConditionName.QUARANTINED: (State.QUARANTINED,),
    ConditionName.PLACES_LOST: (State.FAILED,),
}
"""The states of the machines that a condition is about."""
_EACH = 20
"""Conditions of the same name that are shown, so that many of one hide no other."""


def fails(connection: Connection) -> dict[str, Any]:
    """Return the context of the page's template."""
    fleet = fleet_status.read(connection)
    failing = overview.failures(connection)
    names = lookup.provider_ids(connection, (each for one in failing if one.of_machines for each in one.examples))
    wrong = fleet_status.judged(fleet)
    shown, more = few(wrong, _EACH)
    return {
        "now": fleet.now,
        "conditions": [
            {
                "it": one,
                "urgent": one.name.severity is Severity.URGENT,
                "query": query(_MACHINES[one.name], one.provider, one.location) if one.name in _MACHINES else "",
            }
            for one in shown
        ],
        "all_conditions": len(wrong),
        "more": list(more.items()),
        "causes": [
            {"it": one, "loop": loop_name(one.loop).capitalize(), "text": told(one.kind, one.cause)} for one in failing
        ],
        "names": names,
        "cures": {one.kind: CURES[one.kind] for one in failing if one.kind is not None},
    }


def query(states: Sequence[State], provider: str | None, location: str | None) -> str:
    """Return the search for machines in *states*, as the query part of an address."""
    wanted = {"state": states, "provider": provider, "location": location}
    return urlencode({key: value for key, value in wanted.items() if value}, doseq=True)
