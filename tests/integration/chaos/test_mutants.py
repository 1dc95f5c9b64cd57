import pytest

from tests.mutants.__main__ import verdict
from tests.mutants.mutant import Mutant, source
from tests.mutants.planted import PlantedBug, planted_bugs
from tests.mutants.reach import Trial, record, trials

GROWTH = "tests/unit/domain/test_backoff.py::test_intervals_grow_as_in_the_worked_examples[policy0-None-expected0]"


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("    def next(", "    def nothing(", ("killed", GROWTH)),
        # The tests must fail because of the mutant, not because of the copy or the way they are run.
        ('"""', '"""Changed. ', ("survived", "1 tests")),
        # Otherwise a sample would never end, or wait for a quarter of an hour.
        ("        initial = max(", "        while True: pass\n        initial = max(", ("hung", "")),
    ],
    ids=["detectable", "equivalent", "hangs"],
)
def test_each_mutant_has_its_verdict(
    monkeypatch: pytest.MonkeyPatch, old: str, new: str, told: tuple[str, str]
) -> None:
    monkeypatch.setenv("MUTANTS_PATIENCE", "5")
    file = "domain/backoff.py"
    start = source(file).index(old)
    mutant = Mutant(file, "Backoff.next", start, start + len(old), new)
    assert verdict(mutant, [Trial(GROWTH, 0.1, frozenset({f"{file}:Backoff.next"}))]) == told


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
