"""The page of what is wrong with the fleet, and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from shepherd_core.bmdb.machines import overview

from shepherdctl import fleet_status
from shepherdctl.descriptions.conditions import ConditionName, Severity
from shepherdctl.descriptions.cures import CURES, told
from shepherdctl.output.formats import loop_name

if TYPE_CHECKING:
    from shepherd_core.bmdb.connection import Connection

    from shepherdctl.descriptions.conditions import Condition

_MACHINES = {ConditionName.RECOVERY_LIMITED: "unhealthy", ConditionName.QUARANTINED: "quarantined"}
"""The state of the machines that a condition is about."""


def fails(connection: Connection) -> dict[str, Any]:
    """Return the context of the page's template."""
    fleet = fleet_status.read(connection)
    failing = overview.failures(connection)
    return {
        "now": fleet.now,
        "conditions": [
            {"it": one, "urgent": one.name.severity is Severity.URGENT, "query": _query(one)}
            for one in fleet_status.judged(fleet)
        ],
        "causes": [
            {"it": one, "loop": loop_name(one.loop).capitalize(), "text": told(one.kind, one.cause)} for one in failing
        ],
        "cures": {one.kind: CURES[one.kind] for one in failing if one.kind is not None},
    }


def _query(one: Condition) -> str:
    """Return the search for the machines that a condition is about; none: there is no such search."""
    state = _MACHINES.get(one.name)
    wanted = {"state": state, "provider": one.provider, "location": one.location}
    return urlencode({key: value for key, value in wanted.items() if value}) if state else ""
