"""
The circuit breaker: when so many machines are unhealthy that the fault is probably ours. Pure rules.

The machines of a provider are evaluated as a whole and location by location. Two
limits apply to machines that stopped reporting, and two to those that never reported:

- A share. It is evaluated early, on machines without a heartbeat for half of their
  timeout. They do not all stop at the same moment: when the first are due, most of
  the others must already be counted.
- A number. It is evaluated on machines that are due and on those rebooted in the last
  hour. Otherwise a fleet that fails gradually would be rebooted gradually.

While recovery is suspended, and for an hour afterwards, machines rebooted in the last
six hours have a limit of their own. Otherwise each hour of one outage would begin with
reboots. Machines that report also say whether they lost requests before: if most did,
missing heartbeats prove nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shepherd_core.domain.health import WHOLE_PROVIDER, LocationStats, SshReach, Unhealthy

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    Stats = Mapping[str | None, LocationStats]
    """By location; None: machines without one."""

_UNREACHED = 3
"""SSH has an outage if it does not reach this many machines, and more than it reaches."""
_UNHEALTHY_ALONE = 2
"""From this many unhealthy machines on, at least one other must report."""
_IN_TROUBLE = 2
"""How many times the limit of machines may be rebooted in six hours in which recovery is suspended."""
_FEW = 3
"""In a fleet too small for shares, this many unhealthy machines, and more than half, are too many."""


@dataclass(frozen=True, slots=True)
class Limit:
    """How many machines may be unhealthy in one way; above it recovery is suspended."""

    machines: int
    share: float
    """0 to 1; 1: no share is too large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerLimits:
    """How many machines may be unhealthy at once."""

    unhealthy: Limit
    """Machines that stopped reporting."""
    never_reported: Limit
    losing_share: float = 0.7
    """
    The share of the machines that report whose agents may have lost requests before; 0 to 1, 1: no limit.

    Half of all requests may be lost without it: an agent tries four times.
    """
    share_min_machines: int = 10
    """Shares apply to fleets of at least this many machines: below it, one machine is a tenth."""

    def of(self, kind: Unhealthy) -> Limit:
        """Return the limit for machines that are unhealthy in this way."""
        return self.unhealthy if kind is Unhealthy.STOPPED_REPORTING else self.never_reported


def ssh_outages(ssh: Mapping[str | None, SshReach]) -> dict[str, str]:
    """
    Return the locations where SSH fails for so many machines that the fault is probably not theirs, and why.

    As in ``over_share``; but the provider is evaluated only if no location has an outage.
    """
    found = {
        location: reason for location, each in ssh.items() if location is not None and (reason := _unreachable(each))
    }
    if not found and (reason := _unreachable(sum(ssh.values(), SshReach()))):
        return {WHOLE_PROVIDER: reason}
    return found


def over_share(stats: Stats, limits: BreakerLimits) -> dict[str, str]:
    """
    Return the locations where the share of unhealthy machines is above its limit, and the reason for each.

    If that holds for the provider, ``WHOLE_PROVIDER`` alone is returned.
    """
    provider = total(stats.values())
    if reason := _none_reports(provider, limits) or _most(provider, limits) or _over_share(provider, limits):
        return {WHOLE_PROVIDER: reason}
    return {
        location: reason
        for location, each in stats.items()
        if location is not None and (reason := _over_share(each, limits))
    }


def over_number(stats: Stats, limits: BreakerLimits, suspended: Iterable[str]) -> dict[str, str]:
    """
    Return the locations besides *suspended* where the number of due machines is above its limit, and the reasons.

    Only if there is none, the provider is evaluated, without the *suspended*
    locations: machines that will not be rebooted do not count. If it is above
    its limit, ``WHOLE_PROVIDER`` alone is returned.
    """
    excluded = set(suspended)
    rest = {location: each for location, each in stats.items() if location not in excluded}
    over = {
        location: reason
        for location, each in rest.items()
        if location is not None and (reason := _number(each, limits))
    }
    if not over and (reason := _number(total(rest.values()), limits)):
        return {WHOLE_PROVIDER: reason}
    return over


