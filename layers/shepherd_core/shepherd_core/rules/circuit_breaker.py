"""
When so many machines are silent at once that the fault is more likely ours than theirs: a pure rule.

The machines of a provider are judged as a whole and location by location; each
of these is a cell. There are two kinds of silence, each with a budget of its
own, as a number of machines and as a share. Shares are judged early, on
machines that have been quiet for half of the patience with them, because not
all fall silent in the same moment: when the first are due, most of the others
must be seen coming. Numbers are judged on machines that are due, and on those
that were rebooted lately, so that a fleet that falls silent little by little is
not rebooted little by little.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shepherd_core.domain.health import Access, LocationStats, Unhealthy

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

WHOLE_PROVIDER = ""
"""Names the provider as a whole where locations are named. Machines without a location are in no other cell."""

_UNREACHED = 3
"""From so many machines on, and if they are more than SSH reaches, SSH itself is not believed to work."""
_WITNESSES_WANTED = 2
"""From so many quiet machines on, at least one other must report."""


@dataclass(frozen=True, slots=True)
class Limit:
    """How many machines may be silent in one way; more are held back."""

    machines: int
    share: float
    """0 to 1; 1: no share is too large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerLimits:
    """How many machines may be silent at once."""

    silent: Limit = Limit(20, 0.2)
    never: Limit = Limit(20, 0.5)
    smallest_fleet: int = 10
    """A share of fewer machines means nothing."""

    def of(self, kind: Unhealthy) -> Limit:
        """Return the budget for machines that are silent in this way."""
        return self.silent if kind is Unhealthy.SILENT else self.never


def ssh_outages(ssh: Mapping[str | None, Access]) -> dict[str, str]:
    """
    Return in which locations SSH fails for so many machines that the fault is hardly theirs, and why that is believed.

    As in ``by_share``; but the provider is judged only where no location is at fault.
    """
    found = {
        location: reason for location, each in ssh.items() if location is not None and (reason := _unreachable(each))
    }
    if not found and (reason := _unreachable(sum(ssh.values(), Access()))):
        return {WHOLE_PROVIDER: reason}
    return found


def by_share(cells: Mapping[str | None, LocationStats], budgets: BreakerLimits) -> dict[str, str]:
    """
    Return which locations are to be held back for the shares of their machines that are quiet, and why.

    *cells* has a cell for each location, None: of machines without one. If it is
    the provider, then ``WHOLE_PROVIDER`` alone is returned.
    """
    whole = total(cells.values())
    if reason := _no_witness(whole, budgets) or _share(whole, budgets):
        return {WHOLE_PROVIDER: reason}
    return {
        location: reason
        for location, cell in cells.items()
        if location is not None and (reason := _share(cell, budgets))
    }


def by_number(cells: Mapping[str | None, LocationStats], budgets: BreakerLimits, held: Iterable[str]) -> dict[str, str]:
    """
    Return which locations besides *held* are to be held back for the number of their due machines, and why.

    Only if none is, the provider is judged, by what is not held back: what is
    not going to be rebooted spends nothing. If it is the provider, then
    ``WHOLE_PROVIDER`` alone is returned.
    """
    rest = {location: cell for location, cell in cells.items() if location not in set(held)}
    over = {
        location: reason
        for location, cell in rest.items()
        if location is not None and (reason := _number(cell, budgets))
    }
    if not over and (reason := _number(total(rest.values()), budgets)):
        return {WHOLE_PROVIDER: reason}
    return over


def where(location: str) -> str:
    """Return what people call the *location*, or ``WHOLE_PROVIDER``."""
    return f"location {location}" if location != WHOLE_PROVIDER else "the whole provider"


def total(cells: Iterable[LocationStats]) -> LocationStats:
    """Return the figures of all *cells* together."""
    return sum(cells, LocationStats())


def _unreachable(access: Access) -> str | None:
    if access.unreached < _UNREACHED or access.unreached <= access.reached:
        return None
    return (
        f"SSH does not reach {access.unreached} machines that should have come back, and reached {access.reached} "
        "within the hour: look at network, firewall and key"
    )


def _no_witness(whole: LocationStats, budgets: BreakerLimits) -> str | None:
    """Return why nobody can tell whether reports arrive at all, in however small a fleet."""
    if whole.reporting:
        return None
    quiet = {kind: count for kind, count in whole.quiet.items() if count and budgets.of(kind).share < 1}
    if sum(quiet.values()) < _WITNESSES_WANTED:
        return None
    return "no machine reports: " + ", ".join(f"{count} {kind}" for kind, count in sorted(quiet.items()))


def _share(cell: LocationStats, budgets: BreakerLimits) -> str | None:
    """Return why too large a share is quiet: of those that ever reported, or, that never did, of all."""
    ever = cell.reporting + cell.quiet[Unhealthy.SILENT]
    for kind, fleet in ((Unhealthy.SILENT, ever), (Unhealthy.NEVER, ever + cell.quiet[Unhealthy.NEVER])):
        share = budgets.of(kind).share
        if fleet >= budgets.smallest_fleet and cell.quiet[kind] > round(share * fleet, 9):
            return f"{cell.quiet[kind]} of {fleet} machines {kind}, the budget is {100 * share:g} %"
    return None


def _number(cell: LocationStats, budgets: BreakerLimits) -> str | None:
    """Return why too many are due. Where none is, nothing has to be held back."""
    for kind in Unhealthy:
        due, recovered, allowed = cell.due[kind], cell.recovered[kind], budgets.of(kind).machines
        if due and due + recovered > allowed:
            machines = f"{due} machine{'' if due == 1 else 's'} {kind}"
            spent = f", {recovered} recovered lately" if recovered else ""
            return f"{machines}{spent}, the budget is {allowed}"
    return None
