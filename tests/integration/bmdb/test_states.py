"""The states of machines: what the BMDB says follows from the facts, and what becomes of them is what is drawn."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta
from itertools import product
from typing import NamedTuple
from uuid import UUID, uuid4

import pytest
from shepherd_core.bmdb.machines import lookup, overview
from shepherd_core.bmdb.machines.search import Search, matching
from shepherd_core.bmdb.wire import server
from shepherd_core.bmdb.work import work
from shepherd_core.domain.machine import Process
from shepherd_core.domain.states import MachineFacts, State, state_of

from shepherdctl.descriptions.state import Observer, observe_machine, with_pauses
from tests.support import defaults
from tests.support.bmdb.fleet import HOUR, PROVIDER, Fleet

UNWATCHED = "equinix"
"""A provider without a policy."""


class Combination(NamedTuple):
    """Facts about a machine; the times are seconds ago."""

    provider: str = PROVIDER
    provided: bool = True
    gone: State | None = None
    quarantined: bool = False
    installation: tuple[int | None, int | None, str] = (None, None, "")
    """The generations requested and reported, and the result."""
    started: int | None = None
    heard: int | None = None
    interval: int = 0

    def state(self, now: datetime) -> State:
        """Return the state by the rule."""
        requested, reported, result = self.installation
        return state_of(
            MachineFacts(
                provided=self.provided,
                decommissioned=self.gone,
                quarantined=self.quarantined,
                requested_generation=requested,
                installed_generation=reported if result == "Success" else None,
                agent_started_at=_ago(now, self.started),
                last_heartbeat_at=_ago(now, self.heard),
                report_interval_seconds=self.interval,
                timeouts=None if self.provider == UNWATCHED else defaults.HEALTH,
            ),
            now,
        )

    def rows(self, machine_id: UUID, now: datetime) -> dict[str, str | None]:
        """Return the values of its row in each table; None: it has no such row."""
        requested, reported, result = self.installation
        started, heard = _ago(now, self.started), _ago(now, self.heard)
        found = {
            "machines": "",
            "machine_provided": f", '{self.provider}', '{machine_id}'" if self.provided else None,
            "machine_creation_intent": None if self.provided or self.gone else f", '{self.provider}'",
            "machine_tombstone": self.gone and f", '{self.gone.title()}', '?', '?', NULL, NULL, '?', '?'",
            "machine_quarantine": ", now(), '?', ''" if self.quarantined else None,
            "machine_os_installation_request": requested and f", {requested}, ''",
            "machine_os_installation_report": reported and f", {reported}, '{result}', ''",
            "machine_agent_started": started and f", '{started}', decode(repeat('5e', 32), 'hex')",
            "machine_agent_heartbeat": heard and f", '{heard}', 0, '{heard}', {self.interval}",
            # What deletes an agent and leaves its heartbeat gives the machine a grace.
            "machine_grace": ", now(), now()" if heard and not started else None,
        }
        return {table: None if values is None else f"('{machine_id}'{values})" for table, values in found.items()}


COMBINATIONS = [
    Combination(*facts)
    for facts in product(
        (PROVIDER, UNWATCHED),
        (True, False),
        (None, State.FORGOTTEN, State.RELEASED),
        (False, True),
        ((None, None, ""), (None, 2, "Success"), (2, None, ""), (2, 2, "Error"), (2, 1, "Success"), (2, 2, "Success")),
        (None, 10, 1_000, 5_000),  # within both timeouts, within one, within none
        (None, 5, 800, 4_000),  # within the timeout, within that of a long interval, within none
        (0, 1_000),
    )
]


def plant(fleet: Fleet, combinations: Iterable[Combination]) -> dict[UUID, State]:
    """Plant a machine with each of these facts; return them with their states."""
    fleet.watch(PROVIDER)
    now = server.now(fleet.connection)
    planted = {uuid4(): each for each in combinations}
    rows: defaultdict[str, list[str]] = defaultdict(list)
    for machine_id, each in planted.items():
        for table, row in each.rows(machine_id, now).items():
            rows[table] += [] if row is None else [row]
    for table, values in rows.items():
        if values:
            fleet.sql(f"INSERT INTO {table} VALUES {', '.join(values)}")
    fleet.connection.transact(lambda: fleet.connection.run("reschedule", machine_ids=list(planted)))
    return {machine_id: each.state(now) for machine_id, each in planted.items()}


def _ago(now: datetime, seconds: int | None) -> datetime | None:
    return None if seconds is None else now - timedelta(seconds=seconds)


def test_the_bmdb_decides_the_state_by_the_rule_for_every_combination_of_facts(fleet: Fleet) -> None:
    """The rule can be read and is tested in Python; what loops and operators are told comes from the database."""
    states = plant(fleet, COMBINATIONS)
    assert dict(fleet.sql("SELECT machine_id, state FROM machine_states")) == states
    assert set(states.values()) == set(State)
    fleet.empty()  # some have facts that exclude each other


@pytest.mark.parametrize("exceptions", [0, 1_000_000])
def test_lists_and_counts_have_the_states_of_the_bmdb(fleet: Fleet, exceptions: int) -> None:
    """Two pages that contradict each other are both in doubt."""
    states = plant(fleet, (each for each in COMBINATIONS if each.gone is None))
    assert {each["machine_id"]: each["state"] for each in matching(fleet.connection)} == states
    for counts in (
        overview.count_machines(fleet.connection),
        fleet.connection.records("fleet_counts", ages=[], exceptions=exceptions),
    ):
        counted: Counter[State] = Counter()
        for each in counts:
            if each["state"] is not None:
                counted[each["state"]] += each["machines"]
        assert counted == Counter(states.values())
    fleet.empty()


def test_a_machine_is_listed_in_the_state_by_which_it_was_found(fleet: Fleet) -> None:
    """A list of unhealthy machines had running ones, if their timeout ended after the command had read the time."""
    fleet.unhealthy_machine()
    fleet.sql("UPDATE recovery_policy SET heartbeat_timeout_seconds = :s", s=2 * HOUR)
    (found,) = matching(fleet.connection, Search(states=(State.UNHEALTHY,)))
    observer = Observer(server.now(fleet.connection) - timedelta(minutes=1), [])
    assert with_pauses(found, observer)["state"] == State.UNHEALTHY
    assert observer.describe(found).plain.startswith("unhealthy")


@pytest.mark.parametrize("process", [Process.ACCESS, Process.UNIT_TEST_1])
def test_a_list_and_one_machine_mean_the_same_by_being_worked_on(fleet: Fleet, process: Process) -> None:
    """Only work that keeps loops away from the machine counts."""
    machine_id = fleet.provided_machine()
    work.start_work(fleet.open_session(), process, machine_id)
    (listed,) = matching(fleet.connection)
    shown, _ = observe_machine(fleet.connection, str(machine_id))
    assert listed["being_worked_on"] is shown["being_worked_on"] is (process is Process.ACCESS)


@pytest.mark.parametrize("how", ["Forgotten", "Released"])
def test_a_machine_that_is_gone_is_shown_as_gone(fleet: Fleet, how: str) -> None:
    """It is still known by its id."""
    machine_id = fleet.bare_machine()
    fleet.sql(
        "INSERT INTO machine_tombstone VALUES (:id, :how, 'static', 'x', NULL, NULL, 'me', '?')", id=machine_id, how=how
    )
    shown = lookup.show_machine(fleet.connection, machine_id)
    assert shown["state"] == how.lower()
    assert shown["state_since"] is not None
