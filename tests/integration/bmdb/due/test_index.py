"""
The due index compared with the facts, over random histories.

The index is derived, and claims search it: a machine whose row comes too late is
not found. So, after each step of any history, claims must return what the plain
query over the facts finds.
"""

from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shepherd_core.bmdb.machines import pauses
from shepherd_core.bmdb.recovery import explain, remediation, suspension
from shepherd_core.bmdb.session import Session
from shepherd_core.bmdb.work import work
from shepherd_core.domain.backoff import Backoff
from shepherd_core.domain.errors.bmdb import SessionExpired, WorkConflict
from shepherd_core.domain.health import WHOLE_PROVIDER
from shepherd_core.domain.machine import Process
from shepherd_core.domain.remediation import REBOOT, NextStep, Step

from tests.support import defaults
from tests.support.agents.heartbeats import record_heartbeat
from tests.support.bmdb.fleet import PROVIDER, Fleet, claimed, ids
from tests.support.bmdb.reference.plain_eligibility import plainly_eligible

Found = dict[Process, list["UUID"]]

LOOPS = (Process.AGENT_START, Process.RECOVERY)
MACHINES = 2
SESSIONS = 2
HERE = "rack 1"

# Everything lasts whole minutes, so that nothing is just about to happen while a step runs.
SESSION_SECONDS = 1200
SETTLE_SECONDS = 120
GRACE_SECONDS = 900
COOLDOWN_SECONDS = 300
BACKOFF = Backoff(60, 600, 2)


