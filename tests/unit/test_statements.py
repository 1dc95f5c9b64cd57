"""The SQL of the BMDB as text: named, explained, used, and without what decisions 21 and 30 exclude."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest
import shepherd_core.bmdb
from shepherd_core.bmdb.schema.migrate import migrations
from shepherd_core.bmdb.statements import CHANGED, changes, fragments, statements
from shepherd_core.settings.rules import INTERVALS

PACKAGE = Path(shepherd_core.bmdb.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))

EXCLUDED = {
    "an enum type": r"\bCREATE\s+TYPE\b|\bAS\s+ENUM\b",
    "an advisory lock": r"\bpg_(try_)?advisory\w*",
    "code in the database": r"\bDO\s+\$|\bDO\s+LANGUAGE\b|\bLANGUAGE\s+\w+|"
    r"\bCREATE\s+(OR\s+REPLACE\s+)?(CONSTRAINT\s+)?(FUNCTION|PROCEDURE|TRIGGER|RULE|AGGREGATE|EVENT)\b",
    "a notification": r"\b(UN)?LISTEN\b|\bNOTIFY\b",
    "a lock on a table": r"\bLOCK\s+TABLE\b|\bLOCK\s+\w+\s+IN\b",
    "a serial number": r"\b(SMALL|BIG)?SERIAL[248]?\b",
    "a system column": r"\b(xmin|xmax|cmin|cmax|ctid|tableoid)\b",
    "an extension": r"\bCREATE\s+EXTENSION\b",
    "the start of the transaction for the time": r"\b(now|transaction_timestamp)\s*\(|"
    r"\b(CURRENT_(TIMESTAMP|TIME|DATE)|LOCALTIME(STAMP)?)\b",
}


def code(text: str) -> str:
    without_comments = re.sub(r"--[^\n]*", " ", text)
    return " ".join(re.sub(r"'(?:[^']|'')*'", "''", without_comments).split())


def faults(text: str) -> list[str]:
    sql = code(text)
    found = [what for what, pattern in EXCLUDED.items() if re.search(pattern, sql, re.IGNORECASE)]
    changed = Counter(next(filter(None, match.groups())).lower() for match in CHANGED.finditer(sql))
    found += [f"{table} is changed {times} times" for table, times in changed.items() if times > 1]
    if ";" in sql.rstrip("; "):
        found.append("several statements")
    return found


# The two changes are of different rows: those that the snapshot has, and those that it has not; or there is only one of
# them, by a parameter.
TWO_PARTS = {
    "accept_heartbeat": ["machine_agent_heartbeat is changed 2 times"],
    "leave_alone": ["work_backoff is changed 2 times"],
    "set_budgets": ["recovery_budgets is changed 2 times"],
}


MIGRATED = [(migration.name, text) for migration in migrations() for text in code(migration.text).split(";")]


@pytest.mark.parametrize(("name", "text"), [*statements().items(), *MIGRATED])
def test_a_statement_uses_nothing_that_is_excluded(name: str, text: str) -> None:
    """The decisions say what each would break. What a migration brings in, every statement after it may use."""
    assert faults(text) == TWO_PARTS.get(name, [])


def sections() -> list[tuple[str, str]]:
    """Return each named section of the SQL files with its text, doubles included."""
    return [
        (name, text)
        for file in sorted(PACKAGE.rglob("*.sql"))
        for name, _, text in (part.partition("\n") for part in file.read_text(encoding="utf-8").split("-- name: ")[1:])
    ]


@pytest.mark.parametrize(("name", "text"), sections())
def test_a_statement_says_why_it_is_there(name: str, text: str) -> None:
    comment = re.match(r"(-- [^\n]+\n)+", text)
    assert comment, name
    assert re.search(r"[.:?]\s*$", comment[0]), name


UNFENCED = {
    "close_session": "ends only this session and its work, whenever it commits",
    "take_lock": "locks the session through the foreign key, so that fence_session waits for it",
    "begin_listing": "replaces an expired session; if its own expired too, the next one replaces it",
    "end_listing": "records the end of a complete listing, which is true whenever it commits",
    "record_waiting": "shows a figure that the next invocation replaces",
}


def written_for_sessions() -> set[str]:
    return {name for name, text in statements().items() if ":session_id" in code(text) and CHANGED.search(code(text))}


def test_every_other_session_write_checks_the_fence() -> None:
    """Otherwise a lost statement could commit after its repetition, or after its session continued without it."""
    assert {name for name in written_for_sessions() if ":fence" not in code(statements()[name])} == set(UNFENCED)


ENDS_WORK = {"finish_agent_start", "finish_recovery", "end_undone", "leave_alone", "quarantine"}
NEEDS_PROVIDER_LOCK = {"create_intent", "provide", "rebind", "delete_intent"}
NEEDS_PROVIDER_LOCK |= {"decommission", "request_release", "cancel_release"}
# What they write holds also after the deadline.
WITHOUT_DEADLINE = {"close_session", "take_lock", "begin_listing", "end_listing", "record_waiting", "fence_session"}
SHARED = {
    "clock_agrees": (written_for_sessions() - WITHOUT_DEADLINE)
    | {"read_fleet", "no_longer_due", "open_session", "close_session", "accept_heartbeat"},
    "schema_fits": {"open_session", "reporting_agent", "accept_heartbeat"},
    "agent_timeout": {"read_fleet"},
    "ended_work": ENDS_WORK,
    "last_heartbeat": {"decommission", "request_release"},
    "locked_machine": {"decommission", "request_release"},
    "locked_provider": NEEDS_PROVIDER_LOCK,
    "death_seconds": {"open_session", "failures", "search_machines"},
    "wide_pauses": {"find_candidates", "read_fleet", "no_longer_due", "create_intent", "loop_paused"},
    "locked_session": ENDS_WORK | {"lock_machines", "begin_work", "let_go", "record_attempts", "set_budgets"},
    "session_alive": (written_for_sessions() - WITHOUT_DEADLINE) | {"read_fleet", "no_longer_due"},
    "live_session": written_for_sessions() - set(UNFENCED) - {"fence_session"},
}


@pytest.mark.parametrize("fragment", SHARED)
def test_a_statement_has_the_fragments_that_it_needs(fragment: str) -> None:
    """The other way round a new statement could go without the fence, or without a lock."""
    assert {name for name, text in statements().items() if fragments()[fragment] in text} == SHARED[fragment]


def test_every_work_end_and_every_provider_write_is_known() -> None:
    """Otherwise the sets above would be too small for a new statement."""
    sql = {name: code(text) for name, text in statements().items()}
    ends = {name for name, text in sql.items() if re.search(r"DELETE FROM work (w USING|WHERE)", text)}
    assert ends - ENDS_WORK == {"open_session", "close_session", "let_go"}
    lock = "FROM provisioner_lock WHERE provider = :provider AND session_id"
    assert {name for name, text in sql.items() if lock in text and CHANGED.search(text)} == NEEDS_PROVIDER_LOCK


def texts(module: Path) -> set[str]:
    return {
        node.value
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def test_every_statement_is_used_beside_where_it_stands() -> None:
    """A reader of the module looks for its SQL there; an unused statement can break unnoticed."""
    used = {module: texts(module) for module in MODULES}
    for file in sorted(PACKAGE.rglob("*.sql")):
        for name in re.findall(r"^-- name: (\w+)$", file.read_text(encoding="utf-8"), re.MULTILINE):
            users = {module for module in MODULES if name in used[module]}
            assert file.with_suffix(".py") in users or len(users) > 1, name


def sql_in(source: str) -> list[str]:
    """Return the texts in Python code that look like SQL, documentation aside."""
    tree = ast.parse(source)
    documentation = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation
        if re.search(r"\b(SELECT|INSERT|UPDATE|DELETE|ALTER|CREATE|DROP|WHERE|VALUES|SET)\b", node.value)
    ]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.relative_to(PACKAGE)))
def test_no_sql_is_made_in_python(module: Path) -> None:
    """Formatted SQL is where injections come from, and what no test above sees."""
    assert sql_in(module.read_text(encoding="utf-8")) == []


def test_view_fragment_and_settings_rule_wait_for_equal_intervals() -> None:
    """A machine could otherwise be recovered although its agent reports as it was told."""
    timeout = fragments()["agent_timeout"]
    assert f"{INTERVALS}::float8 * report_interval_seconds" in timeout
    assert any(" ".join(timeout.split()) in " ".join(migration.text.split()) for migration in migrations())


@pytest.mark.parametrize(
    ("name", "changing"),
    [("pause", True), ("resume", True), ("now", False), ("lock_facts", False), ("fence_session", True)],
)
def test_it_is_known_which_statement_changes_anything(name: str, *, changing: bool) -> None:
    assert changes(name) == changing
