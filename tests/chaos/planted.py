"""
Planted bugs: each check must fail on the bug that it exists for.

A planted bug is a change to the text of the package, and the test that must
fail by a given name. The change is made in a copy of the package, on which the
test then runs. A bug whose old text does not occur exactly once is refused, so
that an outdated one is noticed. docs/reliability.md has the table.

    python -m tests.chaos.planted
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import shepherd_core

ROOT = Path(__file__).parents[2]
PACKAGE = Path(shepherd_core.__path__[0])

MODEL = "tests/integration/bmdb/test_model.py::test_a_known_history_is_the_same_in_the_bmdb_and_its_model"
SEARCH = "tests/integration/bmdb/test_model.py::test_the_bmdb_does_what_its_model_does"
FENCE = "tests/integration/transactions/test_fence.py"
CRASHES = "tests/integration/chaos/test_crash_points.py"
PROVISIONER = f"{CRASHES}::test_a_provisioner_killed_at_any_effect_creates_each_machine_once"
RECORDED_LATE = (
    "tests/integration/transactions/connection/test_under_way.py::test_a_step_that_is_recorded_late_is_recorded_once"
)
RECOVERER = f"{CRASHES}::test_a_loop_killed_at_any_effect_keeps_every_promise[recoverer]"
SOON = f"{CRASHES}::test_a_loop_killed_at_any_effect_keeps_every_promise[provisioner, soon]"
SSH_BRAKE = f"{CRASHES}::test_a_loop_killed_at_any_effect_keeps_every_promise[recoverer, SSH brake]"
LOOKS = f"{CRASHES}::test_a_loop_killed_at_any_effect_keeps_every_promise[recoverer, look]"
PAGE = "tests/integration/loops/recovery/test_page.py::test_what_the_page_says_is_what_happens"
INSTALLATIONS = "tests/integration/loops/recovery/test_look.py::test_an_installation_is_waited_for[False]"
DAMAGE = f"{CRASHES}::test_each_invariant_fails_on_damaged_rows"
COMMANDS = (
    "tests/integration/chaos/test_concurrent_invocations.py::test_concurrent_commands_on_one_machine_keep_every_promise"
)
LOCKS = "tests/integration/transactions/test_locks.py::test_the_second_writer_sees_the_change_of_the_first"
SUSPECTS = "tests/integration/loops/test_suspects.py::test_suspects_are_claimed_one_at_a_time_after_the_others"
RACES = "tests/integration/transactions/test_races.py"
LIMITS = "tests/unit/rules/test_provisioning.py::test_a_started_creation_is_not_repeated_beyond_the_limit"

NETWORK = "tests/integration/chaos/test_faulty_network.py::test_a_connection_broken_at_any_exchange_keeps_every_promise"

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
class PlantedBug:
    """A bug, and the test that must find it."""

    bug: str
    edits: tuple[Edit, ...]
    check: str
    """The test that must fail."""
    promise: str
    """The name in the failure: of an invariant, or of the test itself."""
    quick: bool = False
    """Planted by `make acceptance` too, one bug for each kind of check."""

    @property
    def row(self) -> str:
        """Return the row of the table in docs/reliability.md."""
        path, name = self.check.split("::")
        shown = name.partition("[")[0]
        return f"| {self.bug} | [{shown}](../{path}) | `{self.promise}` | {'test' if self.quick else 'chaos'} |"


_WORK, _SESSION, _FRAGMENTS = "bmdb/work/work.sql", "bmdb/session.sql", "bmdb/fragments.sql"
_REMEDIATION, _REMEDIATIONS = "bmdb/recovery/remediation.py", "bmdb/recovery/remediation.sql"
_BUDGET = "no_more_machines_are_interrupted_than_the_budget_permits"
_SCHEMA = "bmdb/schema/migrations/0001_bmdb.sql"
_STALE_SESSION = """WITH locked_session AS (
    SELECT session_id FROM sessions WHERE session_id = :session_id AND fence = :fence AND deadline > now() FOR UPDATE
),"""
_BEGIN_ALL = Edit(_WORK, "e.ready IS TRUE", "true", "begin_work")
_NOT_WAITED = Edit("bmdb/session.py", "            if self._unanswered is None:\n", "            if True:\n")

PLANTED_BUGS: tuple[PlantedBug, ...] = (
    PlantedBug(
        "a statement that ends work does not check the session's deadline",
        (Edit(_FRAGMENTS, "session_id IN (SELECT session_id FROM locked_session)", "session_id = :session_id"),),
        MODEL,
        "an_expired_session_commits_nothing",
    ),
    PlantedBug(
        "a claim checks the session's deadline by now(), the start of the transaction",
        (
            Edit(_WORK, "WITH {locked_session},", _STALE_SESSION, "lock_machines"),
            Edit(_WORK, "WITH {locked_session},", _STALE_SESSION, "begin_work"),
        ),
        MODEL,
        "an_expired_session_commits_nothing",
    ),
    PlantedBug(
        "the deadline is checked when the statement begins, not when it has its locks",
        (
            Edit(
                _FRAGMENTS,
                ":session_id AND deadline > clock_timestamp()",
                ":session_id AND deadline > statement_timestamp()",
            ),
        ),
        f"{FENCE}::test_an_end_that_waited_beyond_the_deadline_writes_nothing",
        "test_an_end_that_waited_beyond_the_deadline_writes_nothing",
    ),
    PlantedBug(
        "a claim begins what is not ready",
        (_BEGIN_ALL,),
        MODEL,
        "a_paused_machine_is_not_touched",
        quick=True,
    ),
    PlantedBug(
        "a claim looks before it locks",
        (
            _BEGIN_ALL,
            Edit(
                "bmdb/work/work.py",
                "    locked = _lock(session, process, machine_ids)\n    return",
                "    look = f\"SELECT machine_id FROM machine_eligibility WHERE ready AND process = '{process}'\"\n"
                "    ready = session.connection._connected().run(look)\n"
                "    machine_ids = [machine_id for machine_id in machine_ids if [machine_id] in ready]\n"
                "    locked = _lock(session, process, machine_ids)\n    return",
            ),
        ),
        MODEL,
        "a_paused_machine_is_not_touched",
    ),
    PlantedBug(
        "a claim leaves no line in the history",
        (Edit(_WORK, ":session_id::uuid FROM begun", ":session_id::uuid FROM begun WHERE false", "begin_work"),),
        MODEL,
        "every_started_work_ends_once",
    ),
    PlantedBug(
        "a claim keeps the locks of machines that are not ready",
        (Edit("bmdb/work/work.py", 'if len(works) < locked and not session.run("let_go"):', "if False:"),),
        MODEL,
        "no_machine_waits_without_end",
    ),
    PlantedBug(
        "a tick works on the machines that wait longest, and takes the others for done",
        (
            Edit(
                "loops/claims.py",
                "return self.admission is None or bool(self._due or self._unread)",
                "return self.admission is None",
            ),
        ),
        RECOVERER,
        "no_ready_machine_is_left",
    ),
    PlantedBug(
        "the lock of a function that died before it looked stays",
        (
            Edit(
                _SESSION,
                "WHERE w.session_id = s.session_id)\n    ORDER",
                "WHERE w.session_id = s.session_id AND w.began_at IS NOT NULL)\n    ORDER",
                "open_session",
            ),
        ),
        RECOVERER,
        "no_ready_machine_is_left",
    ),
    PlantedBug(
        "an end of work ends that of any session",
        (
            Edit(
                _FRAGMENTS,
                "session_id IN (SELECT session_id FROM locked_session)",
                "EXISTS (SELECT 1 FROM locked_session)",
            ),
        ),
        MODEL,
        "every_started_work_ends_once",
    ),
    PlantedBug(
        "opening a session also ends the work of live sessions",
        (
            Edit(
                _SESSION, "s.deadline <= statement_timestamp()", "s.created_at <= statement_timestamp()", "open_session"
            ),
        ),
        MODEL,
        "a_live_session_keeps_its_work",
    ),
    PlantedBug(
        "work is recorded as finished although its row was not deleted",
        (
            Edit(
                _WORK,
                "'ShepherdAgentStart', 'Finished', NULL, :session_id::uuid FROM started",
                "'ShepherdAgentStart', 'Finished', NULL, :session_id::uuid FROM input_rows",
                "finish_agent_start",
            ),
        ),
        MODEL,
        "every_started_work_ends_once",
    ),
    PlantedBug(
        "a statement whose answer was lost is not waited for",
        (_NOT_WAITED,),
        f"{NETWORK}[recoverer, database]",
        "every_started_work_ends_once",
    ),
    PlantedBug(
        "the same, and work rows are deleted together with their session",
        (
            _NOT_WAITED,
            Edit(
                _SCHEMA,
                "REFERENCES sessions,",
                "REFERENCES sessions ON DELETE CASCADE,",
            ),
        ),
        f"{NETWORK}[initializer, database]",
        "every_started_work_ends_once",
    ),
    PlantedBug(
        "the same, when a remediation step is recorded",
        (Edit("bmdb/session.py", "if self._unanswered is None:", 'if self._unanswered in (None, "record_attempts"):'),),
        RECORDED_LATE,
        "test_a_step_that_is_recorded_late_is_recorded_once",
    ),
    PlantedBug(
        "a machine whose function died is claimed together with others",
        (Edit("loops/claims.py", "if not self._due or not self._due[0].suspect:", "if True:"),),
        SUSPECTS,
        "test_suspects_are_claimed_one_at_a_time_after_the_others",
    ),
    PlantedBug(
        "a claim takes a machine that another session has locked",
        (
            Edit(
                _WORK,
                "ON CONFLICT (machine_id) DO NOTHING",
                "ON CONFLICT (machine_id) DO UPDATE SET session_id = excluded.session_id, began_at = NULL",
                "lock_machines",
            ),
        ),
        f"{RACES}::test_a_lock_that_is_not_committed_yet_is_waited_for[read committed-start_work]",
        "test_a_lock_that_is_not_committed_yet_is_waited_for",
    ),
    PlantedBug(
        "a machine has a lock for each process",
        (
            Edit(
                _SCHEMA,
                "machine_id uuid PRIMARY KEY CONSTRAINT work_machine REFERENCES machines,\n    process text NOT NULL,",
                "machine_id uuid CONSTRAINT work_machine REFERENCES machines,\n    process text NOT NULL,\n"
                "    PRIMARY KEY (machine_id, process),",
            ),
            Edit(_WORK, "ON CONFLICT (machine_id) DO NOTHING", "ON CONFLICT DO NOTHING", "lock_machines"),
        ),
        f"{RACES}::test_a_machine_has_one_lock_whatever_the_process[read committed-ShepherdRecovery-ShepherdNextYear]",
        "test_a_machine_has_one_lock_whatever_the_process",
    ),
    PlantedBug(
        "a claim for recovery takes the last heartbeat to be a day older",
        (Edit(_SCHEMA, "coalesce(n.since + n.timeout, ", "coalesce(n.since - interval '1 day' + n.timeout, "),),
        MODEL,
        "no_healthy_machine_is_rebooted",
    ),
    PlantedBug(
        "a machine is not checked again just before its remediation step",
        (
            Edit(
                "loops/recoverer.py", "Permission(task.deadline, partial(task.ask, None))", "Permission(task.deadline)"
            ),
        ),
        RECOVERER,
        "no_healthy_machine_is_rebooted",
    ),
    PlantedBug(
        "what a look saw is ignored",
        (Edit("loops/recoverer.py", "decision = self._look.before(", "self._look.before("),),
        LOOKS,
        "no_healthy_machine_is_rebooted",
    ),
    PlantedBug(
        "a look starts the agent anew during an installation",
        (Edit("loops/look.py", "target.waits < _MAX_WAITS", "False"),),
        INSTALLATIONS,
        "test_an_installation_is_waited_for",
    ),
    PlantedBug(
        "the check just before the step ignores heartbeats",
        (
            Edit(
                "bmdb/recovery/remediation.sql",
                "WHEN j.due_at > statement_timestamp() AND NOT j.overdue THEN",
                "WHEN false THEN",
                "no_longer_due",
            ),
            Edit(
                "bmdb/recovery/remediation.sql",
                "WHEN j.due_at > statement_timestamp() THEN",
                "WHEN false THEN",
                "no_longer_due",
            ),
        ),
        MODEL,
        "no_healthy_machine_is_rebooted",
    ),
    PlantedBug(
        "a step that the provider did not accept counts as an attempt",
        (Edit("rules/attempts.py", "concluded=True, counts=counts)", "concluded=True)"),),
        f"{CRASHES}::test_a_loop_killed_at_any_effect_keeps_every_promise[recoverer, provider outage]",
        "no_machine_is_quarantined_untried",
    ),
    PlantedBug(
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
                "_Origin(Metric.CREATED, created=not creation.takes_over))\n",
                "            return False\n"
                "        if fresh:\n"
                "            machine_id = provisioning.create_intent(session, "
                "self._provider.name, capacity.capacity_id)\n"
                "            assert machine_id is not None\n"
                "            intent = records.Intent(machine_id, capacity.capacity_id)\n"
                "        self._record(session, intent.machine_id, machine, _Origin(Metric.CREATED))\n",
            ),
        ),
        SOON,
        "every_effect_is_explained_by_a_record",
    ),
    PlantedBug(
        "a creation whose answer was lost is repeated on other capacity",
        (
            Edit(
                "rules/provisioning.py",
                "unclaimed = [intent for intent in ledger.intents if intent.machine_id not in claimed]",
                "unclaimed = list(ledger.intents)",
            ),
            Edit("rules/provisioning.py", "complete=tuple(complete),", "complete=(),"),
            Edit("rules/provisioning.py", "if intent.capacity_id in offered:", "if offered:"),
            Edit("rules/provisioning.py", "offered.pop(intent.capacity_id)", "offered.popitem()[1]"),
        ),
        PROVISIONER,
        "no_machine_is_created_twice",
    ),
    PlantedBug(
        "started creations do not count towards the limit",
        (
            Edit(
                "rules/provisioning.py",
                "managed = count + len(unclaimed) - len(abandon)",
                "managed = count",
            ),
        ),
        LIMITS,
        "test_a_started_creation_is_not_repeated_beyond_the_limit",
        quick=True,
    ),
    PlantedBug(
        "two functions that ask for steps do not wait for each other",
        (Edit(_REMEDIATION, 'connection.run("lock_budget", provider=provider)', 'connection.run("now")'),),
        MODEL,
        _BUDGET,
    ),
    PlantedBug(
        "a permission counts no steps",
        (Edit(_REMEDIATIONS, "provider = :provider\n", "provider = :provider AND false\n", "count_steps"),),
        MODEL,
        _BUDGET,
    ),
    PlantedBug(
        "a permission does not count the steps of the machines that ask",
        (
            Edit(
                _REMEDIATIONS,
                "provider = :provider\n",
                "provider = :provider AND r.machine_id NOT IN (SELECT machine_id FROM work)\n",
                "count_steps",
            ),
        ),
        MODEL,
        _BUDGET,
    ),
    PlantedBug(
        "a step that the budget refused is taken",
        (Edit(_REMEDIATIONS, "g.alive OR NOT g.held OR x.attempts > 0", "true", "record_attempts"),),
        MODEL,
        _BUDGET,
    ),
    PlantedBug(
        "a step does not count before its end",
        (Edit(_REMEDIATIONS, "WHERE new_attempt AND reboots", "WHERE false", "record_attempts"),),
        SSH_BRAKE,
        _BUDGET,
    ),
    PlantedBug(
        "a step that was not taken counts",
        (Edit(_REMEDIATIONS, "AND r.rebooted_at >= e.began_at", "AND false", "leave_alone"),),
        MODEL,
        "no_machine_waits_without_end",
    ),
    PlantedBug(
        "the budget stays as it is where SSH reaches no machine",
        (Edit("rules/budget.py", "figures.unreached >= _SSH_FAILS", "False"),),
        SSH_BRAKE,
        _BUDGET,
    ),
    PlantedBug(
        "a machine is not looked at if its step would be refused",
        (
            Edit(
                "loops/recoverer.py",
                "            if decision.look is not None and self._look is not None:\n",
                "            if decision.interrupts:\n                task.ask(decision)\n"
                "            if decision.look is not None and self._look is not None:\n",
            ),
        ),
        f"{PAGE}[needs a step, the budget is used up]",
        "test_what_the_page_says_is_what_happens",
    ),
    PlantedBug(
        "agents have no time to report after an outage",
        (Edit("loops/recoverer.py", "self._settled or each.confirmed", "True"),),
        f"{PAGE}[needs a step after an outage of ours]",
        "test_what_the_page_says_is_what_happens",
    ),
    PlantedBug(
        "a failure is recorded without its cause",
        (Edit("bmdb/work/work.py", "else each.text", 'else ""'),),
        DAMAGE,
        "every_failure_names_its_cause",
        quick=True,
    ),
    PlantedBug(
        "an installation is requested for a machine that is just being forgotten",
        (
            Edit(
                "bmdb/agents/installation.sql",
                "UPDATE machine_provided SET provider_status = provider_status WHERE machine_id = :machine_id "
                "RETURNING machine_id",
                "SELECT machine_id FROM machine_provided WHERE machine_id = :machine_id",
                "request_installation",
            ),
        ),
        f"{LOCKS}[unheard-forget]",
        "test_the_second_writer_sees_the_change_of_the_first",
        quick=True,
    ),
    PlantedBug(
        "a heartbeat is recorded for an agent that is just being deleted",
        (
            Edit(
                "bmdb/agents/reports.sql",
                "UPDATE machine_agent_started SET agent_started_at = agent_started_at\n",
                "SELECT machine_id FROM machine_agent_started\n",
                "accept_heartbeat",
            ),
            Edit(
                "bmdb/agents/reports.sql", "    RETURNING machine_id\n),\nfirst AS", "),\nfirst AS", "accept_heartbeat"
            ),
        ),
        f"{COMMANDS}[read committed-forget+heartbeat]",
        "related_rows_come_and_go_together",
    ),
    PlantedBug(
        "a machine is forgotten while its heartbeat is being recorded",
        (
            Edit(
                "bmdb/listings/decommissioning.py", '        connection.run("lock_facts", machine_id=machine_id)\n', ""
            ),
        ),
        f"{COMMANDS}[read committed-forget+report]",
        "related_rows_come_and_go_together",
    ),
)


@dataclass(frozen=True)
class Outcome:
    """The result of a test on the changed copy."""

    status: int
    """The exit status of pytest; 1: a test failed."""
    output: str

    def named(self) -> set[str]:
        """Return all words of the failures: of their messages and of the tests' names."""
        lines = [line for line in self.output.splitlines() if line.startswith(("E ", "FAILED "))]
        return {word.strip("'\",:[") for line in lines for word in re.sub(r": |::|\[", " ", line).split()}


