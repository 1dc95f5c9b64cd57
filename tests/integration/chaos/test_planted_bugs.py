"""
Each check fails on the bug that is planted for it, by the name of the broken promise.

A few bugs, one for each kind of check; ``make chaos`` plants all of them.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.chaos.invariants import INVARIANTS, Invariant
from tests.chaos.planted import PLANTED_BUGS, ROOT, WAIT_SECONDS, Edit, Outcome, PlantedBug, run

AT_ONCE = 2

QUICK = [planted for planted in PLANTED_BUGS if planted.quick]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[PlantedBug], Outcome]]:
    """Return a function from a planted bug to its outcome; all bugs are being tried, AT_ONCE at a time."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        running: dict[PlantedBug, Future[Outcome]] = {
            planted: pool.submit(run, planted, tmp_path_factory.mktemp("planted")) for planted in QUICK
        }
        yield lambda planted: running[planted].result(timeout=WAIT_SECONDS * len(QUICK))


@pytest.mark.parametrize("planted", QUICK, ids=lambda planted: planted.bug)
def test_a_planted_bug_is_caught_by_name(outcomes: Callable[[PlantedBug], Outcome], planted: PlantedBug) -> None:
    """A check that cannot fail checks nothing, and one that fails for another reason misleads its reader."""
    outcome = outcomes(planted)
    assert outcome.status == 1, outcome.output
    assert planted.promise in outcome.named(), outcome.output


@pytest.mark.parametrize("planted", PLANTED_BUGS, ids=lambda planted: planted.bug)
def test_every_planted_bug_matches_the_package(planted: PlantedBug) -> None:
    """Also the bugs that are too slow to be tried here; a bug that cannot be planted proves nothing."""
    assert (ROOT / planted.check.split("::")[0]).exists()
    for edit in planted.edits:
        assert edit.changed() != edit.original()


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (Edit("domain/backoff.py", "no such text", ""), "0 times"),
        (Edit("domain/backoff.py", "import", ""), "times, not once"),
        (Edit("bmdb/work/work.sql", "SELECT", "", "no_such_statement"), "has no statement no_such_statement"),
    ],
)
def test_a_planted_bug_that_does_not_match_is_refused(edit: Edit, why: str) -> None:
    """Otherwise the check would run on the unchanged package, or on a bug other than the one that is named."""
    with pytest.raises(AssertionError, match=why):
        edit.changed()


def test_the_reliability_page_lists_every_planted_bug() -> None:
    """A reader who is to trust the checks must see the bugs that they were tried on."""
    page = (ROOT / "docs" / "reliability.md").read_text()
    section = page.partition("## The tests can fail")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ") and "](../" in line]
    assert rows == [planted.row for planted in PLANTED_BUGS]


@pytest.mark.parametrize("invariant", INVARIANTS, ids=lambda invariant: invariant.name)
def test_the_reliability_page_lists_every_invariant(invariant: Invariant) -> None:
    """The page says that it lists every promise."""
    page = (ROOT / "docs" / "reliability.md").read_text()
    section = page.partition("## What is promised")[2].partition("\n## ")[0]
    assert f"`{invariant.name}`" in section