def total(stats: Iterable[LocationStats]) -> LocationStats:
    """Return the figures of all *stats* together."""
    return sum(stats, LocationStats())


def _unreachable(reach: SshReach) -> str | None:
    if reach.unreached < _UNREACHED or reach.unreached <= reach.reached:
        return None
    return (
        f"SSH does not reach {reach.unreached} machines that should have come back, and reached {reach.reached} "
        "in the last hour: check network, firewall and key"
    )


def _none_reports(provider: LocationStats, limits: BreakerLimits) -> str | None:
    """Return why it is unknown whether heartbeats arrive at all; the share limit needs no minimum here."""
    if provider.reporting:
        return None
    late = {kind: count for kind, count in provider.late.items() if count and limits.of(kind).share < 1}
    if sum(late.values()) < _UNHEALTHY_ALONE:
        return None
    return "no machine reports: " + ", ".join(f"{count} {kind}" for kind, count in sorted(late.items()))


def _most(provider: LocationStats, limits: BreakerLimits) -> str | None:
    """Return why most machines of a fleet too small for shares are unhealthy, or were before their recovery."""
    found = provider.late + provider.uncounted
    unhealthy = sum(count for kind, count in found.items() if limits.of(kind).share < 1)
    fleet = provider.reporting + unhealthy
    if fleet >= limits.share_min_machines or unhealthy < _FEW or unhealthy <= provider.reporting:
        return None
    return f"{unhealthy} of {fleet} machines do not report, the limit is half in a fleet this small"


def _over_share(stats: LocationStats, limits: BreakerLimits) -> str | None:
    return _share(stats, limits) or _losing(stats, limits)


def _losing(stats: LocationStats, limits: BreakerLimits) -> str | None:
    """Return why heartbeats get lost on the way: too large a share of the machines that report lost some before."""
    share = limits.losing_share
    # In a small fleet, chance alone can exceed the share. Where half of all machines lose requests, it hardly ever adds
    # more than two and a half standard deviations.
    chance = stats.heard / 2 + 1.25 * math.sqrt(stats.heard)
    most = max(round(share * stats.heard, 9), chance)
    if stats.heard < limits.share_min_machines or share == 1 or stats.losing <= most:
        return None
    return f"{stats.losing} of {stats.heard} machines that report had lost requests, the limit is {100 * share:g} %"


def _share(stats: LocationStats, limits: BreakerLimits) -> str | None:
    """Return why too large a share is late: of the machines that ever reported, or, if they never did, of all."""
    stopped, never = Unhealthy.STOPPED_REPORTING, Unhealthy.NEVER_REPORTED
    ever = stats.reporting + stats.late[stopped]
    for kind, fleet in ((stopped, ever), (never, ever + stats.late[never])):
        share = limits.of(kind).share
        if fleet >= limits.share_min_machines and stats.late[kind] > round(share * fleet, 9):
            return f"{stats.late[kind]} of {fleet} machines {kind}, the limit is {100 * share:g} %"
    return None


def _number(stats: LocationStats, limits: BreakerLimits) -> str | None:
    """Return why too many machines are due. If none is due, there is nothing to suspend."""
    for kind in Unhealthy:
        due, recovered, limit = stats.due[kind], stats.recovered[kind], limits.of(kind).machines
        if due and due + recovered > limit:
            machines = f"{due} machine{'' if due == 1 else 's'} {kind}"
            recent = f", {recovered} recovered recently" if recovered else ""
            return f"{machines}{recent}, the limit is {limit}"
        rebooted, most = stats.recovered_in_trouble[kind], _IN_TROUBLE * limit
        if due and rebooted >= most:
            return f"{rebooted} machines {kind} and were rebooted in the last 6 hours, the limit is {most}"
    return None