def run(planted: PlantedBug, folder: Path, check: str | None = None) -> Outcome:
    """Plant the bug in a copy of the package in *folder*, and run *check*, or else the bug's own, on it."""
    check = check or planted.check
    profile = ["--hypothesis-profile=planted"] if check == SEARCH else []

    def change(package: Path) -> None:
        for edit in planted.edits:
            edit.apply(package)

    return run_in_copy(folder, change, "-x", *profile, check)


def run_in_copy(
    folder: Path, change: Callable[[Path], None], *arguments: str, environment: dict[str, str] | None = None
) -> Outcome:
    """Make a change in a copy of the package in *folder*, and run pytest on that copy."""
    copy = folder / PACKAGE.name
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("*.pyc.*"))  # other processes may be writing these
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
    """Plant every bug and run its check; for those that the model must catch, also search for a history."""
    missed = 0
    for bug in PLANTED_BUGS:
        for check in (bug.check, SEARCH) if bug.check == MODEL else (bug.check,):
            with tempfile.TemporaryDirectory() as folder:
                outcome = run(bug, Path(folder), check)
            # A search may find another promise that the bug breaks, or end before it finds any.
            caught = outcome.status == 1 and (check == SEARCH or bug.promise in outcome.named())
            missed += not caught and check != SEARCH
            verdict = "caught" if caught else "not found" if check == SEARCH else "MISSED"
            sys.stdout.write(f"{verdict} by {check.split('::')[1]}: {bug.bug}\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
