"""The circuit breaker: when so many machines are unhealthy that recovery is suspended, figure by figure."""

from collections import Counter
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shepherd_core.domain.health import WHOLE_PROVIDER, LocationStats, Unhealthy
from shepherd_core.rules.circuit_breaker import BreakerLimits, Limit, over_number, over_share, total

from tests.support import defaults

STOPPED, NEVER = Unhealthy.STOPPED_REPORTING, Unhealthy.NEVER_REPORTED


def seen(reporting: int = 0, stopped: int = 0, never: int = 0) -> LocationStats:
    """Return the figures of a sample."""
    return LocationStats(reporting, Counter({STOPPED: stopped, NEVER: never}))


def due(stopped: int = 0, never: int = 0, *, recovered_stopped: int = 0, recovered_never: int = 0) -> LocationStats:
    """Return the figures of due machines."""
    return LocationStats(
        due=Counter({STOPPED: stopped, NEVER: never}),
        recovered=Counter({STOPPED: recovered_stopped, NEVER: recovered_never}),
    )


@pytest.mark.parametrize(
    ("cell", "suspended"),
    [
        # Of 10 machines that ever reported, a fifth may be unhealthy.
        (seen(10), False),
        (seen(8, stopped=2), False),
        (seen(7, stopped=3), True),
        (seen(1, stopped=9), True),
        # Shares do not apply to fewer machines.
        (seen(6, stopped=3), False),
        # Of all machines with an agent, half may never have reported.
        (seen(5, never=5), False),
        (seen(4, never=6), True),
        (seen(500, never=500), False),
        (seen(499, never=501), True),
        # Each has its own limit: machines that never reported say nothing about those that did, and are counted apart.
        (seen(40, stopped=10, never=50), False),
        (seen(40, stopped=11, never=49), True),
        (seen(41, stopped=8, never=50), True),
        # Too few that ever reported for a share of them, but enough for one of all.
        (seen(5, stopped=4, never=9), False),
        (seen(5, stopped=4, never=10), True),
        (seen(), False),
    ],
)
def test_too_large_a_share_suspends_recovery(cell: LocationStats, suspended: bool) -> None:
    """One in five at once is no accident; while agents are rolled out, many have not reported yet."""
    assert bool(over_share({None: cell}, defaults.LIMITS)) is suspended
    rest = seen(100_000)  # that the provider as a whole is fine must not hide a location
    assert bool(over_share({"ams": cell, None: rest}, defaults.LIMITS)) is suspended


@pytest.mark.parametrize(
    ("cell", "suspended"),
    [
        # One machine alone may well be broken.
        (seen(stopped=1), False),
        (seen(never=1), False),
        (seen(stopped=2), True),
        (seen(never=2), True),
        (seen(stopped=1, never=1), True),
        (seen(stopped=9), True),
        # A single machine that reports proves that the endpoint works.
        (seen(1, stopped=2), False),
    ],
)
def test_recovery_is_suspended_where_no_machine_reports(cell: LocationStats, suspended: bool) -> None:
    """The smallest fleets have no shares, and their endpoint may fail as any other."""
    reasons = over_share({None: cell}, defaults.LIMITS)
    assert bool(reasons) is suspended
    assert set(reasons) <= {WHOLE_PROVIDER}
    assert not suspended or "no machine reports" in reasons[WHOLE_PROVIDER]


def test_the_machine_that_reports_may_be_in_any_location() -> None:
    """A small location that lost its power is one location, and not the endpoint."""
    assert over_share({"ams": seen(stopped=4), "fra": seen(4)}, defaults.LIMITS) == {}


@pytest.mark.parametrize(
    ("fleet", "suspended"),
    [
        # More than half of a fleet without shares.
        (seen(5, stopped=4), False),
        (seen(4, stopped=5), True),
        (seen(1, stopped=8), True),
        (seen(4, stopped=4), False),
        (seen(2, stopped=3), True),
        # Both kinds together.
        (seen(4, never=5), True),
        (seen(4, stopped=3, never=2), True),
        (seen(1, stopped=2, never=2), True),
        # Two may well be broken, one after the other.
        (seen(1, stopped=2), False),
        (seen(1, stopped=1, never=1), False),
    ],
)
def test_most_of_a_small_fleet_suspends_recovery(fleet: LocationStats, suspended: bool) -> None:
    """Shares mean nothing there, but so many at once have something in common."""
    assert over_share({None: fleet}, defaults.LIMITS).keys() == ({WHOLE_PROVIDER} if suspended else set())


def test_a_small_location_is_no_small_fleet() -> None:
    """It may have lost its power, or its switch; that its machines are unhealthy says nothing about the endpoint."""
    assert over_share({"ams": seen(1, stopped=8), None: seen(100)}, defaults.LIMITS) == {}


