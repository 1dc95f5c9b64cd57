"""Pauses are checked inside the claim statement, so that no loop can forget them."""

from typing import Any
from uuid import UUID

import pytest
from shepherd_core.bmdb.connection import Connection
from shepherd_core.bmdb.machines import labels, lookup, overview, pauses
from shepherd_core.bmdb.machines.search import matching
from shepherd_core.bmdb.recovery import explain
from shepherd_core.bmdb.recovery.explain import Block
from shepherd_core.domain.machine import Process

from tests.support.bmdb.fleet import PROVIDER, Fleet, claimed, ids

START, RECOVER = Process.AGENT_START, Process.RECOVERY
DAY = 24 * 3600

# What each scope holds up: of a paused and another machine that need an agent, the paused one's recovery, and one of
# another provider.
SCOPES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "everything": ({}, {"start", "other start", "recovery", "elsewhere"}),
    "a process": ({"process": START}, {"start", "other start", "elsewhere"}),
    "a provider": ({"provider": PROVIDER}, {"start", "other start", "recovery"}),
    "a process at a provider": ({"process": START, "provider": PROVIDER}, {"start", "other start"}),
    "a machine": ({"machine_id": "start"}, {"start"}),
    "a machine's process": ({"machine_id": "start", "process": START}, {"start"}),
    "a machine's other process": ({"machine_id": "start", "process": RECOVER}, set()),
    "a machine at its provider": ({"machine_id": "start", "provider": PROVIDER}, {"start"}),
    "a machine at another provider": ({"machine_id": "start", "provider": "equinix"}, set()),
    "a location": ({"location": "ams"}, {"other start", "recovery"}),
    "a location's process": ({"location": "ams", "process": START}, {"other start"}),
    "a label": ({"with_labels": ["role"]}, {"start", "recovery"}),
    "labels": ({"with_labels": ["role=db", "batch"]}, {"recovery"}),
    "a label at a location": ({"location": "ams", "with_labels": ["role=db"]}, {"recovery"}),
    "a label of another provider": ({"with_labels": ["role"], "provider": "equinix"}, set()),
    "a label that none has": ({"with_labels": ["role=web"]}, set()),
    "all of it": ({"machine_id": "recovery", "process": RECOVER, "provider": PROVIDER}, {"recovery"}),
}


def scoped(fleet: Fleet, scope: str) -> tuple[dict[str, UUID], dict[str, Any], set[str]]:
    """Return new machines, the arguments of a pause of that scope, and the machines that it covers."""
    machines = {
        "start": fleet.provided_machine(),
        "other start": fleet.provided_machine(),
        "recovery": fleet.unhealthy_machine(),
        "elsewhere": fleet.provided_machine("equinix"),
    }
    for located in ("other start", "recovery"):
        fleet.locate(machines[located], "ams")
    for labeled, added in (("start", {"role": "db"}), ("recovery", {"role": "db", "batch": ""})):
        labels.set_labels(fleet.connection, machines[labeled], added, [], reason="me")
    chosen, covered = SCOPES[scope]
    if "machine_id" in chosen:
        chosen = {**chosen, "machine_id": machines[chosen["machine_id"]]}
    return machines, chosen, covered


def told_paused(connection: Connection, machines: dict[str, UUID]) -> list[set[str]]:
    """Return the machines that each query for operators shows as paused; for counts, as many names."""
    names = {machine_id: name for name, machine_id in machines.items()}
    listed = {names[each.machine_id] for each in matching(connection) if each.pause_ids}
    shown = {name for name, each in machines.items() if lookup.show_machine(connection, each).pause_ids}
    blocked = {name: {each.blocked_by for each in explain.why(connection, id_)} for name, id_ in machines.items()}
    why = {name for name, by in blocked.items() if Block.PAUSED in by}
    counted = sum(count.paused for count in overview.fleet_counts(connection))
    return [listed, shown, why, set(sorted(listed)[:counted])]


