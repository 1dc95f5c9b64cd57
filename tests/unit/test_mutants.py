import json
import shutil
from pathlib import Path

import pytest

from tests.chaos.__main__ import PARTS
from tests.mutants import changed, in_python, in_sql, reach
from tests.mutants.copies import PACKAGE, ROOT
from tests.mutants.mutant import equivalent, files, mutants_of, source
from tests.mutants.planted import planted_bugs


def sql(text: str) -> set[str]:
    whole = f"-- name: one\n{text}\n"
    changed = (whole[:start] + new + whole[end:] for _, start, end, new in in_sql.changes(whole))
    return {" ".join(each.split("\n", 1)[1].split()) for each in changed}


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("x = a < b", {"x = a <= b"}),
        ("x = a and b", {"x = a or b", "x = True and b", "x = a and True"}),
        ("x = a or b", {"x = a and b", "x = False or b", "x = a or False"}),
        ("x = a + 0.5", {"x = a - 0.5", "x = a + 1.5"}),
        ("if a:\n    x = y", {"if True:\n    x = y", "if False:\n    x = y"}),
        ("x = [y for y in z if y]", {"x = [y for y in z if True]", "x = [y for y in z if False]"}),
        ("f(x)", {"pass"}),
        ("x = min(y)", {"x = max(y)"}),
        ("raise X", {"pass"}),
        ("del x", set()),
        ("try:\n    x = y\nexcept (A, B):\n    x = z", {
            "try:\n    x = y\nexcept (A,):\n    x = z", "try:\n    x = y\nexcept (B,):\n    x = z",
        }),
        ("if TYPE_CHECKING:\n    x = 1", set()),
        ("x = zip(y, z, strict=True)", set()),
        ("x = f'{1 + 1}'", set()),
    ],
)  # fmt: skip
def test_python_is_changed_by_one_step(text: str, changed: set[str]) -> None:
    assert {text[:start] + new + text[end:] for _, start, end, new in in_python.changes(text)} == changed


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("SELECT a FROM t FOR UPDATE OF t SKIP LOCKED;", {"SELECT a FROM t ;", "SELECT a FROM t FOR UPDATE OF t;"}),
        ("SELECT clock_timestamp();", set()),
        ("DELETE FROM t RETURNING clock_timestamp();", {"DELETE FROM t RETURNING statement_timestamp();"}),
        (
            "SELECT a FROM t WHERE a = 'AND' AND b IS NOT NULL;",
            {
                "SELECT a FROM t WHERE true AND b IS NOT NULL;",
                "SELECT a FROM t WHERE a = 'AND' AND true;",
                "SELECT a FROM t WHERE a = 'AND' OR b IS NOT NULL;",
                "SELECT a FROM t WHERE a = 'AND' AND b IS NULL;",
                "SELECT a FROM t WHERE false AND a = 'AND' AND b IS NOT NULL;",
            },
        ),
        (
            "SELECT (a < b OR c);",
            {"SELECT (a <= b OR c);", "SELECT (a < b AND c);", "SELECT (false OR c);", "SELECT (a < b OR false);"},
        ),
        ("SELECT a > clock_timestamp();", {"SELECT a < clock_timestamp();"}),
        ("SELECT a ORDER BY b LIMIT :limit;", {"SELECT a LIMIT :limit;", "SELECT a ORDER BY b LIMIT :limit + 1;"}),
        ("UPDATE t SET a = 'x', b = f(c, d);", {"UPDATE t SET b = f(c, d);", "UPDATE t SET a = 'x';"}),
        ("SELECT a FROM t LEFT JOIN u ON c;", {"SELECT a FROM t JOIN u ON c;", "SELECT a FROM t LEFT JOIN u ON true;"}),
        ("INSERT INTO t VALUES (a) ON CONFLICT (a) DO NOTHING; -- AND 1", set()),
        ("-- FOR UPDATE waits.\nSELECT clock_timestamp();", set()),
    ],
)
def test_sql_is_changed_by_one_step(text: str, changed: set[str]) -> None:
    """Locks, clocks, conditions and order are what a race needs, and what a single client never misses."""
    assert sql(text) == changed


def test_every_equivalent_mutant_exists() -> None:
    """An entry whose text has changed excuses nothing any more; one without a reason never did."""
    there = {mutant.name for file in {name[0] for name in equivalent()} & set(files()) for mutant in mutants_of(file)}
    assert equivalent().keys() - there == set()
    assert all(len(reason.split()) > 2 for reason in equivalent().values())


@pytest.mark.parametrize(
    "test",
    sorted({*(bug.check for bug in planted_bugs()), *(f"tests/{test}" for part in PARTS.values() for test in part)}),
)
def test_the_tests_named_by_long_runs_exist(test: str) -> None:
    """The runs would tell hours later."""
    file, _, name = test.partition("[")[0].partition("::")
    assert f"\ndef {name}" in (ROOT / file).read_text()


def test_every_planted_bug_matches_the_package(tmp_path: Path) -> None:
    """Also those that are too slow to be tried here; what cannot be planted proves nothing."""
    for bug in planted_bugs():
        for each in bug.edits:
            (tmp_path / each.file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(PACKAGE / each.file, tmp_path / each.file)
        bug.plant(tmp_path)
        for each in bug.edits:
            assert each.new in (tmp_path / each.file).read_text() != source(each.file), bug


EXAMPLES, PAUSE = "tests/unit/deployment/test_examples.py", "tests/integration/cli/test_pause.py"


@pytest.mark.parametrize(
    ("file", "reached_by"),
    [
        ("tests/integration/cli/test_pause.py", {PAUSE}),
        ("tests/integration/cli/conftest.py", {PAUSE}),
        ("shepherdctl/commands/pause.py", {PAUSE}),  # through tests/support/command_line.py
        ("samconfig.toml", {EXAMPLES}),
        ("layers/shepherd_core/shepherd_core/bmdb/machines/pauses.sql", {PAUSE}),
        ("layers/shepherd_core/shepherd_core/bmdb/machines/pauses.py", set()),
        ("docs/pictures/demo.svg", set()),
    ],
)
def test_a_changed_file_selects_the_tests_that_reach_it(
    file: str, reached_by: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reach, "RECORDS", tmp_path)
    tests = {ROOT / EXAMPLES, ROOT / PAUSE}
    for test, reached in {EXAMPLES: [], PAUSE: ["sql:pause"]}.items():
        reach.kept(ROOT / test).write_text(json.dumps({"shared": reached, "tests": {f"{test}::test": [1.0, []]}}))
    assert changed.reaching({ROOT / file}, sorted(tests)) == sorted(ROOT / test for test in reached_by)
