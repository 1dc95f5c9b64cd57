"""
The checks can fail: each of them notices the bug that is planted for it, and says which promise it breaks.

A few bugs here, one for each kind of check; ``make chaos`` plants all of them.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.chaos.planted import PLANTS, ROOT, WAIT_SECONDS, Edit, Plant, run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from tests.chaos.planted import Outcome

AT_ONCE = 2

QUICK = [plant for plant in PLANTS if plant.quick]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Plant], Outcome]]:
    """Return what tells what became of a plant; they are all under way, some of them at once."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        running: dict[Plant, Future[Outcome]] = {
            plant: pool.submit(run, plant, tmp_path_factory.mktemp("planted")) for plant in QUICK
        }
        yield lambda plant: running[plant].result(timeout=WAIT_SECONDS * len(QUICK))


@pytest.mark.parametrize("plant", QUICK, ids=lambda plant: plant.bug)
def test_a_planted_bug_is_caught_by_name(outcomes: Callable[[Plant], Outcome], plant: Plant) -> None:
    """A check that nothing breaks is none; one that breaks for another reason misleads whoever reads it."""
    outcome = outcomes(plant)
    assert outcome.status == 1, outcome.output
    assert plant.promise in outcome.named(), outcome.output


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.bug)
def test_every_plant_still_fits_the_product(plant: Plant) -> None:
    """Also those that are too slow to be run here; a bug that cannot be planted any more proves nothing."""
    assert (ROOT / plant.check.split("::")[0]).exists()
    for edit in plant.edits:
        assert edit.changed() != edit.original()


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (Edit("domain/backoff.py", "no such text", ""), "0 times"),
        (Edit("domain/backoff.py", "import", ""), "times, not once"),
        (Edit("bmdb/work/work.sql", "SELECT", "", "no_such_statement"), "has no statement no_such_statement"),
    ],
)
def test_a_plant_that_does_not_fit_is_refused(edit: Edit, why: str) -> None:
    """Otherwise the check would run on the product as it is, or on another bug than the one that is named."""
    with pytest.raises(AssertionError, match=why):
        edit.changed()


def test_the_page_says_which_check_caught_which() -> None:
    """Whoever trusts the checks wants to see what they were tried on."""
    page = (ROOT / "docs" / "reliability.md").read_text()
    section = page.partition("## The tests can fail")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ") and "](../" in line]
    assert rows == [plant.row for plant in PLANTS]