@pytest.mark.parametrize(("stopped_share", "never_share"), list(product([0.2, 1], repeat=2)))
def test_a_share_of_1_switches_the_limit_off(stopped_share: float, never_share: float) -> None:
    """Machines that are really down, all of them, can be recovered when an operator says so."""
    limits = replace(defaults.LIMITS, unhealthy=Limit(1_000, stopped_share), never_reported=Limit(1_000, never_share))
    for reporting, others in ((0, 50), (1, 5)):  # in a small fleet, too
        assert bool(over_share({None: seen(reporting, stopped=others)}, limits)) is (stopped_share < 1)
        assert bool(over_share({None: seen(reporting, never=others)}, limits)) is (never_share < 1)


def test_a_share_counts_exactly() -> None:
    """29 of 100 are not more than 29 %, whatever floating point makes of it."""
    limits = replace(defaults.LIMITS, unhealthy=Limit(20, 0.29))
    assert over_share({None: seen(71, stopped=29)}, limits) == {}
    assert over_share({None: seen(70, stopped=30)}, limits) != {}


def test_the_smallest_fleet_for_shares_is_a_setting() -> None:
    """Operators of five machines may want shares, those of a thousand racks none of a rack."""
    assert over_share({None: seen(2, stopped=1)}, replace(defaults.LIMITS, share_min_machines=3)) != {}
    assert over_share({None: seen(25, stopped=25)}, replace(defaults.LIMITS, share_min_machines=51)) == {}


def test_an_outage_of_a_location_suspends_that_location_alone() -> None:
    """The machines of the others are recovered as ever."""
    cells = {"ams": seen(stopped=15), "fra": seen(98, stopped=2), None: seen(20)}
    reasons = over_share(cells, defaults.LIMITS)
    assert reasons == {"ams": "15 of 15 machines stopped reporting, the limit is 20 %"}


def test_a_suspended_provider_is_reported_as_one() -> None:
    """One line, not one more for each location."""
    cells = {"ams": seen(stopped=50), "fra": seen(10, stopped=50), None: seen(20)}
    assert over_share(cells, defaults.LIMITS) == {
        WHOLE_PROVIDER: "100 of 130 machines stopped reporting, the limit is 20 %"
    }
    spread: dict[str | None, LocationStats] = {f"rack {number}": due(stopped=3) for number in range(7)}
    assert over_number(spread, defaults.LIMITS, []) == {
        WHOLE_PROVIDER: "21 machines stopped reporting, the limit is 20"
    }


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        (due(), None),
        (due(stopped=20), None),
        (due(stopped=21), "21 machines stopped reporting, the limit is 20"),
        (due(never=20), None),
        (due(never=21), "21 machines never reported, the limit is 20"),
        (due(stopped=20, never=20), None),
        # Machines recovered recently count.
        (due(stopped=5, recovered_stopped=15), None),
        (
            due(stopped=6, recovered_stopped=15),
            "6 machines stopped reporting, 15 recovered recently, the limit is 20",
        ),
        (
            due(stopped=1, recovered_stopped=20),
            "1 machine stopped reporting, 20 recovered recently, the limit is 20",
        ),
        (due(never=20, recovered_stopped=15), None),
        (
            due(never=20, recovered_never=1),
            "20 machines never reported, 1 recovered recently, the limit is 20",
        ),
        # Where none is due there is nothing to suspend.
        (due(recovered_stopped=50, recovered_never=50), None),
    ],
)
def test_too_large_a_number_suspends_recovery(cell: LocationStats, reason: str | None) -> None:
    """A fleet that fails little by little is not rebooted little by little."""
    assert over_number({"ams": cell}, defaults.LIMITS, []).get("ams") == reason
    assert over_number({None: cell}, defaults.LIMITS, []).get(WHOLE_PROVIDER) == reason


@pytest.mark.parametrize(
    ("due_now", "rebooted", "suspended"), [(1, 39, False), (1, 40, True), (20, 39, False), (0, 500, False)]
)
def test_twice_the_number_may_be_rebooted_in_the_same_trouble(due_now: int, rebooted: int, suspended: bool) -> None:
    """What is due then does not count besides: it grows while recovery is suspended, which would never end."""
    cell = due(stopped=due_now)
    cell.recovered_in_trouble[STOPPED] = rebooted
    reason = f"{rebooted} machines stopped reporting and were rebooted in the last 6 hours, the limit is 40"
    assert over_number({"ams": cell}, defaults.LIMITS, []) == ({"ams": reason} if suspended else {})
    other = due(never=1)
    other.recovered_in_trouble[STOPPED] = rebooted
    assert over_number({"ams": other}, defaults.LIMITS, []) == {}


