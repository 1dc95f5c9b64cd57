"""`make mutants` kills detectable mutants and planted bugs, keeps equivalent ones, and records what a test reaches."""

import pytest

from tests.mutants.__main__ import verdict
from tests.mutants.mutant import Mutant, source
from tests.mutants.planted import PlantedBug, planted_bugs
from tests.mutants.reach import Trial, record, trials

BACKOFF = "tests/unit/domain/test_backoff.py"
GROWTH = f"{BACKOFF}::test_intervals_grow_as_in_the_worked_examples[policy0-None-expected0]"


def changed(file: str, old: str, new: str) -> Mutant:
    start = source(file).index(old)
    return Mutant(file, "Backoff.next", start, start + len(old), new)


def trial() -> list[Trial]:
    return [Trial(GROWTH, 0.1, frozenset({"domain/backoff.py:Backoff.next"}))]


def test_a_detectable_mutant_is_killed() -> None:
    assert verdict(changed("domain/backoff.py", "    def next(", "    def nothing("), trial()) == ("killed", GROWTH)


def test_an_equivalent_mutant_survives() -> None:
    """The tests must fail because of the mutant, not because of the copy or the way they are run."""
    assert verdict(changed("domain/backoff.py", '"""', '"""Changed. '), trial()) == ("survived", "1 tests")


def test_a_mutant_that_hangs_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a sample would never end, or wait for a quarter of an hour."""
    monkeypatch.setenv("MUTANTS_PATIENCE", "1")
    mutant = changed("domain/backoff.py", "        initial = max(", "        while True: pass\n        initial = max(")
    assert verdict(mutant, trial()) == ("hung", "")


def test_the_code_that_a_test_reaches_is_recorded() -> None:
    (reached,) = trials(
        record("tests/integration/transactions/test_fence.py::test_a_session_is_renewed_during_a_slow_call")
    )
    assert reached.seconds > 0
    assert {"bmdb/session.py:Session.open", "sql:open_session", "sql:applied_migrations"} <= reached.reached
    assert "sql:claim" not in reached.reached


@pytest.mark.parametrize("planted", [each for each in planted_bugs() if each.quick], ids=lambda planted: planted.bug)
def test_a_planted_bug_is_caught_by_name(planted: PlantedBug) -> None:
    """A check that cannot fail checks nothing, and one that fails for another reason misleads its reader."""
    caught, output = planted.try_out()
    assert caught, output
