"""
Death at the outside effects of every loop, and what becomes of the world afterwards.

A sample of the effects here, each of them in ``make chaos``. ``CHAOS_SEED=N`` repeats the sample of a seed.
"""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from shepherd_core.adapters import ssh_keys
from shepherd_core.domain.clock import SystemClock
from shepherd_core.providers.equinix.objects import token_tag

from simulator.machines.pool import MachinePool
from tests.chaos.crash_points import Death, Killed, Points, alive
from tests.chaos.explore import OUTAGE_SECONDS, SOON_SECONDS, Explored, explore, explore_pairs, invoke
from tests.chaos.invariants import INVARIANTS, violations
from tests.chaos.sample import SEED, first
from tests.chaos.scenarios import AgentStarts, Away, GivingUp, Overridden, Provisioning, Recoveries
from tests.chaos.stage.departures import Departures
from tests.chaos.stage.environment import World
from tests.chaos.stage.records import Installing, Reports, Updates
from tests.support.agents.machine_client import Client
from tests.support.bmdb.capacity import PREFIX
from tests.support.bmdb.fleet import Fleet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from simulator.environment.postgres import Postgres
    from tests.chaos.scenarios import Scenario

PAIRS = 3

# The dead close no sockets. The operating system does that for a process, and here nobody.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.mark.parametrize(
    ("make", "stride", "gap"),
    [
        pytest.param(Provisioning, 31, SOON_SECONDS, id="provisioner, soon"),
        pytest.param(Recoveries, 23, OUTAGE_SECONDS, id="recoverer"),
        pytest.param(Away, 31, OUTAGE_SECONDS, id="recoverer, provider away"),
        pytest.param(GivingUp, 23, OUTAGE_SECONDS, id="recoverer that gives up"),
        pytest.param(Overridden, 19, SOON_SECONDS, id="recoverer that is overridden"),
        pytest.param(Updates, 13, SOON_SECONDS, id="updater"),
        pytest.param(Reports, 19, SOON_SECONDS, id="agent_api"),
        pytest.param(Installing, 17, SOON_SECONDS, id="install"),
        pytest.param(Departures, 53, OUTAGE_SECONDS, id="operator"),
    ],
)
def test_whoever_dies_anywhere_loses_doubles_and_harms_nothing(
    real_time: Fleet, make: Callable[[Fleet], Scenario], stride: int, gap: float
) -> None:
    """A machine that is paid for and used by nobody, one that was healthy and is rebooted, a report that is lost."""
    explored = explore(make(real_time), stride=stride, first=first(stride), gap=gap)
    assert explored.broken == [], f"seed {SEED}"
    assert explored.deaths >= 2 * (explored.effects // stride) > 0


def test_a_provisioner_that_dies_anywhere_loses_and_doubles_nothing(real_time: Fleet) -> None:
    """A machine that was created and not recorded would be paid for by somebody and used by nobody."""
    explored = explore(Provisioning(real_time), stride=19, first=first(19))
    assert explored.broken == [], f"seed {SEED}"
    assert explored.deaths >= 2 * (explored.effects // 19) > 0


def test_a_provisioner_that_dies_twice_in_a_row_loses_and_doubles_nothing(real_time: Fleet) -> None:
    """What mends the first death can be cut off as well."""
    explored = explore_pairs(Provisioning(real_time), 45, Random(SEED), lambda pairs: pairs < PAIRS)
    assert explored.broken == [], f"seed {SEED}"
    assert explored.deaths > PAIRS


def test_an_initializer_that_dies_anywhere_leaves_agents_that_are_known_by_their_key(
    real_time: Fleet, tmp_path: Path
) -> None:
    """An agent whose key is not on record is never heard."""
    private_key = ssh_keys.generate()
    with MachinePool(tmp_path / "pool", 0, boot_seconds=0) as pool:
        client = Client(pool)
        client.authorized_key = ssh_keys.public_line(private_key)
        for name in ("a", "b"):
            client.rack(name)
        explored = explore(AgentStarts(real_time, pool, private_key, tmp_path), stride=17, first=first(17))
    assert explored.broken == [], f"seed {SEED}"
    assert explored.deaths >= 2 * (explored.effects // 17) > 0


def test_a_release_without_a_record_is_noticed(real_time: Fleet) -> None:
    """What the exploration of releases stands on."""
    scenario = Departures(real_time)
    world = scenario.arrange()
    try:
        with Points(Death()) as points:
            scenario.tick(world, points)
        assert violations(world) == scenario.missing(world) == []
        real_time.sql("UPDATE machine_tombstone SET how = 'Forgotten'")
        assert [found.split(":")[0] for found in violations(world)] == ["every_release_is_explained_by_a_record"]
    finally:
        world.close()


def test_the_dead_have_no_effect(real_time: Fleet) -> None:
    """A death that let a ``finally`` close its session would prove nothing about real ones."""
    scenario = Provisioning(real_time)
    world = scenario.arrange()
    try:
        death = Death(20)
        with Points(death) as points:
            assert alive(lambda: scenario.tick(world, points)) is None
        assert death.dead
        assert len(death.names) == 20
        assert real_time.sql("SELECT count(*) FROM sessions") == [[1]]
    finally:
        world.close()


def test_whoever_catches_his_death_is_found_out(real_time: Fleet) -> None:
    """What goes on after it was killed is explored no more, only spared."""

    class Careless(Provisioning):
        def tick(self, world: World, points: Points) -> object:
            with suppress(Killed):
                super().tick(world, points)
            return None

    scenario = Careless(real_time)
    world = scenario.arrange()
    try:
        assert invoke(scenario, world, Explored(), Death(5)) == ["somebody caught its death"]
    finally:
        world.close()


def test_an_invocation_that_nobody_disturbs_is_watched_at_every_effect(real_time: Fleet) -> None:
    """A promise that is broken for a moment is broken."""
    scenario = Recoveries(real_time)
    world = scenario.arrange()
    try:
        explored, death = Explored(), Death()
        assert invoke(scenario, world, explored, death) == []
        assert explored.checks == len(death.names) + 1
    finally:
        world.close()


@pytest.fixture(scope="module")
def recovered(postgres: Postgres) -> Iterator[World]:
    """Return a world after an invocation of the Recoverer that nobody disturbed, and that broke no promise."""
    fleet = Fleet(postgres.new_database(), SystemClock())
    scenario = Recoveries(fleet)
    world = scenario.arrange()
    assert invoke(scenario, world, Explored(), Death()) == []
    yield world
    world.close()
    fleet.close()


@pytest.mark.parametrize(
    ("harm", "promise"),
    [
        ("UPDATE machine_due SET process = NULL", "nobody_waits_for_ever"),
        ("UPDATE machine_due SET not_before = now() + interval '1 day'", "nobody_waits_for_ever"),
        ("UPDATE machine_due SET process = 'ShepherdAgentStart'", "a_due_row_leads_to_what_is_needed"),
        ("DELETE FROM work_history WHERE event = 'Finished'", "every_started_work_ends_once"),
        ("UPDATE work_history SET event = 'Failed' WHERE event = 'Finished'", "every_failure_names_its_cause"),
        ("DELETE FROM work_history WHERE event = 'Attempted'", "every_effect_is_explained_by_a_record"),
        ("INSERT INTO machine_quarantine SELECT machine_id, 'epoch', '?', '' FROM work_history WHERE event = 'Started'",
         "a_machine_in_quarantine_is_not_touched"),
        ("UPDATE work_history SET timestamp = timestamp + interval '1 hour' WHERE event = 'Failed'",
         "a_dead_session_commits_nothing"),
        (("INSERT INTO sessions (component_name, runtime_info, interval_seconds, deadline) "
         "VALUES ('a', '', 60, now() + interval '1 hour'); "
         "INSERT INTO work SELECT m.machine_id, p, s.session_id FROM sessions s, "
         "(SELECT machine_id FROM machines LIMIT 1) m, "
         "unnest(ARRAY['ShepherdAgentStart', 'ShepherdRecovery']) p"), "nobody_works_twice_on_a_machine"),
        (("INSERT INTO sessions (component_name, runtime_info, interval_seconds, deadline) "
         "VALUES ('a', '', 60, now() + interval '1 hour'); "
         "INSERT INTO work SELECT m.machine_id, 'ShepherdRecovery', s.session_id FROM sessions s, "
         "(SELECT machine_id FROM machine_agent_heartbeat ORDER BY agent_heartbeat_at DESC LIMIT 1) m; "
         "INSERT INTO work_history (machine_id, process, event) SELECT machine_id, process, 'Started' FROM work"),
         "no_healthy_machine_is_rebooted"),
        ("INSERT INTO recovery_suspensions SELECT provider, '', 'epoch', NULL, '?' FROM machine_provided LIMIT 1",
         "recovery_is_held_back_as_was_said"),
        (("INSERT INTO recovery_overrides (provider, location, machines, owner, reason, expires_at) "
         "VALUES ('equinix', '', 1, 'me', '?', now()); "
         "INSERT INTO recovery_override_machines (override_id, machine_id) "
         "SELECT override_id, machine_id FROM recovery_overrides, (SELECT machine_id FROM machines LIMIT 2) AS m; "
         "UPDATE recovery_overrides SET used = 2"), "recovery_is_held_back_as_was_said"),
        ("DELETE FROM machine_due WHERE machine_id = (SELECT machine_id FROM machine_due LIMIT 1)",
         "nothing_is_left_behind"),
        (("INSERT INTO machine_quarantine SELECT machine_id, now(), '?', '' FROM machines LIMIT 1; "
         "INSERT INTO work_history (machine_id, process, event) "
         "SELECT machine_id, 'ShepherdRecovery', 'Quarantined' FROM machine_quarantine"),
         "nobody_is_given_up_untried"),
        ("UPDATE work_history SET event = 'NotTaken' WHERE event = 'Started'", "every_effect_is_explained_by_a_record"),
        ("UPDATE pauses SET machine_id = (SELECT machine_id FROM work_history LIMIT 1), created_at = 'epoch'",
         "a_paused_machine_is_not_touched"),
    ],
)  # fmt: skip
def test_a_broken_promise_is_noticed(recovered: World, harm: str, promise: str) -> None:
    """An invariant that nothing breaks is no check."""
    recovered.fleet.sql("BEGIN")
    try:
        recovered.fleet.sql(harm)
        assert promise in {found.split(":")[0] for found in violations(recovered)}
    finally:
        recovered.fleet.sql("ROLLBACK")


def test_machines_at_the_provider_are_counted_and_told_apart(real_time: Fleet) -> None:
    """What is wrong there is seen there, whatever the BMDB says."""
    scenario = Provisioning(real_time)
    world = scenario.arrange()
    try:
        assert invoke(scenario, world, Explored(), Death()) == []
        (ours, *_) = (device for device in world.api.devices() if device.hostname.startswith(PREFIX))
        for _ in range(3):
            world.api.add_active_device(f"{PREFIX}again", ours.tags, racked=False)
        world.api.add_active_device(f"{PREFIX}nobody-knows", [token_tag(uuid4())], racked=False)
        broken = {found.split(":")[0] for found in violations(world)}
        assert broken == {
            "no_machine_is_doubled",
            "no_more_machines_than_the_limit",
            "every_effect_is_explained_by_a_record",
        }
    finally:
        world.close()


def test_an_effect_of_somebody_who_is_dead_is_noticed(real_time: Fleet) -> None:
    """The record may explain it, and it is one too many all the same: the successor may have had it already."""
    world = World(real_time, SystemClock())
    try:
        machine_id = real_time.provided_machine()
        assert violations(world, watched=True) == []
        world.api.add_active_device("late", [token_tag(machine_id)], racked=False)
        (found,) = violations(world, watched=True)
        assert found.startswith("no_effect_without_a_live_session: ")
    finally:
        world.close()


def test_every_promise_has_a_name_of_its_own() -> None:
    """Reports go by it."""
    assert len({each.name for each in INVARIANTS}) == len(INVARIANTS)
