"""
Kill every loop at its external side effects, and check that the fleet converges afterwards.

Two crash points of each scenario; ``make chaos`` tries all, and the next invocation both soon and late.
``CHAOS_SEED=N`` repeats the sample of a seed.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from uuid import uuid4

import pytest
from shepherd_core.domain.clock import SystemClock
from shepherd_core.providers.equinix.objects import token_tag

from simulator.environment.postgres import Postgres
from simulator.machines.pool import MachinePool
from tests.chaos.crash_points import KillAt, Points, alive
from tests.chaos.explore import OUTAGE_SECONDS, SOON_SECONDS, Explored, explore, explore_pairs, explore_sample, invoke
from tests.chaos.invariants import INVARIANTS, violations
from tests.chaos.sample import SEED, WHOLE, chance, drawn, more
from tests.chaos.scenarios.fleet_operation import SshBrake
from tests.chaos.scenarios.loops import AgentStarts, Decommissioning, Provisioning, Reports, Scenario, Updates
from tests.chaos.scenarios.recoveries import Looks, ProviderOutage, Reboots, Recoveries
from tests.chaos.stage.environment import PREFIX, Environment
from tests.integration.chaos.conftest import Check
from tests.support.bmdb.fleet import Fleet

PAIRS = 3

# A killed thread does not close its sockets, as the operating system does for a process.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def _explore(scenario: Scenario, check: Check, gaps: Iterable[float] = (OUTAGE_SECONDS, SOON_SECONDS)) -> None:
    for gap in drawn(gaps, scenario.name):
        key = (scenario.name, gap)
        explored = explore(scenario, gap) if WHOLE else explore_sample(scenario, gap, chance(key))
        check(explored)
        assert explored.kills >= 2


@pytest.mark.parametrize(
    "make",
    [SshBrake, Recoveries, Decommissioning, ProviderOutage, Looks, Reboots, Reports, Provisioning, Updates],
    ids=lambda make: make.name,
)
def test_a_loop_killed_at_any_effect_keeps_every_promise(
    real_time: Fleet, make: Callable[[Fleet], Scenario], check: Check
) -> None:
    """Otherwise a machine is paid for and not used, a healthy one is rebooted, or a report is lost."""
    _explore(make(real_time), check)


def test_a_provisioner_killed_twice_creates_each_machine_once(real_time: Fleet, check: Check) -> None:
    """The repair of the first kill may be killed as well."""
    scenario = Provisioning(real_time)
    explored = explore_pairs(scenario, Random(SEED), more(PAIRS, 0.15))
    check(explored)
    assert explored.kills > PAIRS


def test_an_initializer_killed_at_any_effect_records_the_agents_key(
    real_time: Fleet, racked: tuple[MachinePool, str], tmp_path: Path, check: Check
) -> None:
    """The heartbeats of an agent whose key is not recorded are refused."""
    _explore(AgentStarts(real_time, *racked, tmp_path), check, [OUTAGE_SECONDS])


def test_a_killed_invocation_has_no_further_effect(real_time: Fleet) -> None:
    """A kill that let a ``finally`` close the session would prove nothing about real ones."""
    scenario = Provisioning(real_time)
    with closing(scenario.arrange()) as environment:
        kill = KillAt(20)
        with Points(kill) as points:
            assert alive(lambda: scenario.tick(environment, points)) is None
        assert kill.killed
        assert len(kill.names) == 20
        assert real_time.sql("SELECT count(*) FROM sessions") == [[1]]


SESSION = (
    "INSERT INTO sessions (component_name, runtime_info, interval_seconds, deadline) "
    "VALUES ('a', '', 60, now() + interval '1 hour')"
)


@pytest.fixture(scope="module")
def recovered(postgres: Postgres) -> Iterator[Environment]:
    """Return an environment after an undisturbed invocation of the Recoverer, with no promise broken."""
    fleet = Fleet(postgres.new_database(), SystemClock())
    scenario = Recoveries(fleet)
    environment = scenario.arrange()
    assert invoke(scenario, environment, Explored(), KillAt()) == []
    yield environment
    environment.close()
    fleet.close()


@pytest.mark.parametrize(
    ("damage", "promise"),
    [
        ("UPDATE machine_rebooted SET boot_wait_until = now() + interval '1 day'", "no_machine_waits_without_end"),
        ("DELETE FROM recovery_policy", "no_machine_waits_without_end"),
        (("DELETE FROM pauses; INSERT INTO ready_seen SELECT machine_id, process, 'epoch' FROM machine_eligibility "
         "WHERE ready"), "no_ready_machine_is_left"),
        ("DELETE FROM work_history WHERE event = 'Finished'", "every_started_work_ends_once"),
        ("UPDATE work_history SET event = 'Failed' WHERE event = 'Finished'", "every_failure_names_its_cause"),
        ("DELETE FROM work_history WHERE event = 'Attempted'", "every_effect_is_explained_by_a_record"),
        ("UPDATE machine_quarantine SET quarantined_at = 'epoch'", "a_quarantined_machine_is_not_touched"),
        ("UPDATE work_history SET timestamp = timestamp + interval '1 hour' WHERE event = 'Failed'",
         "an_expired_session_commits_nothing"),
        ((f"{SESSION}; ALTER TABLE work DROP CONSTRAINT work_pkey; "
         "INSERT INTO work SELECT m.machine_id, p, s.session_id FROM sessions s, "
         "(SELECT machine_id FROM machines LIMIT 1) m, "
         "unnest(ARRAY['ShepherdAgentStart', 'ShepherdRemoval']) p"), "no_machine_has_two_live_works"),
        ((f"{SESSION}; INSERT INTO work SELECT m.machine_id, 'ShepherdRemoval', s.session_id, now() FROM sessions s, "
         "(SELECT machine_id FROM machines LIMIT 1) m"), "every_started_work_ends_once"),
        (("ALTER TABLE work DROP CONSTRAINT work_session; "
         "INSERT INTO work SELECT machine_id, 'ShepherdRemoval', machine_id FROM machines LIMIT 1"),
         "related_rows_come_and_go_together"),
        ((f"{SESSION}; INSERT INTO work SELECT m.machine_id, 'ShepherdRecovery', s.session_id FROM sessions s, "
         "(SELECT machine_id FROM machine_agent_heartbeat ORDER BY agent_heartbeat_at DESC LIMIT 1) m; "
         "INSERT INTO work_history (machine_id, process, event) SELECT machine_id, process, 'Started' FROM work"),
         "no_healthy_machine_is_rebooted"),
        (("INSERT INTO work_history (machine_id, process, event, step) "
         "SELECT gen_random_uuid(), 'ShepherdRecovery', 'Attempted', 'reboot' FROM generate_series(1, 20)"),
         "no_more_machines_are_interrupted_than_the_budget_permits"),
        (("INSERT INTO sessions (session_id, component_name, runtime_info, interval_seconds, deadline) "
         "SELECT session_id, 'a', '', 60, now() FROM ticks"), "every_tick_is_recorded_when_its_session_ends"),
        ("DELETE FROM ticks", "every_tick_is_recorded_when_its_session_ends"),
        ("UPDATE ticks SET counts = '{\"finished\": 99}'", "every_tick_is_recorded_when_its_session_ends"),
        ("INSERT INTO machine_creation_intent SELECT machine_id, provider FROM machine_provided LIMIT 1",
         "related_rows_come_and_go_together"),
        (("INSERT INTO machine_quarantine SELECT machine_id, now(), '?', 'steps-used-up' FROM machines LIMIT 1; "
         "INSERT INTO work_history (machine_id, process, event) "
         "SELECT machine_id, 'ShepherdRecovery', 'Quarantined' FROM machine_quarantine"),
         "no_machine_is_quarantined_untried"),
        ("UPDATE work_history SET event = 'NotTaken' WHERE event = 'Started'", "every_effect_is_explained_by_a_record"),
        ("UPDATE pauses SET machine_id = (SELECT machine_id FROM work_history LIMIT 1), created_at = 'epoch'",
         "a_paused_machine_is_not_touched"),
    ],
)  # fmt: skip
def test_each_invariant_fails_on_damaged_rows(recovered: Environment, damage: str, promise: str) -> None:
    recovered.fleet.sql("BEGIN")
    try:
        recovered.fleet.sql(damage)
        assert promise in {found.split(":")[0] for found in violations(recovered)}
    finally:
        recovered.fleet.sql("ROLLBACK")


def test_invariants_see_what_the_provider_has(real_time: Fleet) -> None:
    """Not only what the BMDB says of it: machines that nobody made, made too often or too late, or released."""
    with closing(Environment(real_time)) as environment:
        known, released = real_time.bare_machine(), real_time.bare_machine()
        real_time.sql(
            "INSERT INTO machine_tombstone VALUES (:id, 'Forgotten', 'equinix', 'gone', '?', '?')", id=released
        )
        assert violations(environment, watched=True) == []
        environment.limit, environment.to_release = 2, {"gone": released}
        for machine_id in (known, known, uuid4()):
            environment.api.add_active_device(f"{PREFIX}late", [token_tag(machine_id)], racked=False)
        assert {found.split(":")[0] for found in violations(environment, watched=True)} == {
            "no_machine_is_created_twice",
            "no_more_machines_than_the_limit",
            "every_effect_is_explained_by_a_record",
            "every_release_is_explained_by_a_record",
            "no_effect_without_a_live_session",
        }


def test_the_reliability_page_lists_every_invariant(request: pytest.FixtureRequest) -> None:
    page = (request.config.rootpath / "docs" / "reliability.md").read_text()
    section = page.partition("## What is promised")[2].partition("\n## ")[0]
    assert [name for name in INVARIANTS if f"`{name}`" not in section] == []