@pytest.mark.parametrize(
    ("reporting", "stopped", "uncounted", "suspended"),
    [(5, 2, 2, False), (4, 2, 3, True), (4, 0, 5, True), (5, 1, 3, False), (5, 1, 5, False)],
)
def test_most_of_a_small_fleet_includes_what_is_being_recovered(
    reporting: int, stopped: int, uncounted: int, suspended: bool
) -> None:
    """It would be rebooted piece by piece otherwise, since rebooted machines have no agent and leave the sample."""
    cell = seen(reporting, stopped)
    cell.uncounted[STOPPED] = uncounted
    assert bool(over_share({None: cell}, defaults.LIMITS)) is suspended


def test_suspended_locations_do_not_count() -> None:
    """A hundred machines without power in one rack must not keep others from being recovered."""
    cells = {"ams": due(stopped=100, recovered_stopped=20), "fra": due(stopped=5), None: due(stopped=15)}
    assert set(over_number(cells, defaults.LIMITS, [])) == {"ams"}
    assert over_number(cells, defaults.LIMITS, ["ams"]) == {}
    cells[None] = due(stopped=16)
    assert set(over_number(cells, defaults.LIMITS, ["ams"])) == {WHOLE_PROVIDER}


@pytest.mark.parametrize(
    ("heard", "losing", "suspended"),
    [
        (100, 70, False),
        (100, 71, True),
        (1000, 700, False),
        (1000, 701, True),
        # Chance makes more of small fleets.
        (20, 15, False),
        (20, 16, True),
        (10, 8, False),
        (10, 9, True),
        (9, 9, False),
        (0, 0, False),
    ],
)
def test_too_many_machines_that_lose_requests_suspend_recovery(heard: int, losing: int, suspended: bool) -> None:
    """Then a missing heartbeat proves nothing; in a small fleet, it may be chance."""
    for location in (None, "ams"):
        cells = {location: LocationStats(heard, heard=heard, losing=losing), "fra": LocationStats(2000, heard=2000)}
        reasons = over_share(cells, defaults.LIMITS)
        assert set(reasons) == ({"ams"} if suspended and location else set())
    reasons = over_share({None: LocationStats(heard, heard=heard, losing=losing)}, defaults.LIMITS)
    wanted = f"{losing} of {heard} machines that report had lost requests, the limit is 70 %"
    assert reasons == ({WHOLE_PROVIDER: wanted} if suspended else {})
    assert not over_share({None: LocationStats(100, heard=100, losing=100)}, replace(defaults.LIMITS, losing_share=1))


def test_machines_without_a_location_count_for_the_provider_alone() -> None:
    """The empty name stands for the provider, and must not be taken for a place."""
    assert over_share({None: seen(stopped=15), "ams": seen(100)}, defaults.LIMITS) == {}
    cells = {None: due(stopped=20), "ams": due(stopped=1)}
    assert set(over_number(cells, defaults.LIMITS, [])) == {WHOLE_PROVIDER}
    assert set(over_number(cells, defaults.LIMITS, ["ams"])) == set()


def test_the_figures_of_locations_add_up() -> None:
    """The provider is the sum of its locations."""
    one, two = seen(3, stopped=2, never=1), due(stopped=4, never=5, recovered_stopped=6)
    one.uncounted[NEVER], two.recovered_in_trouble[STOPPED] = 7, 8
    one.heard, two.heard, one.losing, two.losing = 20, 10, 2, 1
    both = total([one, two])
    assert (both.uncounted[NEVER], both.recovered_in_trouble[STOPPED]) == (7, 8)
    assert (both.heard, both.losing) == (30, 3)
    assert (both.reporting, both.late[STOPPED], both.due[NEVER], both.recovered[STOPPED]) == (3, 2, 5, 6)
    assert one.due[STOPPED] == 0, "the parts stay as they are"


cells = st.builds(seen, *[st.integers(0, 300)] * 3)
shares = st.floats(0, 1)


@given(cells, shares, shares, st.integers(1, 50))
def test_more_reports_never_suspend_and_fewer_never_resume(
    cell: LocationStats, stopped: float, never: float, smallest: int
) -> None:
    """The verdict goes one way only, or a machine that comes back could stop the recovery of others."""
    limits = BreakerLimits(
        unhealthy=Limit(20, stopped), never_reported=Limit(20, never), losing_share=1, share_min_machines=smallest
    )
    suspended = bool(over_share({None: cell}, limits))
    ever = cell.reporting + cell.late[STOPPED]
    if not suspended and ever >= smallest:
        back = LocationStats(cell.reporting + 1, cell.late)
        assert not over_share({None: back}, limits)
    if suspended and cell.reporting > 1:
        fewer = LocationStats(cell.reporting - 1, Counter({STOPPED: cell.late[STOPPED] + 1, NEVER: cell.late[NEVER]}))
        assert over_share({None: fewer}, limits)