class History:
    """Operations on a few machines, step by step."""

    def __init__(self, fleet: Fleet) -> None:
        fleet.empty()
        self.fleet = fleet
        self.machines = [fleet.provided_machine() for _ in range(MACHINES)]
        fleet.locate(self.machines[0], HERE)
        fleet.timeouts = replace(defaults.HEALTH, grace_seconds=GRACE_SECONDS)
        self.sessions = [fleet.open_session(SESSION_SECONDS) for _ in range(SESSIONS)]
        self.held: list[tuple[Session, work.Work]] = []
        self.pauses: list[UUID] = []
        self.compared = 0

    # The loops.

    def claim(self, session: int, process: Process, limit: int) -> None:
        """Claim as a loop does."""

        def step() -> None:
            found = work.claim(self.sessions[session], process, PROVIDER, limit)
            self.held += [(self.sessions[session], each) for each in found.work]

        self._in_session(session, step)

    def snapshot(self, session: int, process: Process) -> None:
        """Claim everything and return it at once, which leaves the other due rows where the claim moved them."""

        def step() -> None:
            work_found = claimed(self.sessions[session], process)
            if work_found:
                work.cancel(self.sessions[session], work_found)

        self._in_session(session, step)

    def survey(self, session: int) -> None:
        """Take a health snapshot as the Recoverer does, which moves the due rows of healthy machines."""
        self._in_session(session, lambda: self._snapshot(self.sessions[session]))

    def suspend(self, session: int, where: list[str]) -> None:
        """Suspend recovery there, and nowhere else."""
        self._in_session(
            session, lambda: suspension.set_suspensions(self.sessions[session], PROVIDER, dict.fromkeys(where, "?"))
        )

    def _snapshot(self, session: Session) -> suspension.HealthSnapshot:
        held = [each["location"] for each in suspension.suspensions(session.connection) if each["ended_at"] is None]
        return suspension.take_health_snapshot(session, PROVIDER, skipped_locations=[each for each in held if each])

    def access(self, session: int, machine: int) -> None:
        """Start work on one machine, as an operator does."""

        def step() -> None:
            held = work.start_work(self.sessions[session], self.machines[machine], "?")
            self.held.append((self.sessions[session], held))

        self._in_session(session, step)

    def end(self, which: int, how: str) -> None:
        """End some work in hand; it may be lost by now."""
        if not self.held:
            return
        session, held = self.held.pop(which % len(self.held))
        if how == "fail":
            work.fail(session, {held: work.Failure("no luck", BACKOFF.next(held.last_interval_seconds))})
        elif held.process is Process.AGENT_START and how == "do it":
            work.finish_agent_start(session, {held: work.AgentStarted(bytes(32), None)})
        elif held.process is Process.RECOVERY and how == "do it":
            work.finish_recovery(
                session, [held], SETTLE_SECONDS, grace_seconds=GRACE_SECONDS, cooldown_seconds=COOLDOWN_SECONDS
            )
        elif held.process is Process.RECOVERY and how == "give up":
            remediation.quarantine(session, {held: "enough"})
        else:
            work.cancel(session, [held])

    def renew(self, session: int) -> None:
        """Renew a session."""
        self._in_session(session, self.sessions[session].renew)

    def close(self, session: int) -> None:
        """Close a session, which cancels its work, and open another."""
        self.sessions[session].close()
        self.sessions[session] = self.fleet.open_session(SESSION_SECONDS)

    def _in_session(self, session: int, step: Any) -> None:
        try:
            step()
        except SessionExpired:
            self.sessions[session] = self.fleet.open_session(SESSION_SECONDS)
        except WorkConflict:
            pass

    # The machines.

    def heartbeat(self, machine: int) -> None:
        """Record a heartbeat, if an agent was started."""
        record_heartbeat(self.fleet.connection, self.machines[machine])

    def agent(self, machine: int, minutes: int) -> None:
        """Start the agent with SQL, this long ago."""
        self.fleet.change(
            self.machines[machine],
            f"INSERT INTO machine_agent_started VALUES ('{self.machines[machine]}', "
            f"clock_timestamp() - interval '{minutes} minutes', decode(repeat('00', 32), 'hex')) "
            "ON CONFLICT (machine_id) DO UPDATE SET agent_started_at = excluded.agent_started_at",
        )

    def not_back(self, machine: int, minutes: int, tried: bool) -> None:
        """Let it be expected back since ten minutes ago, until in *minutes*, with a failed agent start if *tried*."""
        machine_id = self.machines[machine]
        backoff = (
            f"INSERT INTO work_backoff VALUES ('{machine_id}', 'ShepherdAgentStart', clock_timestamp(), '?', 60) "
            "ON CONFLICT (machine_id, process) DO UPDATE SET last_interval_seconds = 60"
        )
        self.fleet.change(
            machine_id,
            f"DELETE FROM machine_agent_started WHERE machine_id = '{machine_id}'",
            f"DELETE FROM machine_grace WHERE machine_id = '{machine_id}'",
            f"INSERT INTO machine_grace VALUES ('{machine_id}', clock_timestamp() - interval '10 minutes', "
            f"clock_timestamp() + interval '{minutes} minutes')",
            *([backoff] if tried else []),
        )

    def drop(self, machine: int, tag: str) -> None:
        """Delete a fact."""
        self.fleet.change(
            self.machines[machine], f"DELETE FROM machine_{tag} WHERE machine_id = '{self.machines[machine]}'"
        )

    def request(self, machine: int, generation: int) -> None:
        """Request an installation."""
        self.fleet.request_installation(self.machines[machine], generation)

    def report(self, machine: int, generation: int, result: str) -> None:
        """Record the report of an installation."""
        self.fleet.report_installation(self.machines[machine], generation, result)

    def attempt(self, which: int) -> None:
        """Record a step, as the Recoverer does before it takes it."""
        recoveries = [each for each in self.held if each[1].process is Process.RECOVERY]
        if not recoveries:
            return
        session, held = recoveries[which % len(recoveries)]
        with suppress(SessionExpired):
            remediation.record_attempts(session, {held: NextStep(Step(REBOOT, 1, defaults.TIMEOUTS), 1)})

    # The operators, and time.

    def retry(self, machine: int, process: Process | None) -> None:
        """End backoffs."""
        remediation.retry(self.fleet.connection, self.machines[machine], reason="me: ?", process=process)

    def unquarantine(self, machine: int) -> None:
        """End the quarantine of a machine."""
        remediation.unquarantine(self.fleet.connection, self.machines[machine], reason="me: ?")

    def pause(self, machine: int | None, process: Process | None, provider: str | None, seconds: int | None) -> None:
        """Pause some scope."""
        machine_id = None if machine is None else self.machines[machine]
        self.pauses.append(
            pauses.pause(
                self.fleet.connection,
                owner="me",
                reason="?",
                machine_id=machine_id,
                process=process,
                provider=provider,
                seconds=seconds,
            )
        )

    def resume(self, which: int) -> None:
        """End one of the pauses."""
        if self.pauses:
            pauses.resume(self.fleet.connection, self.pauses.pop(which % len(self.pauses)))

    def time(self, minutes: int) -> None:
        """Let time pass; sessions that are not renewed expire."""
        self.fleet.pass_time(60 * minutes)
        self.held = [(session, _earlier(held, 60 * minutes)) for session, held in self.held]

    def compare(self) -> None:
        """Check in a rolled-back transaction that claims return what the facts say."""
        connection = self.fleet.connection

        self.compared += 1
        asked = self.machines[self.compared % MACHINES]

        def unit() -> tuple[Found, list[Process], Found, int]:
            # A claim postpones a machine of an expired session by five seconds, until the session is reaped.
            session = self.fleet.open_session(SESSION_SECONDS)
            self.fleet.pass_time(6, connection.script)
            plain = {loop: sorted(plainly_eligible(connection._connected().run, loop)) for loop in LOOPS}
            verdicts = explain.why(connection, asked)[0]
            told = [verdict.process for verdict in verdicts if verdict.eligible]
            snapshot, handed_out = self._snapshot(session), {}
            if snapshot.idle:
                assert not work.claim(session, Process.RECOVERY, PROVIDER, MACHINES).examined
            for loop in LOOPS:  # a machine may be due for both, and is returned for the other
                found = claimed(session, loop)
                handed_out[loop] = sorted(ids(found))
                if found:
                    work.cancel(session, found)
            return plain, told, handed_out, snapshot.claimable

        plain, told, handed_out, due = connection.dry_run(unit)
        assert handed_out == plain
        assert told == [loop for loop in LOOPS if asked in plain[loop]], "what people are told must be what claims do"
        # The Recoverer claims no more than it has counted. Machines under a pause of everything are counted, too.
        assert due >= len(plain[Process.RECOVERY])
        if not self.pauses and not suspension.suspensions(connection):
            assert due == len(plain[Process.RECOVERY])


