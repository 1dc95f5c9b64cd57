"""Overrides: during a suspension, as many machines as an operator allows are recovered, and not one more."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from shepherd_core.bmdb.connection import Connection
from shepherd_core.bmdb.recovery import explain, overrides, suspension
from shepherd_core.bmdb.recovery.explain import Block
from shepherd_core.bmdb.work import history
from shepherd_core.domain.errors.bmdb import SessionExpired
from shepherd_core.domain.health import WHOLE_PROVIDER
from shepherd_core.domain.machine import Process
from shepherd_core.telemetry import Metric

from tests.conftest import ManualClock
from tests.support.agents.heartbeats import record_heartbeat
from tests.support.bmdb.breaking_connection import BreakingConnection, Lost
from tests.support.bmdb.fleet import HOUR, PROVIDER, Fleet, claimed, ids
from tests.support.bmdb.recovery import MINUTE, TIMEOUTS, RecoveryEnvironment
from tests.support.command_line import CommandLine
from tests.support.waiting import WAIT_SECONDS

DARK = 12


class Dark(RecoveryEnvironment):
    """All machines are down, and recovery is suspended."""

    def __init__(self, fleet: Fleet, clock: ManualClock) -> None:
        super().__init__(fleet, clock)
        self.down = self.add_unhealthy(DARK)
        assert self.run()[Metric.RECOVERY_SUSPENDED] == 1

    def override(
        self, machines: int, location: str = WHOLE_PROVIDER, seconds: float = HOUR, connection: Connection | None = None
    ) -> None:
        """Let so many machines be taken."""
        made = overrides.override(
            connection or self.fleet.connection,
            provider=PROVIDER,
            location=location,
            machines=machines,
            owner="ana",
            reason="no power",
            seconds=seconds,
        )
        assert made is not None

    @property
    def rebooted(self) -> int:
        """Return how many machines were rebooted; each once."""
        assert set(self.provider.reboots.values()) <= {1}
        return len(self.provider.reboots)


@pytest.fixture
def env(fleet: Fleet, clock: ManualClock) -> Dark:
    """Return an environment in which recovery is suspended."""
    return Dark(fleet, clock)


def test_an_override_admits_its_number_of_machines_and_no_more(env: Dark) -> None:
    """The Recoverer goes on to say so, and why."""
    env.override(5)
    counts = env.run()
    assert (counts[Metric.FINISHED], counts[Metric.RECOVERY_SUSPENDED]) == (5, 1)
    for _ in range(3):
        assert env.tick()[Metric.CLAIMED] == 0
    assert env.rebooted == 5
    assert env.suspended() != {}


def test_the_longest_unhealthy_machines_come_first(env: Dark) -> None:
    """An operator can tell beforehand which they are."""
    longest = env.down[-1]
    env.fleet.sql(
        "UPDATE machine_agent_heartbeat SET agent_heartbeat_at = now() - interval '1 day' WHERE machine_id = :id",
        id=longest,
    )
    env.override(1)
    env.run()
    assert set(env.provider.reboots) == {env.provider_id(longest)}


def test_a_machine_that_reports_is_not_taken_however_it_is_overridden(env: Dark) -> None:
    """An override says that it is not our fault, and not that machines are down that are not."""
    env.override(DARK)
    for machine in env.down[:2]:
        record_heartbeat(env.fleet.connection, machine)
    # No step is over before all were checked: with fewer unhealthy machines, the suspension might end, see below.
    together = threading.Barrier(DARK - 2)
    env.provider.then = lambda _: together.wait(WAIT_SECONDS)
    env.run()
    assert env.rebooted == DARK - 2


def test_machines_of_an_override_wait_for_their_timeout_if_the_suspension_ends(env: Dark) -> None:
    """When most of them have been rebooted, the rest may be too few for a suspension; its end restarts the timeouts."""
    env.down += env.add_unhealthy(2)
    env.override(DARK)
    reporting = env.down[:4]
    for machine in reporting:
        record_heartbeat(env.fleet.connection, machine)
    first, unhealthy = 6, len(env.down) - len(reporting)
    numbers = itertools.count()
    ended = threading.Event()
    env.provider.before = lambda _: next(numbers) < first or ended.wait(WAIT_SECONDS)
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(env.run)
        env.fleet.wait_until("EXISTS (SELECT 1 FROM recovery_suspensions WHERE ended_at IS NOT NULL)")
        ended.set()
        run.result(WAIT_SECONDS)
    assert env.rebooted == first
    env.reporting = reporting
    for _ in range(int(TIMEOUTS.heartbeat_timeout_seconds) // MINUTE):
        env.tick()
    assert env.rebooted == unhealthy


def test_an_override_for_a_location_lets_nothing_through_elsewhere(env: Dark) -> None:
    """Also where recovery is suspended for the whole provider."""
    for machine in env.down[:4]:
        env.fleet.locate(machine, "fra")
    env.override(DARK, "fra")
    env.run()
    assert set(env.provider.reboots) == {env.provider_id(machine) for machine in env.down[:4]}


def test_the_override_of_a_location_is_used_before_that_of_the_provider(env: Dark) -> None:
    """Both together let through as many as both say."""
    for machine in env.down[:4]:
        env.fleet.locate(machine, "fra")
    env.override(3, "fra")
    env.override(2)
    env.run()
    env.tick()
    taken = {one["location"]: one["used"] for one in overrides.overrides(env.fleet.connection)}
    assert taken == {"fra": 3, WHOLE_PROVIDER: 2}
    assert env.rebooted == 5


def test_machines_outside_a_suspension_do_not_use_an_override(env: Dark) -> None:
    """An override may wait for the day on which it is needed."""
    suspension.set_suspensions(env.fleet.open_session(), PROVIDER, {})
    env.fleet.empty()
    env.add_reporting(30)
    lost = env.add_unhealthy(2)
    env.override(5)
    assert env.run()[Metric.FINISHED] == len(lost)
    assert overrides.overrides(env.fleet.connection)[0]["used"] == 0


def test_a_machine_outside_the_suspended_location_does_not_use_an_override(env: Dark) -> None:
    """Not even the longest unhealthy one: it is recovered without."""
    env.fleet.empty()
    suspended = {env.fleet.locate(env.fleet.unhealthy_machine(), "fra") for _ in range(2)}
    env.fleet.unhealthy_machine(24 * HOUR, 25 * HOUR)
    session = env.fleet.open_session()
    suspension.set_suspensions(session, PROVIDER, {"fra": "no power"})
    env.override(3)
    overrides.apply(session, PROVIDER)
    assert {row[0] for row in env.fleet.sql("SELECT machine_id FROM recovery_override_machines")} == suspended


@pytest.mark.parametrize("how", ["expired", "withdrawn"])
def test_when_an_override_ends_recovery_is_suspended_again(env: Dark, how: str) -> None:
    """Also for machines that it had let through and that were not taken yet."""
    env.override(5)
    session = env.fleet.open_session()
    assert sum(each.due for each in overrides.apply(session, PROVIDER)) == 5
    if how == "expired":
        env.fleet.sql("UPDATE recovery_overrides SET expires_at = clock_timestamp()")
    else:
        was = overrides.withdraw(env.fleet.connection, PROVIDER, WHOLE_PROVIDER)
        assert was is not None
        assert was["used"] == 5
        assert overrides.withdraw(env.fleet.connection, PROVIDER, WHOLE_PROVIDER) is None
    assert claimed(session, Process.RECOVERY, timeouts=TIMEOUTS) == []
    assert env.tick()[Metric.CLAIMED] == 0
    env.override(2)
    assert env.run()[Metric.FINISHED] == 2


def test_one_override_at_a_time_for_a_place(env: Dark) -> None:
    """Two operators who agree to take five machines must not take ten."""
    env.override(5)
    with pytest.raises(AssertionError):
        env.override(5)
    env.fleet.sql("UPDATE recovery_overrides SET expires_at = clock_timestamp()")
    together = threading.Barrier(2)

    def operator(machines: int) -> bool:
        connection = env.fleet.connect()
        together.wait(WAIT_SECONDS)
        made = overrides.override(
            connection, provider=PROVIDER, location=WHOLE_PROVIDER, machines=machines, owner="x", reason="y", seconds=60
        )
        return made is not None

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(operator, (1, 2))) == [False, True]


def test_a_run_killed_with_an_override_neither_uses_it_up_nor_exceeds_it(env: Dark) -> None:
    """A machine that was let through stays so; it is counted once."""
    env.override(5)
    for backoff in (30, 120, 480, 1920):
        dead = env.fleet.open_session()
        taken = overrides.apply(dead, PROVIDER)
        assert sum(each.due for each in taken) == 5
        claimed(dead, Process.RECOVERY, timeouts=TIMEOUTS)
        env.fleet.expire(dead)
        env.fleet.open_session().close()  # sweeps up
        env.fleet.pass_time(backoff)
        with pytest.raises(SessionExpired):
            overrides.apply(dead, PROVIDER)
    env.run()
    assert env.rebooted == 5
    assert overrides.overrides(env.fleet.connection)[0]["used"] == 5


def test_a_concurrent_run_counts_what_the_first_one_admitted(env: Dark) -> None:
    """Although it started before that was visible, and finds other due machines than the first run."""
    env.override(5)
    longest = env.down[:5]
    set_heard = (
        "UPDATE machine_agent_heartbeat SET agent_heartbeat_at = {} WHERE machine_id = ANY(CAST(:ids AS uuid[]))"
    )
    env.fleet.sql(set_heard.format("now() - interval '1 day'"), ids=longest)
    first, second = (env.fleet.connect() for _ in range(2))
    one, other = env.fleet.open_session(connection=first), env.fleet.open_session(connection=second)
    waits = threading.Thread(target=lambda: overrides.apply(other, PROVIDER))

    def unit() -> None:
        overrides.apply(one, PROVIDER)
        env.fleet.sql(set_heard.format("now()"), ids=longest)
        waits.start()
        env.fleet.wait_until_blocked()

    first.transact(unit)
    waits.join(WAIT_SECONDS)
    assert env.fleet.sql("SELECT used FROM recovery_overrides") == [[5]]
    assert env.fleet.sql("SELECT count(*) FROM recovery_override_machines") == [[5]]


def test_concurrent_runs_together_stay_within_an_override(env: Dark) -> None:
    """From the look to the reboot, both at once."""
    env.override(5)
    together = threading.Barrier(2)

    def run_once() -> None:
        connection = env.fleet.connect()
        together.wait(WAIT_SECONDS)
        env.run(connection=connection)

    with ThreadPoolExecutor(2) as pool:
        for each in [pool.submit(run_once) for _ in range(2)]:
            each.result()
    env.tick()
    assert env.rebooted == 5


@pytest.mark.parametrize("lost", ["request", "answer"])
def test_a_connection_that_breaks_takes_no_machine_twice(env: Dark, lost: Lost) -> None:
    """The statement runs again, and finds what it had let through."""
    env.override(5)
    with BreakingConnection(env.fleet.settings) as breaking:
        connection = env.fleet.connect(breaking.settings)
        session = env.fleet.open_session(connection=connection)
        overrides.apply(session, "equinix")  # prepares the statement
        breaking.lose(lost)
        taken = overrides.apply(session, PROVIDER)
    assert sum(each.due for each in taken) == 5
    assert env.fleet.sql("SELECT used FROM recovery_overrides") == [[5]]


def test_history_and_why_tell_that_it_was_overridden_and_by_whom(env: Dark) -> None:
    """An operator who finds a machine rebooted during a suspension wants to know whom to ask."""
    env.override(DARK)
    session = env.fleet.open_session()
    overrides.apply(session, PROVIDER)
    (_, verdict), _ = explain.why(env.fleet.connection, env.down[0])
    assert verdict.eligible
    assert set(ids(claimed(session, Process.RECOVERY, timeouts=TIMEOUTS))) == set(env.down)
    (started,) = history.read_history(env.fleet.connection, env.down[0])
    assert started["failed_cause"] == "although recovery is suspended, by ana: no power"
    overrides.withdraw(env.fleet.connection, PROVIDER, WHOLE_PROVIDER)
    session.close()
    (_, verdict), _ = explain.why(env.fleet.connection, env.down[0])
    assert verdict.blocked_by is Block.RECOVERY_SUSPENDED


def test_a_dry_run_shows_what_an_override_would_admit(env: Dark) -> None:
    """And uses nothing of it up."""
    env.override(5)
    planned = env.dry_run()
    assert (len(planned.work), len(planned.suspended)) == (5, DARK - 5)
    assert overrides.overrides(env.fleet.connection)[0]["used"] == 0


# The command line.


@pytest.fixture
def shepherdctl(env: Dark) -> CommandLine:
    """Return the command line of that environment."""
    for machine in env.down[:4]:
        env.fleet.locate(machine, "fra")
    return CommandLine(env.fleet.settings)


GIVEN = ("--provider", PROVIDER, "--reason", "rack without power", "--for", "2h", "--machines", "5")


def test_an_operator_overrides_looks_and_withdraws(env: Dark, shepherdctl: CommandLine) -> None:
    """From the first word to the last."""
    shown = shepherdctl.read("recovery", "override", *GIVEN, "--owner", "carol", "--location", "fra")
    assert "static, location fra" in shown
    env.run()
    (told,) = shepherdctl.load("status", status=3)["overrides"]
    assert (told["location"], told["machines"], told["used"], told["owner"]) == ("fra", 5, 4, "carol")
    (line,) = [line for line in shepherdctl.read("status", status=3).splitlines() if line.startswith("ends in 2 h")]
    assert " ".join(line.split()) == "ends in 2 h static location fra 4 of 5 carol rack without power"
    withdrawn = shepherdctl.load("recovery", "withdraw", "--provider", PROVIDER, "--location", "fra")
    assert (withdrawn["used"], withdrawn["machines"]) == (4, 5)
    assert shepherdctl.load("status", status=3)["overrides"] == []
    assert "rack without power" in shepherdctl.read("history", str(env.down[0]))


def test_an_override_that_is_used_up_says_so(env: Dark, shepherdctl: CommandLine) -> None:
    """Or its operator would wait for the next machine."""
    shepherdctl.read("recovery", "override", *GIVEN)
    env.run()
    assert "5 of 5, all" in shepherdctl.read("status", status=3)


def given(option: str, value: str) -> list[str]:
    """Return ``GIVEN`` with another value of *option*."""
    at = list(GIVEN).index(option)
    return [*GIVEN[: at + 1], value, *GIVEN[at + 2 :]]


@pytest.mark.parametrize(
    ("arguments", "status", "wanted"),
    [
        (["--provider", PROVIDER, "--for", "2h", "--machines", "5"], 2, "--reason"),
        (["--provider", PROVIDER, "--reason", "x", "--machines", "5"], 2, "--for"),
        (["--provider", PROVIDER, "--reason", "x", "--for", "2h"], 2, "--machines"),
        (["--reason", "x", "--for", "2h", "--machines", "5"], 2, "--provider"),
        (given("--reason", " "), 2, "' ' is not a reason"),
        (given("--for", "8d"), 2, "it must be at most 7d"),
        (given("--for", "soon"), 2, "is not a duration"),
        (given("--machines", "0"), 2, "greater than or equal to 1"),
        (given("--machines", "1001"), 2, "less than or equal to 1000"),
        (given("--provider", "statik"), 2, "not one of"),
        ([*GIVEN, "--location", "fraa"], 1, "static has no machine at 'fraa'; its machines are at: fra"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_an_override_that_is_not_clearly_meant_is_refused(
    env: Dark, shepherdctl: CommandLine, arguments: list[str], status: int, wanted: str
) -> None:
    """It ends in reboots, or in an operator who waits for them."""
    result = shepherdctl("recovery", "override", *arguments)
    assert (result.exit_code, result.stdout) == (status, "")
    assert wanted in " ".join(result.stderr.replace("│", " ").split())
    assert env.fleet.sql("SELECT count(*) FROM recovery_overrides") == [[0]]


def test_a_second_override_and_a_withdrawal_of_none_are_refused(shepherdctl: CommandLine) -> None:
    """With what to do instead."""
    assert shepherdctl("recovery", "withdraw", "--provider", PROVIDER).exit_code == 1
    shepherdctl.read("recovery", "override", *GIVEN)
    again = shepherdctl("recovery", "override", *GIVEN)
    assert again.exit_code == 1
    assert "there is already an override for static, the whole provider" in again.stderr
    assert "shepherdctl recovery withdraw" in again.stderr


def test_an_override_without_a_suspension_says_so(env: Dark, shepherdctl: CommandLine) -> None:
    """An operator who types it too early, or too late, must not think that machines are being rebooted."""
    assert shepherdctl("recovery", "override", *GIVEN).stderr == ""
    shepherdctl.read("recovery", "withdraw", "--provider", PROVIDER)
    suspension.set_suspensions(env.fleet.open_session(), PROVIDER, {})
    assert "recovery is not suspended there now" in shepherdctl("recovery", "override", *GIVEN).stderr
