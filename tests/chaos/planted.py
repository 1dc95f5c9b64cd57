"""
Bugs to plant: that the checks can fail is shown and not hoped.

A plant is a change to the text of the product, and the check that must notice
it by name. It is planted in a copy of the package, in which the check then
runs; a plant whose old text is no longer there exactly once is refused, so
that none can rot. docs/reliability.md has the table.

    python -m tests.chaos.planted
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import shepherd_core

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
PACKAGE = Path(shepherd_core.__path__[0])

MODEL = "tests/integration/bmdb/test_model.py::test_a_known_history_is_the_same_in_the_bmdb_and_its_model"
SEARCH = "tests/integration/bmdb/test_model.py::test_the_bmdb_does_what_its_model_does"
FENCE = "tests/integration/transactions/test_fence.py"
RACES = "tests/integration/transactions/test_races.py"
CRASHES = "tests/integration/chaos/test_crash_points.py"
PROVISIONER = f"{CRASHES}::test_a_provisioner_that_dies_anywhere_loses_and_doubles_nothing"
SOON = f"{CRASHES}::test_whoever_dies_anywhere_loses_doubles_and_harms_nothing[provisioner, soon]"
HARM = f"{CRASHES}::test_a_broken_promise_is_noticed"
TWINS = (
    "tests/integration/chaos/test_twins.py::"
    "test_two_who_do_something_to_one_machine_keep_every_promise_however_one_interrupts_the_other"
)
LOCKS = "tests/integration/transactions/test_locks.py::test_the_second_writer_sees_the_change_of_the_first"
LIMITS = "tests/unit/rules/test_provisioning.py::test_a_creation_that_was_begun_is_not_repeated_beyond_the_limit"

NETWORK = (
    "tests/integration/chaos/test_faulty_network.py::test_a_connection_that_breaks_anywhere_loses_and_doubles_nothing"
)
OVERRIDES = "tests/integration/loops/test_recovery_overrides.py::test_who_waited_for_a_twin_counts_what_it_let_through"

WAIT_SECONDS = 900


@dataclass(frozen=True)
class Edit:
    """One change of text."""

    file: str
    """In the package."""
    old: str
    new: str
    statement: str | None = None
    """Of a file of SQL: the statement in which *old* occurs once. None: in the whole file."""

    def original(self) -> str:
        """Return the text of the file."""
        return (PACKAGE / self.file).read_text(encoding="utf-8")

    def changed(self, text: str | None = None) -> str:
        """Return the text, of the file or as given, with the change in it."""
        head, part, tail = self._around(self.original() if text is None else text)
        assert part.count(self.old) == 1, f"{self.file} has this {part.count(self.old)} times, not once: {self.old!r}"
        return head + part.replace(self.old, self.new) + tail

    def apply(self, package: Path) -> None:
        """Make the change in a copy of the package."""
        path = package / self.file
        path.write_text(self.changed(path.read_text(encoding="utf-8")), encoding="utf-8")

    def _around(self, text: str) -> tuple[str, str, str]:
        if self.statement is None:
            return "", text, ""
        mark = f"-- name: {self.statement}\n"
        assert text.count(mark) == 1, f"{self.file} has no statement {self.statement}"
        head, _, rest = text.partition(mark)
        part, next_mark, tail = rest.partition("-- name: ")
        return head + mark, part, next_mark + tail


@dataclass(frozen=True)
class Plant:
    """A bug, and what finds it."""

    bug: str
    edits: tuple[Edit, ...]
    check: str
    """The test that must fail."""
    promise: str
    """The name by which it must fail: of an invariant, or the test's own."""
    quick: bool = False
    """One of the few that the tests try too: a kind of check each."""

    @property
    def row(self) -> str:
        """Return what docs/reliability.md says of it."""
        path, name = self.check.split("::")
        shown = name.partition("[")[0]
        return f"| {self.bug} | [{shown}](../{path}) | `{self.promise}` | {'test' if self.quick else 'chaos'} |"


_WORK, _SESSION = "bmdb/work/work.sql", "bmdb/session.sql"
_NOT_WAITED = Edit("bmdb/session.py", "            if self._unanswered is None:\n", "            if True:\n")

_UNLOCKED_RESUME = Edit(
    "bmdb/machines/queries.py",
    "        return due.change(connection, rows[0][0], unit)\n",
    "        unit()\n        connection.run('reschedule', machine_ids=[rows[0][0]])\n        return True\n",
)