def _earlier(held: work.Work, seconds: int) -> work.Work:
    """Return the work as it is after this time has passed."""
    return replace(held, due_at=held.due_at - timedelta(seconds=seconds))


machine = st.integers(0, MACHINES - 1)
session = st.integers(0, SESSIONS - 1)
which = st.integers(0, 5)
generation = st.integers(1, 2)
loop = st.sampled_from(LOOPS)


def step(name: str, *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    """Return the strategy for one method of History with its arguments."""
    return st.tuples(st.just(name), *arguments)


# Claims and time come often: they are what moves due rows.
minutes = step("time", st.sampled_from([1, 2, 5, 10, 20, 30]))
claims = step("claim", session, loop, st.integers(1, MACHINES))
snapshots = step("snapshot", session, loop)
ends = step("end", which, st.sampled_from(["do it", "do it", "fail", "fail", "cancel", "give up"]))
steps = st.one_of(
    minutes,
    minutes,
    claims,
    claims,
    snapshots,
    snapshots,
    ends,
    ends,
    step("access", session, machine),
    step("renew", session),
    step("close", session),
    step("heartbeat", machine),
    step("heartbeat", machine),
    step("agent", machine, st.sampled_from([0, 15, 30])),
    step("not_back", machine, st.sampled_from([-5, 5, 20]), st.booleans()),
    step("drop", machine, st.sampled_from(["agent_started", "agent_heartbeat", "os_installation_request"])),
    step("request", machine, generation),
    step("report", machine, generation, st.sampled_from(["Success", "Error"])),
    step(
        "pause",
        st.none() | machine,
        st.none() | loop,
        st.sampled_from([None, PROVIDER, "equinix"]),
        st.sampled_from([None, 300, 1200]),
    ),
    step("resume", which),
    step("attempt", which),
    step("retry", machine, st.none() | loop),
    step("unquarantine", machine),
    step("survey", session),
    step(
        "suspend", session, st.sampled_from([[], [], [HERE], [WHOLE_PROVIDER], [HERE, WHOLE_PROVIDER], ["elsewhere"]])
    ),
)


@settings(
    max_examples=settings().max_examples // 6,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(steps, min_size=8, max_size=40))
def test_claims_match_the_facts_after_any_history(fleet: Fleet, history: list[tuple[Any, ...]]) -> None:
    """A claim returns what the plain query over the facts does. A failure prints the shortest history that fails."""
    happening = History(fleet)
    for name, *arguments in history:
        getattr(happening, name)(*arguments)
        happening.compare()
