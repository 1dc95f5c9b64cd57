"""When so many machines are silent that the fault is hardly theirs: the rule, figure by figure."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shepherd_core.domain.health import LocationStats, Unhealthy
from shepherd_core.rules.circuit_breaker import WHOLE_PROVIDER, BreakerLimits, Limit, by_number, by_share, total

SILENT, NEVER = Unhealthy.SILENT, Unhealthy.NEVER
HUGE = Limit(1_000, 1)


def seen(reporting: int = 0, silent: int = 0, never: int = 0) -> LocationStats:
    """Return a cell of which a sample was looked at."""
    return LocationStats(reporting, Counter({SILENT: silent, NEVER: never}))


def due(silent: int = 0, never: int = 0, *, recovered_silent: int = 0, recovered_never: int = 0) -> LocationStats:
    """Return a cell of which the due machines were counted."""
    return LocationStats(
        due=Counter({SILENT: silent, NEVER: never}),
        recovered=Counter({SILENT: recovered_silent, NEVER: recovered_never}),
    )


@pytest.mark.parametrize(
    ("cell", "held"),
    [
        # Of 10 machines that ever reported, a fifth may be silent.
        (seen(10), False),
        (seen(8, silent=2), False),
        (seen(7, silent=3), True),
        (seen(1, silent=9), True),
        # Of fewer, a share means nothing.
        (seen(6, silent=3), False),
        (seen(1, silent=8), False),
        # Of all machines with an agent, half may never have reported.
        (seen(5, never=5), False),
        (seen(4, never=6), True),
        (seen(4, never=5), False),
        (seen(500, never=500), False),
        (seen(499, never=501), True),
        # Each has its own budget: what never reported says nothing about those that did, and may be as many besides.
        (seen(40, silent=10, never=50), False),
        (seen(40, silent=11, never=49), True),
        (seen(41, silent=8, never=50), True),
        # Too few that ever reported for a share of them, but enough for one of all.
        (seen(5, silent=4, never=9), False),
        (seen(5, silent=4, never=10), True),
        (seen(), False),
    ],
)
def test_a_share_that_is_too_large_holds_recovery_back(cell: LocationStats, held: bool) -> None:
    """One in five at once is no accident; while agents are rolled out, many have not reported yet."""
    assert bool(by_share({None: cell}, BreakerLimits())) is held
    rest = seen(100_000)  # that the provider as a whole is fine must not hide a location
    assert bool(by_share({"ams": cell, None: rest}, BreakerLimits())) is held


@pytest.mark.parametrize(
    ("cell", "held"),
    [
        # One machine alone may well be broken.
        (seen(silent=1), False),
        (seen(never=1), False),
        (seen(silent=2), True),
        (seen(never=2), True),
        (seen(silent=1, never=1), True),
        (seen(silent=9), True),
        # A single one that reports vouches for the endpoint.
        (seen(1, silent=8), False),
        (seen(1, silent=2, never=2), False),
    ],
)
def test_where_no_machine_reports_nobody_is_recovered(cell: LocationStats, held: bool) -> None:
    """The smallest fleets have no shares, and their endpoint fails as others do."""
    reasons = by_share({None: cell}, BreakerLimits())
    assert bool(reasons) is held
    assert set(reasons) <= {WHOLE_PROVIDER}
    assert not held or "no machine reports" in reasons[WHOLE_PROVIDER]


def test_a_witness_may_be_anywhere_at_the_provider() -> None:
    """A small location that lost its power is one location, and not the endpoint."""
    assert by_share({"ams": seen(silent=5), "fra": seen(1)}, BreakerLimits()) == {}


@pytest.mark.parametrize(("silent_share", "never_share"), list(product([0.2, 1], repeat=2)))
def test_a_share_of_1_switches_the_rule_off(silent_share: float, never_share: float) -> None:
    """Machines that are really down, all of them, can be recovered when an operator says so."""
    budgets = BreakerLimits(silent=Limit(1_000, silent_share), never=Limit(1_000, never_share))
    assert bool(by_share({None: seen(silent=50)}, budgets)) is (silent_share < 1)
    assert bool(by_share({None: seen(never=50)}, budgets)) is (never_share < 1)


def test_a_share_counts_exactly() -> None:
    """29 of 100 are not more than 29 %, whatever floating point makes of it."""
    budgets = BreakerLimits(silent=Limit(20, 0.29))
    assert by_share({None: seen(71, silent=29)}, budgets) == {}
    assert by_share({None: seen(70, silent=30)}, budgets) != {}


def test_the_smallest_fleet_is_a_setting() -> None:
    """Operators of five machines may want shares, those of a thousand racks none of a rack."""
    assert by_share({None: seen(2, silent=1)}, BreakerLimits(smallest_fleet=3)) != {}
    assert by_share({None: seen(20, silent=30)}, BreakerLimits(smallest_fleet=51)) == {}


def test_a_dark_location_holds_back_itself_alone() -> None:
    """The machines of the others are recovered as ever."""
    cells = {"ams": seen(silent=15), "fra": seen(98, silent=2), None: seen(20)}
    reasons = by_share(cells, BreakerLimits())
    assert reasons == {"ams": "15 of 15 machines fell silent, the budget is 20 %"}


def test_a_provider_that_is_held_back_is_held_back_as_one() -> None:
    """One line tells it, and not one for each location besides."""
    cells = {"ams": seen(silent=50), "fra": seen(10, silent=50), None: seen(20)}
    assert by_share(cells, BreakerLimits()) == {WHOLE_PROVIDER: "100 of 130 machines fell silent, the budget is 20 %"}
    spread: dict[str | None, LocationStats] = {f"rack {number}": due(silent=3) for number in range(7)}
    assert by_number(spread, BreakerLimits(), []) == {WHOLE_PROVIDER: "21 machines fell silent, the budget is 20"}


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        (due(), None),
        (due(silent=20), None),
        (due(silent=21), "21 machines fell silent, the budget is 20"),
        (due(never=20), None),
        (due(never=21), "21 machines never reported, the budget is 20"),
        (due(silent=20, never=20), None),
        # What was recovered lately is spent.
        (due(silent=5, recovered_silent=15), None),
        (
            due(silent=6, recovered_silent=15),
            "6 machines fell silent, 15 recovered lately, the budget is 20",
        ),
        (
            due(silent=1, recovered_silent=20),
            "1 machine fell silent, 20 recovered lately, the budget is 20",
        ),
        (due(never=20, recovered_silent=15), None),
        (
            due(never=20, recovered_never=1),
            "20 machines never reported, 1 recovered lately, the budget is 20",
        ),
        # Where none is due there is nothing to hold back.
        (due(recovered_silent=50, recovered_never=50), None),
    ],
)
def test_a_number_that_is_too_large_holds_recovery_back(cell: LocationStats, reason: str | None) -> None:
    """Also a fleet that falls silent little by little is not rebooted little by little."""
    assert by_number({"ams": cell}, BreakerLimits(), []).get("ams") == reason
    assert by_number({None: cell}, BreakerLimits(), []).get(WHOLE_PROVIDER) == reason


def test_what_is_held_back_spends_nothing() -> None:
    """A hundred machines without power in one rack must not keep others from being recovered."""
    cells = {"ams": due(silent=100, recovered_silent=20), "fra": due(silent=5), None: due(silent=15)}
    assert set(by_number(cells, BreakerLimits(), [])) == {"ams"}
    assert by_number(cells, BreakerLimits(), ["ams"]) == {}
    cells[None] = due(silent=16)
    assert set(by_number(cells, BreakerLimits(), ["ams"])) == {WHOLE_PROVIDER}


def test_machines_without_a_location_are_judged_with_the_provider_alone() -> None:
    """The empty name stands for the provider, and must not be taken for a place."""
    assert by_share({None: seen(silent=15), "ams": seen(100)}, BreakerLimits()) == {}
    cells = {None: due(silent=20), "ams": due(silent=1)}
    assert set(by_number(cells, BreakerLimits(), [])) == {WHOLE_PROVIDER}
    assert set(by_number(cells, BreakerLimits(), ["ams"])) == set()


def test_the_figures_of_cells_add_up() -> None:
    """The provider is the sum of its locations."""
    one, two = seen(3, silent=2, never=1), due(silent=4, never=5, recovered_silent=6)
    both = total([one, two])
    assert (both.reporting, both.quiet[SILENT], both.due[NEVER], both.recovered[SILENT]) == (3, 2, 5, 6)
    assert one.due[SILENT] == 0, "the parts stay as they are"


cells = st.builds(seen, *[st.integers(0, 300)] * 3)
shares = st.floats(0, 1)


@given(cells, shares, shares, st.integers(1, 50))
def test_more_that_report_never_hold_back_and_fewer_never_let_go(
    cell: LocationStats, silent: float, never: float, smallest: int
) -> None:
    """The verdict goes one way only, or a machine that comes back could stop the recovery of others."""
    budgets = BreakerLimits(silent=Limit(20, silent), never=Limit(20, never), smallest_fleet=smallest)
    held = bool(by_share({None: cell}, budgets))
    ever = cell.reporting + cell.quiet[SILENT]
    if not held and ever >= smallest:
        back = LocationStats(cell.reporting + 1, cell.quiet)
        assert not by_share({None: back}, budgets)
    if held and cell.reporting > 1:
        fewer = LocationStats(cell.reporting - 1, Counter({SILENT: cell.quiet[SILENT] + 1, NEVER: cell.quiet[NEVER]}))
        assert by_share({None: fewer}, budgets)
