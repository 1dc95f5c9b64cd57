from uuid import UUID

import pytest
from shepherd_core.domain.budget import WHOLE_PROVIDER, Brake, Budget, FleetFigures
from shepherd_core.rules.budget import BudgetLimits, budgets, permitted, shown

LIMITS = BudgetLimits(per_hour=20, dead_share=0.2)


def figures(fleet: int, dead: int = 0, **others: int) -> FleetFigures:
    return FleetFigures(fleet=fleet, dead=dead, **{"reporting": fleet - dead, **others})


@pytest.mark.parametrize(
    ("fleet", "per_hour", "brake"),
    [
        # A share of ten machines or more.
        (figures(100), 20, None),
        (figures(100, 20), 20, None),
        (figures(100, 21), 1, Brake.SHARE),
        (figures(10, 2), 20, None),
        (figures(10, 3), 1, Brake.SHARE),
        # Of fewer, more than half, and three at least.
        (figures(9, 4), 20, None),
        (figures(9, 5), 1, Brake.SHARE),
        (figures(3, 2), 20, None),
        (figures(2, 1), 20, None),
        (figures(1, 1), 20, None),
        (figures(4, 3), 1, Brake.SHARE),
        # Nothing is heard.
        (figures(2, 2), 0, Brake.SILENT),
        (figures(500, 500), 0, Brake.SILENT),
        (figures(0), 20, None),
        # Most of what reports lost requests: more than 70 %, and more than chance makes of a half.
        (figures(100, heard=100, losing=70), 20, None),
        (figures(100, heard=100, losing=71), 0, Brake.LOSING),
        (figures(100, heard=10, losing=8), 20, None),
        (figures(100, heard=10, losing=9), 0, Brake.LOSING),
        (figures(9, heard=9, losing=9), 20, None),
        (figures(100, 50, heard=50, losing=50), 0, Brake.LOSING),
        # SSH fails.
        (figures(1000, 3, unreached=3, reached=2), 1, Brake.SSH),
        (figures(1000, 3, unreached=3, reached=3), 20, None),
        (figures(1000, 2, unreached=2), 20, None),
        # The number.
        (figures(1000, 19, steps=19), 20, None),
        (figures(1000, 20, steps=20), 20, Brake.NUMBER),
        (figures(1000, 39, steps_six_hours=39), 20, None),
        (figures(1000, 40, steps_six_hours=40), 20, Brake.NUMBER),
    ],
)
def test_the_budget_follows_the_share_of_the_dead(fleet: FleetFigures, per_hour: int, brake: Brake | None) -> None:
    found = budgets({"": fleet}, LIMITS)[WHOLE_PROVIDER]
    assert (found.per_hour, found.brake, found.reason is None) == (per_hour, brake, brake is None)


def test_each_location_has_a_budget_and_the_provider_one() -> None:
    """A rack without a single heartbeat gets the least; nothing at all is permitted only where all is silent."""
    found = budgets({"r1": figures(20, 20), "r2": figures(100, 2), "": figures(5)}, LIMITS)
    assert {location: each.per_hour for location, each in found.items()} == {"r1": 1, "r2": 20, WHOLE_PROVIDER: 20}
    assert budgets({"r1": figures(20, 20), "r2": figures(9, 9)}, LIMITS)[WHOLE_PROVIDER].per_hour == 0
    after = budgets({"r1": figures(20, 10), "r2": figures(9)}, LIMITS, was_silent=True)[WHOLE_PROVIDER]
    assert (after.per_hour, after.brake, after.lasts) == (0, Brake.SILENT, True)
    assert budgets({"r1": figures(10, 9), "r2": figures(10)}, LIMITS)[WHOLE_PROVIDER].brake is Brake.SHARE
    few = figures(500, 2, unreached=2)
    assert budgets({"r1": few, "r2": few}, LIMITS)[WHOLE_PROVIDER].brake is Brake.SSH
    assert budgets({"r1": figures(500, 3, unreached=3)}, LIMITS)[WHOLE_PROVIDER].brake is None, "it is the location's"