@pytest.mark.parametrize("seconds", [None, 300, -1], ids=["for ever", "for a while", "over"])
@pytest.mark.parametrize("scope", SCOPES)
def test_claims_skip_what_a_pause_covers_and_queries_show_it(fleet: Fleet, scope: str, seconds: float | None) -> None:
    machines, chosen, covered = scoped(fleet, scope)
    pause_id = pauses.pause(fleet.connection, owner="me", reason="maintenance", seconds=seconds, **chosen)
    held_up = covered if seconds != -1 else set()
    session = fleet.open_session()

    def handed_out() -> set[str]:
        found = [*claimed(session, START), *claimed(session, RECOVER), *claimed(session, START, provider="equinix")]
        return {name for name, machine_id in machines.items() if machine_id in ids(found)}

    assert told_paused(fleet.connection, machines) == [held_up] * 4
    assert handed_out() == set(machines) - held_up
    assert pauses.resume(fleet.connection, pause_id)
    assert told_paused(fleet.connection, machines) == [set()] * 4
    assert handed_out() == held_up


@pytest.mark.parametrize(
    ("chosen", "covered"),
    [
        ({}, {"quarantined", "intended", "awaited"}),
        ({"provider": "equinix"}, {"intended"}),
        ({"process": START}, {"awaited"}),
        ({"process": RECOVER}, set()),
    ],
)
def test_a_pause_is_shown_at_machines_that_need_nothing_too(
    fleet: Fleet, chosen: dict[str, Any], covered: set[str]
) -> None:
    """A pause of everything applies to them too; a pause of a process does not, if the machine does not need it."""
    machines = {
        "quarantined": fleet.quarantine(fleet.unhealthy_machine()),
        "intended": fleet.bare_machine(),
        "awaited": fleet.provided_machine(),
    }
    fleet.sql("INSERT INTO machine_creation_intent VALUES (:id, 'equinix', NULL, now())", id=machines["intended"])
    fleet.change(f"INSERT INTO machine_grace VALUES ('{machines['awaited']}', now(), now())")
    pauses.pause(fleet.connection, owner="me", reason="maintenance", **chosen)
    listed, shown, _, counted = told_paused(fleet.connection, machines)
    assert listed == shown == counted == covered


def test_all_pauses_of_a_machine_are_shown_oldest_first(fleet: Fleet) -> None:
    machine_id = fleet.provided_machine()
    made = [
        pauses.pause(fleet.connection, owner="me", reason="?", **chosen)
        for chosen in ({"machine_id": machine_id}, {}, {"provider": PROVIDER}, {"process": START})
    ]
    (listed,) = matching(fleet.connection)
    assert listed.pause_ids == lookup.show_machine(fleet.connection, machine_id).pause_ids == made


def test_the_longest_of_several_pauses_counts(fleet: Fleet) -> None:
    machine_id = fleet.provided_machine()
    session = fleet.open_session(seconds=DAY)
    forever = pauses.pause(fleet.connection, owner="me", reason="?", machine_id=machine_id)
    pauses.pause(fleet.connection, owner="you", reason="?", machine_id=machine_id, seconds=600)
    assert claimed(session, START) == []
    assert pauses.resume(fleet.connection, forever)
    assert claimed(session, START) == []
    fleet.pass_time(600)
    assert ids(claimed(session, START)) == [machine_id]


def test_a_pause_that_is_over_is_not_the_same(fleet: Fleet) -> None:
    """Its time of creation would say that the machine has been paused all the while."""
    said: dict[str, Any] = {"owner": "me", "reason": "?", "machine_id": fleet.bare_machine(), "seconds": 60}
    first, again = (pauses.pause(fleet.connection, **said) for _ in range(2))
    fleet.pass_time(61)
    assert first == again != pauses.pause(fleet.connection, **said)


@pytest.mark.parametrize(
    "chosen", [{"location": "ams"}, {"with_labels": ["role=db"]}, {"location": "ams", "with_labels": ["role"]}]
)
def test_a_pause_by_facts_follows_the_facts(fleet: Fleet, chosen: dict[str, Any]) -> None:
    """It covers machines that get the label or come to the location later, and none that lose it."""
    machine_id = fleet.provided_machine()
    session = fleet.open_session()
    pauses.pause(fleet.connection, owner="me", reason="?", **chosen)
    fleet.locate(machine_id, "ams")
    labels.set_labels(fleet.connection, machine_id, {"role": "db"}, [], reason="me")
    assert claimed(session, START) == []
    fleet.locate(machine_id, "fra")
    labels.set_labels(fleet.connection, machine_id, {}, ["role"], reason="me")
    assert ids(claimed(session, START)) == [machine_id]