PLANTS: tuple[Plant, ...] = (
    Plant(
        "the fence is removed: an end of work does not look at the session's deadline",
        (Edit(_WORK, " AND deadline > clock_timestamp()\n    FOR UPDATE", "\n    FOR UPDATE", "fail"),),
        MODEL,
        "a_dead_session_commits_nothing",
    ),
    Plant(
        "liveness is judged by now(), the start of the transaction",
        (
            Edit(
                _WORK,
                "    WHERE session_id = :session_id AND fence = :fence AND deadline > clock_timestamp()\n),",
                "    WHERE session_id = :session_id AND fence = :fence AND deadline > now()\n),",
                "claim",
            ),
        ),
        MODEL,
        "a_dead_session_commits_nothing",
    ),
    Plant(
        "the deadline is looked at when a statement begins, not when it has its locks",
        (Edit(_WORK, "deadline > clock_timestamp()", "deadline > statement_timestamp()", "finish"),),
        f"{FENCE}::test_an_end_that_waited_beyond_the_deadline_writes_nothing",
        "test_an_end_that_waited_beyond_the_deadline_writes_nothing[finish]",
    ),
    Plant(
        "a claim does not move the due row",
        (Edit(_WORK, "t.deadline AS not_before", "t.not_before AS not_before", "claim"),),
        MODEL,
        "a_claimed_machine_falls_due_when_its_session_dies",
        quick=True,
    ),
    Plant(
        "a live session's work is taken over",
        (
            Edit(
                _SESSION, "s.deadline <= statement_timestamp()", "s.created_at <= statement_timestamp()", "open_session"
            ),
        ),
        MODEL,
        "a_live_session_keeps_its_work",
    ),
    Plant(
        "the count of deleted work rows is ignored",
        (
            Edit(
                _WORK,
                "'ShepherdAgentStart', 'Finished', :session_id::uuid FROM work_deleted",
                "'ShepherdAgentStart', 'Finished', :session_id::uuid FROM due_rows",
                "finish_agent_start",
            ),
        ),
        MODEL,
        "every_started_work_ends_once",
    ),
    Plant(
        "what was sent is not waited for when its answer is lost",
        (_NOT_WAITED,),
        MODEL,
        "every_started_work_ends_once",
    ),
    Plant(
        "nor is it, and work is deleted with its session",
        (
            _NOT_WAITED,
            Edit(
                "bmdb/schema/migrations/0011_session_fence.sql",
                "REFERENCES sessions;",
                "REFERENCES sessions ON DELETE CASCADE;",
            ),
        ),
        f"{NETWORK}[initializer, database]",
        "every_started_work_ends_once",
    ),
    Plant(
        "nor is it, when a step of recovery is recorded",
        (_NOT_WAITED,),
        f"{NETWORK}[recoverer, database]",
        "every_step_is_recorded_once",
    ),
    Plant(
        "pauses are looked at before the claim, in a statement of their own",
        (
            Edit(
                _WORK,
                "            AND (expires_at IS NULL OR expires_at > clock_timestamp())\n    )",
                "            AND false\n    )",
                "claim",
            ),
            Edit(
                "bmdb/work/work.py",
                "    timeouts = timeouts or HealthTimeouts()\n",
                "    timeouts = timeouts or HealthTimeouts()\n"
                "    for pause in session.connection.records('pauses_in_force'):\n"
                "        if pause['machine_id'] is None and pause['process'] in (None, process):\n"
                "            return Claim((), 0)\n",
            ),
        ),
        MODEL,
        "a_paused_machine_is_not_touched",
    ),
    Plant(
        "a claim passes over the work of other processes",
        (Edit(_WORK, "WHEN n.locked_until IS NOT NULL\n", "WHEN false\n", "claim"),),
        MODEL,
        "nobody_works_twice_on_a_machine",
    ),
    Plant(
        "a heartbeat does not count while the machine is claimed for recovery",
        (Edit(_WORK, "n.since + CASE\n", "n.since - interval '1 day' + CASE\n", "claim"),),
        MODEL,
        "no_healthy_machine_is_rebooted",
    ),
    Plant(
        "a machine that is about to be struck is not looked at again",
        (Edit("loops/runner.py", "partial(self._ask, work) if self.loop.guard else None", "None"),),
        f"{CRASHES}::test_whoever_dies_anywhere_loses_doubles_and_harms_nothing[recoverer]",
        "no_healthy_machine_is_rebooted",
    ),
    Plant(
        "an agent that reports just before the step does not count",
        (
            Edit("bmdb/recovery/remediation.sql", "j.since + j.timeout >", "j.since >", "no_longer_due"),
            Edit(
                "bmdb/recovery/remediation.sql",
                "WHEN j.last_heartbeat_at + j.timeout > statement_timestamp() THEN",
                "WHEN false THEN",
                "no_longer_due",
            ),
        ),
        MODEL,
        "no_healthy_machine_is_rebooted",
    ),
    Plant(
        "a step that the provider declined counts as an attempt",
        (
            Edit(
                "rules/remediation.py", "                    dropped.add(len(attempts))\n", "                    pass\n"
            ),
        ),
        f"{CRASHES}::test_whoever_dies_anywhere_loses_doubles_and_harms_nothing[recoverer, provider away]",
        "nobody_is_given_up_untried",
    ),
    Plant(
        "canceled work leaves its machine where the claim had put it",
        (Edit(_WORK, "        not_before = g.not_before,\n", "", "cancel"),),
        MODEL,
        "nobody_waits_for_ever",
    ),
    Plant(
        "the intent is written after the machine was created",
        (
            Edit(
                "loops/provisioner.py",
                "        if intent is None:\n"
                "            machine_id = provisioning.create_intent(session, "
                "self._provider.name, capacity.capacity_id)\n"
                "            if machine_id is None:\n"
                "                return False\n"
                "            intent = records.Intent(machine_id, capacity.capacity_id)\n",
                "        fresh = intent is None\n"
                "        if intent is None:\n"
                "            from uuid import uuid4\n"
                "            intent = records.Intent(uuid4(), capacity.capacity_id)\n",
            ),
            Edit(
                "loops/provisioner.py",
                "            return False\n        self._record(session, intent.machine_id, machine, "
                "_Outcome(Metric.CREATED, created=not creation.takes_over))\n",
                "            return False\n"
                "        if fresh:\n"
                "            machine_id = provisioning.create_intent(session, "
                "self._provider.name, capacity.capacity_id)\n"
                "            assert machine_id is not None\n"
                "            intent = records.Intent(machine_id, capacity.capacity_id)\n"
                "        self._record(session, intent.machine_id, machine, _Outcome(Metric.CREATED))\n",
            ),
        ),
        SOON,
        "every_effect_is_explained_by_a_record",
    ),
    Plant(
        "a creation whose answer was lost is repeated elsewhere",
        (
            Edit(
                "rules/provisioning.py",
                "unclaimed = [intent for intent in ledger.intents if intent.machine_id not in claimed]",
                "unclaimed = list(ledger.intents)",
            ),
            Edit("rules/provisioning.py", "adopt=tuple(adopt),", "adopt=(),"),
            Edit("rules/provisioning.py", "if intent.capacity_id in offered:", "if offered:"),
            Edit("rules/provisioning.py", "offered.pop(intent.capacity_id)", "offered.popitem()[1]"),
        ),
        PROVISIONER,
        "no_machine_is_doubled",
    ),
    Plant(
        "creations that were begun do not count towards the limit",
        (
            Edit(
                "rules/provisioning.py",
                "managed = count + len(ledger.intents) - len(adopt) - len(forget)",
                "managed = count",
            ),
        ),
        LIMITS,
        "test_a_creation_that_was_begun_is_not_repeated_beyond_the_limit",
        quick=True,
    ),
    Plant(
        "what was not heard while nobody looked counts as silence",
        (
            Edit(
                "domain/gaps.py",
                "return max([seconds, *(gap.began_ago + _doubt(gap, seconds) for gap in _doubtful(seconds, gaps))])",
                "return seconds",
            ),
        ),
        MODEL,
        "no_healthy_machine_is_rebooted",
    ),
    Plant(
        "a long time between two looks is not put on record",
        (
            Edit(
                "bmdb/recovery/suspension.sql",
                "CROSS JOIN session WHERE g.ended_at = statement_timestamp()",
                "CROSS JOIN session WHERE false",
                "take_health_snapshot",
            ),
        ),
        MODEL,
        "no_healthy_machine_is_rebooted",
    ),
    Plant(
        "a long time between two looks is held against no machine for ever",
        (Edit("domain/gaps.py", "and gap.ended_ago < _doubt(gap, seconds)", "and gap.ended_ago >= 0"),),
        MODEL,
        "nobody_waits_for_ever",
    ),
    Plant(
        "what an override has let through is counted without a lock",
        (Edit("bmdb/recovery/overrides.sql", "    ORDER BY location\n    FOR UPDATE\n", "", "apply_overrides"),),
        OVERRIDES,
        "test_who_waited_for_a_twin_counts_what_it_let_through",
    ),
    Plant(
        "a failure is recorded without its cause",
        (
            Edit(
                "loops/runner.py",
                'cause = f"{type(error).__name__}: {error}"[:_CAUSE_LENGTH]',
                'cause = "failed"[:_CAUSE_LENGTH]',
            ),
        ),
        HARM,
        "every_failure_names_its_cause",
        quick=True,
    ),
    Plant(
        "a resume writes the due row without its lock",
        (_UNLOCKED_RESUME,),
        f"{TWINS}[unquarantine+resume]",
        "nobody_waits_for_ever",
    ),
    Plant(
        "a resume beside the end of a recovery writes the due row without its lock",
        (_UNLOCKED_RESUME,),
        f"{LOCKS}[recovering-finish_recovery]",
        "test_the_second_writer_sees_the_change_of_the_first[recovering-finish_recovery]",
        quick=True,
    ),
    Plant(
        "a heartbeat is taken for an agent that somebody is just ending",
        (Edit("bmdb/agents/reports.sql", "    FOR SHARE OF a\n", "", "accept_heartbeat"),),
        f"{TWINS}[forget+heartbeat]",
        "nothing_is_left_behind",
    ),
    Plant(
        "a machine is forgotten beside a heartbeat that is just being taken",
        (
            Edit(
                "bmdb/listings/decommissioning.py", '        connection.run("lock_agent", machine_id=machine_id)\n', ""
            ),
        ),
        f"{TWINS}[forget+report]",
        "nothing_is_left_behind",
    ),
)


