"""
The budget of recovery: how many machines may be interrupted in an hour. Pure rules.

The more of a fleet is dead, the more likely the fault is not in its machines, and the less an interruption helps: the
budget gets smaller. A step must be within the budget of its location and within that of its provider.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shepherd_core.domain.budget import WHOLE_PROVIDER, Brake, Budget, FleetFigures

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

_SLOW = 1
"""Steps in an hour where too much of a fleet is dead: enough to find out whether a step helps."""
_SHARE_FROM = 10
"""Shares hold for fleets of at least this many machines: below it, one machine is a tenth."""
_FEW = 3
"""In a smaller fleet this many dead machines, and more than half, are too many."""
_SILENT = 2
"""From this many dead machines on, at least one other must report: else it is unknown whether heartbeats arrive."""
_SSH_FAILS = 3
"""SSH fails if it does not reach this many machines that should have come back, and more than it reaches."""
_LOSING_SHARE = 0.7
"""Of the machines that report: half of all requests may be lost without it, since an agent tries four times."""


@dataclass(frozen=True, slots=True)
class BudgetLimits:
    """The bounds of the budget, for each location and for the provider."""

    per_hour: int
    """How many machines may be interrupted in an hour; in six hours, at most twice as many."""
    dead_share: float
    """0 to 1; above this share of a fleet, one machine may be interrupted in an hour. 1: no share is too large."""


def budgets(fleet: Mapping[str, FleetFigures], limits: BudgetLimits, *, was_silent: bool = False) -> dict[str, Budget]:
    """
    Return the budget of each location, and that of the provider, ``WHOLE_PROVIDER``.

    *was_silent*: two minutes ago no machine of the provider reported. Within that time, all agents that live report.
    """
    found = {location: _budget(each, limits) for location, each in fleet.items() if location != WHOLE_PROVIDER}
    provider = sum(fleet.values(), FleetFigures())
    if any(each.brake is Brake.SSH for each in found.values()):
        provider = replace(provider, unreached=0)  # it is the location's
    whole = _budget(provider, limits)
    if provider.reporting and was_silent:
        whole = Budget(0, Brake.SILENT, "no machine reported two minutes ago", lasts=True)
    elif not provider.reporting and provider.dead >= _SILENT:
        whole = Budget(0, Brake.SILENT, f"no machine reports, and {provider.dead} are dead")
    return {**found, WHOLE_PROVIDER: whole}


def shown(found: Mapping[str, Budget], fleet: Mapping[str, FleetFigures]) -> dict[str, Budget]:
    """
    Return those of ``budgets`` that operators are shown: smaller than usual, where something may need more.

    Machines that were interrupted count for six hours. When all of them report, nothing there waits for a step. Of a
    provider with one location, the smaller budget is shown: both would say the same.
    """
    provider = sum(fleet.values(), FleetFigures())
    figures = {**fleet, WHOLE_PROVIDER: provider}
    well = {location for location, each in figures.items() if each.reporting == each.fleet}
    over = (Brake.SHARE, Brake.NUMBER)
    small = [
        each for each in sorted(found.items()) if each[1].brake and not (each[0] in well and each[1].brake in over)
    ]
    return dict(sorted(small, key=lambda each: each[1].per_hour)[:1] if len(fleet) == 1 else small)


def permitted(
    asked: Mapping[UUID, str],
    budgets: Mapping[str, Budget],
    steps: Mapping[str, tuple[int, int]],
    limits: BudgetLimits,
) -> set[UUID]:
    """
    Return the machines of *asked*, with their locations, that may be interrupted now; the first come first.

    *steps*: by location, how many were interrupted in the last hour and in the last six. ``WHOLE_PROVIDER`` has the
    machines without a location. A location without a budget has none left.
    """
    hour, six_hours = (Counter({at: each[of] for at, each in steps.items()}) for of in (0, 1))
    hour[WHOLE_PROVIDER], six_hours[WHOLE_PROVIDER] = hour.total(), six_hours.total()
    found: set[UUID] = set()
    for machine_id, location in asked.items():
        scopes = {location, WHOLE_PROVIDER}
        if all(
            at in budgets and hour[at] < budgets[at].per_hour and six_hours[at] < 2 * limits.per_hour for at in scopes
        ):
            found.add(machine_id)
            hour.update(scopes)
            six_hours.update(scopes)
    return found


def _budget(figures: FleetFigures, limits: BudgetLimits) -> Budget:
    heard, losing, dead, fleet = figures.heard, figures.losing, figures.dead, figures.fleet
    # In a small fleet, chance alone can exceed the share. Where half of all machines lose requests, it hardly ever adds
    # more than two and a half standard deviations.
    if heard >= _SHARE_FROM and losing > max(round(_LOSING_SHARE * heard, 9), heard / 2 + 1.25 * math.sqrt(heard)):
        return Budget(0, Brake.LOSING, f"{losing} of {heard} machines that report had lost requests")
    slow, share = min(_SLOW, limits.per_hour), limits.dead_share
    few = dead < _FEW or 2 * dead <= fleet if fleet < _SHARE_FROM else dead <= round(share * fleet, 9)
    if share < 1 and not few:
        return Budget(
            slow, Brake.SHARE, f"{dead} of {fleet} machines are dead, or were interrupted in the last six hours"
        )
    if figures.unreached >= _SSH_FAILS and figures.unreached > figures.reached:
        reason = (
            f"SSH does not reach {figures.unreached} machines that should have come back, and reached "
            f"{figures.reached} in the last hour: check network, firewall and key"
        )
        return Budget(slow, Brake.SSH, reason)
    hour, six_hours = figures.steps, figures.steps_six_hours
    if hour >= limits.per_hour or six_hours >= 2 * limits.per_hour:
        reason = f"{hour} machines were interrupted in the last hour and {six_hours} in the last six"
        return Budget(limits.per_hour, Brake.NUMBER, f"{reason}, the limits are {limits.per_hour} and twice that")
    return Budget(limits.per_hour)
