"""What is decided follows from the kinds of failures, and from no text: names and sentences may change."""

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from shepherd_core.bmdb.machines import overview
from shepherd_core.bmdb.machines.search import Search, matching
from shepherd_core.domain.errors import Fault, ShepherdError
from shepherd_core.domain.errors.kinds import FailureKind
from shepherd_core.domain.errors.machine import SshHostKeyChanged
from shepherd_core.domain.errors.provider import ProviderError, ProviderForbidden, ProviderRefused, ProviderUnavailable
from shepherd_core.domain.remediation import AgentState
from shepherd_core.loops import look

from shepherdctl.descriptions.cures import cures
from tests.conftest import ManualClock
from tests.support.bmdb.fleet import Fleet
from tests.support.bmdb.recovery import OneMachine
from tests.support.errors import ALL
from tests.support.providers.fake_provider import refuse

HISTORY = "SELECT event, step, kind, fault, seen FROM work_history WHERE machine_id = :id ORDER BY timestamp"


@pytest.mark.parametrize("error", [ProviderRefused("422"), ProviderForbidden("403"), ProviderUnavailable("503")])
def test_renaming_changes_no_decision(fleet: Fleet, clock: ManualClock, error: ProviderError) -> None:
    usual = [*life(OneMachine(fleet, clock), error)]
    fleet.change("TRUNCATE machines CASCADE", "TRUNCATE work_history")
    names = [each.__name__ for each in ALL]
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(ShepherdError, "__str__", lambda _: "NotSupported: another sentence")
        for state in AgentState:
            changed.setitem(look.TEXTS, state, "another sentence")
        try:
            rename(f"Renamed{number}" for number in range(len(ALL)))
            assert [*life(OneMachine(fleet, clock), error)] == usual
        finally:
            rename(names)


def rename(names: Iterable[str]) -> None:
    for error, name in zip(ALL, names, strict=True):
        error.__name__ = name


def life(env: OneMachine, error: ProviderError) -> Iterator[Any]:
    env.provider.then, env.provider.answers = refuse(error), True
    for _ in range(14):
        env.take_elsewhere()
        env.watch(20, every=10)
        env.take_elsewhere()
        env.start_agent(error=SshHostKeyChanged("another"))
    yield env.fleet.sql(HISTORY, id=env.machine)
    yield env.provider.asked
    yield env.fleet.sql("SELECT kind FROM machine_quarantine")
    failing = overview.failures(env.fleet.connection)
    yield [(each.loop, each.kind, each.count) for each in failing]
    yield [each.partition(": ")[2] for each in cures(each.kind for each in failing)]
    for kind in (error.kind, FailureKind.STEPS_USED_UP):
        found = matching(env.fleet.connection, Search(kinds=(kind,)))
        yield [machine.machine_id == env.machine for machine in found]


@pytest.mark.parametrize("domain", ["failure_kind", "failure_fault"])
def test_the_bmdb_knows_every_kind_and_fault(fleet: Fleet, domain: str) -> None:
    """A failure that it refused would keep its machine locked until the session expires."""
    (listed,) = fleet.sql(
        "SELECT array_agg(m[1]) FROM pg_constraint c JOIN pg_type t ON t.oid = c.contypid, "
        "regexp_matches(pg_get_constraintdef(c.oid), '''([a-z-]+)''', 'g') AS m WHERE t.typname = :domain "
        "AND t.typnamespace = current_schema()::regnamespace",
        domain=domain,
    )[0]
    assert set(listed) == set(FailureKind if domain == "failure_kind" else Fault)


def test_the_bmdb_knows_everything_that_a_look_can_see(fleet: Fleet) -> None:
    for state in AgentState:
        fleet.sql(
            "INSERT INTO work_history (machine_id, process, event, seen) "
            "VALUES (gen_random_uuid(), 'ShepherdRecovery', 'Looked', :seen)",
            seen=state,
        )