@dataclass(frozen=True)
class Outcome:
    """What became of a check in the copy."""

    status: int
    """Of pytest: 1, some test failed."""
    output: str

    def named(self) -> set[str]:
        """Return the words of what failed: of the messages, and of the tests' names."""
        lines = [line for line in self.output.splitlines() if line.startswith(("E ", "FAILED "))]
        return {word.strip("'\",:[") for line in lines for word in line.replace(": ", " ").replace("::", " ").split()}


def run(plant: Plant, folder: Path, check: str | None = None) -> Outcome:
    """Plant the bug in a copy of the package in *folder*, and run the check, its own or another, on that."""
    check = check or plant.check
    profile = ["--hypothesis-profile=planted"] if check == SEARCH else []

    def sow(package: Path) -> None:
        for edit in plant.edits:
            edit.apply(package)

    return run_in_copy(folder, sow, "-x", *profile, check)


def run_in_copy(
    folder: Path, change: Callable[[Path], None], *arguments: str, environment: dict[str, str] | None = None
) -> Outcome:
    """Make a change in a copy of the package in *folder*, and run pytest on that copy."""
    copy = folder / PACKAGE.name
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("*.pyc.*"))  # those are just being written
    change(copy)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--tb=short", "-p", "no:cacheprovider", "-p", "no:xdist", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(folder), "CI": "1", "CHAOS_WHOLE": "1", **(environment or {})},
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )
    return Outcome(done.returncode, done.stdout + done.stderr)


def main() -> int:
    """Plant every bug, and have it found by its check; and by a search through histories, where it is the model's."""
    missed = 0
    for plant in PLANTS:
        for check in (plant.check, SEARCH) if plant.check == MODEL else (plant.check,):
            with tempfile.TemporaryDirectory() as folder:
                outcome = run(plant, Path(folder), check)
            # A search may stumble over something else that the bug breaks, or end before it finds any.
            caught = outcome.status == 1 and (check == SEARCH or plant.promise in outcome.named())
            missed += not caught and check != SEARCH
            verdict = "caught" if caught else "not found" if check == SEARCH else "MISSED"
            sys.stdout.write(f"{verdict} by {check.split('::')[1]}: {plant.bug}\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