@pytest.mark.parametrize(
    ("fleet", "names"),
    [
        # Nothing waits where all machines report that were interrupted.
        ({"r1": figures(10, 9, reporting=10)}, set()),
        ({"r1": figures(100, 20, reporting=100, steps=20)}, set()),
        ({"r1": figures(10, 9, reporting=9)}, {WHOLE_PROVIDER}),
        ({"r1": figures(100, heard=100, losing=71)}, {WHOLE_PROVIDER}),
        # Of an only location the smaller one, which limits the steps.
        ({"r1": figures(2, 2)}, {WHOLE_PROVIDER}),
        ({"r1": figures(20, 3, unreached=3)}, {"r1"}),
        ({"r1": figures(100, 20, unreached=3, steps=20)}, {"r1"}),
        ({"r1": figures(10, 9), "": figures(1)}, {"r1", WHOLE_PROVIDER}),
        ({"r1": figures(10, 9), "r2": figures(1)}, {"r1", WHOLE_PROVIDER}),
    ],
)
def test_small_budgets_are_shown_where_a_machine_may_wait(fleet: dict[str, FleetFigures], names: set[str]) -> None:
    assert set(shown(budgets(fleet, LIMITS), fleet)) == names


def test_a_limit_and_all_steps_can_be_switched_off() -> None:
    """1 switches the share off, 0 all interruptions, as a silent provider does."""
    for fleet in (figures(100, 99), figures(4, 3)):
        assert budgets({"": fleet}, BudgetLimits(20, 1))[WHOLE_PROVIDER] == Budget(20)
    assert budgets({"": figures(100, 50)}, BudgetLimits(0, 0.2))[WHOLE_PROVIDER].per_hour == 0
    silent = {"r1": Budget(20), WHOLE_PROVIDER: Budget(0, Brake.SILENT, "?")}
    assert permitted({UUID(int=1): "r1"}, silent, {}, LIMITS) == set()


@pytest.mark.parametrize(
    ("asked", "steps", "granted"),
    [
        ({"r1": 25}, {}, {"r1": 20}),
        ({"r1": 25}, {"r1": (5, 5)}, {"r1": 15}),
        ({"r1": 25}, {"r2": (5, 5)}, {"r1": 15}),  # the provider's budget is that of all
        ({"r1": 25}, {"": (5, 5)}, {"r1": 15}),
        ({"r1": 25}, {"r1": (0, 30)}, {"r1": 10}),
        ({"r1": 25}, {"r2": (0, 33)}, {"r1": 7}),
        ({"r2": 3}, {}, {"r2": 1}),
        ({"r2": 3}, {"r2": (1, 1)}, {}),
        ({"r2": 3, "r1": 25}, {}, {"r2": 1, "r1": 19}),  # what a location refuses takes nothing from the others
        ({"": 3}, {}, {"": 3}),
        ({"elsewhere": 3}, {}, {}),
    ],
)
def test_a_step_needs_its_locations_and_its_providers_budget(
    asked: dict[str, int], steps: dict[str, tuple[int, int]], granted: dict[str, int]
) -> None:
    """In an hour, and twice that in six; the first come first."""
    machines = {UUID(int=number): at for number, at in enumerate(at for at, n in asked.items() for _ in range(n))}
    usual = {"r1": Budget(20), "r2": Budget(1, Brake.SHARE, "?"), WHOLE_PROVIDER: Budget(20)}
    found = permitted(machines, usual, steps, LIMITS)
    assert {at: sum(machines[each] == at for each in found) for at in asked} == {**dict.fromkeys(asked, 0), **granted}
    firsts = {at: [each for each, where in machines.items() if where == at][: granted.get(at, 0)] for at in asked}
    assert found == {each for of in firsts.values() for each in of}
