"""Pauses: honoured inside the claim itself, so that no loop can forget them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from shepherd_core.bmdb import provisioning, queries, work
from shepherd_core.machine import Process

from tests.integration.fleet import PROVIDER, claimed, ids
from tests.integration.plain_eligibility import plainly_eligible

if TYPE_CHECKING:
    from typing import Any

    from shepherd_core.bmdb.connection import Connection

    from tests.integration.fleet import Fleet

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
    "all of it": ({"machine_id": "recovery", "process": RECOVER, "provider": PROVIDER}, {"recovery"}),
}


@pytest.mark.parametrize("scope", SCOPES)
def test_a_pause_holds_up_its_scope_and_nothing_else(fleet: Fleet, scope: str) -> None:
    """An operator who holds one machine must not stop the fleet, nor the other way round."""
    machines = {
        "start": fleet.provided_machine(),
        "other start": fleet.provided_machine(),
        "recovery": fleet.silent_machine(),
        "elsewhere": fleet.provided_machine("equinix"),
    }
    chosen, held_up = SCOPES[scope]
    if "machine_id" in chosen:
        chosen = {**chosen, "machine_id": machines[chosen["machine_id"]]}
    paused = queries.pause(fleet.connection, owner="me", reason="maintenance", **chosen)
    session = fleet.open_session()

    def handed_out() -> set[str]:
        found = [*claimed(session, START), *claimed(session, RECOVER), *claimed(session, START, provider="equinix")]
        return {name for name, machine_id in machines.items() if machine_id in ids(found)}

    plain = {
        *plainly_eligible(fleet.sql, START),
        *plainly_eligible(fleet.sql, RECOVER),
        *plainly_eligible(fleet.sql, START, "equinix"),
    }
    assert {name for name, machine_id in machines.items() if machine_id in plain} == set(machines) - held_up
    assert handed_out() == set(machines) - held_up
    assert queries.resume(fleet.connection, paused)
    assert handed_out() == held_up


def test_a_pause_ends_by_itself(fleet: Fleet) -> None:
    """Forgotten pauses are how fleets rot."""
    machine_id = fleet.provided_machine()
    queries.pause(fleet.connection, owner="me", reason="?", machine_id=machine_id, seconds=300)
    session = fleet.open_session(seconds=DAY)
    assert claimed(session, START) == []
    fleet.pass_time(295)
    assert claimed(session, START) == []
    fleet.pass_time(5)
    assert queries.pauses(fleet.connection) == []
    assert ids(claimed(session, START)) == [machine_id]


def test_the_longest_of_several_pauses_counts(fleet: Fleet) -> None:
    """Two operators have their reasons; ending one pause does not end the other."""
    machine_id = fleet.provided_machine()
    session = fleet.open_session(seconds=DAY)
    forever = queries.pause(fleet.connection, owner="me", reason="?", machine_id=machine_id)
    queries.pause(fleet.connection, owner="you", reason="?", machine_id=machine_id, seconds=600)
    assert claimed(session, START) == []
    assert queries.resume(fleet.connection, forever)
    assert claimed(session, START) == []
    fleet.pass_time(600)
    assert ids(claimed(session, START)) == [machine_id]


def test_a_resumed_machine_is_looked_at_at_once(fleet: Fleet) -> None:
    """A paused machine is looked at every ten minutes; whoever resumes it does not want to wait for that."""
    machine_id = fleet.provided_machine()
    session = fleet.open_session()
    paused = queries.pause(fleet.connection, owner="me", reason="?", machine_id=machine_id)
    assert claimed(session, START) == []
    assert work.claim(session, START, PROVIDER, 1).examined == 0, "it should be put off, or this proves nothing"
    assert queries.resume(fleet.connection, paused)
    assert ids(claimed(session, START)) == [machine_id]


def test_a_pause_that_is_lifted_behind_our_back_is_noticed_in_ten_minutes(fleet: Fleet) -> None:
    """Somebody may delete the row by hand."""
    machine_id = fleet.provided_machine()
    session = fleet.open_session(seconds=DAY)
    queries.pause(fleet.connection, owner="me", reason="?", machine_id=machine_id)
    assert claimed(session, START) == []
    fleet.sql("DELETE FROM pauses")
    fleet.pass_time(600)
    assert ids(claimed(session, START)) == [machine_id]


def test_many_paused_machines_do_not_starve_the_others(fleet: Fleet) -> None:
    """They have waited longest, but what was passed over once is not looked at again by every claim."""
    fleet.sql("INSERT INTO machines SELECT FROM generate_series(1, 250)")
    fleet.sql("INSERT INTO machine_provided SELECT machine_id, 'static', machine_id::text FROM machines")
    fleet.sql(
        "INSERT INTO machine_due SELECT machine_id, 'static', 'ShepherdAgentStart', machine_created_at FROM machines"
    )
    fleet.sql("INSERT INTO pauses (machine_id, owner, reason) SELECT machine_id, 'me', '?' FROM machines")
    machine_id = fleet.provided_machine()
    session = fleet.open_session()
    claims = [work.claim(session, START, PROVIDER, 100) for _ in range(4)]
    assert [claim.examined for claim in claims] == [100, 100, 51, 0]
    assert ids(claims[2].work) == [machine_id]


def test_work_under_way_goes_on_through_a_pause(fleet: Fleet) -> None:
    """Stopping it in the middle would be worse than letting it end."""
    machine_id = fleet.provided_machine()
    session = fleet.open_session()
    held = claimed(session, START)
    queries.pause(fleet.connection, owner="me", reason="?")
    assert work.finish(session, held) == {machine_id}
    assert claimed(session, START) == []


def test_pauses_in_force_are_told_with_their_reason(connection: Connection, fleet: Fleet) -> None:
    """Whoever finds the fleet standing still wants to know why, and whom to ask."""
    machine_id = fleet.provided_machine()
    queries.pause(connection, owner="me", reason="firmware", machine_id=machine_id, process=START, seconds=60)
    last = queries.pause(connection, owner="you", reason="fire", provider=PROVIDER)
    first, second = queries.pauses(connection)
    assert (first["owner"], first["reason"], first["machine_id"], first["process"]) == (
        "me",
        "firmware",
        machine_id,
        START,
    )
    assert first["expires_at"] > first["created_at"]
    assert (second["pause_id"], second["provider"], second["expires_at"]) == (last, PROVIDER, None)
    assert queries.resume(connection, last)
    assert not queries.resume(connection, last)
    assert [pause["owner"] for pause in queries.pauses(connection)] == ["me"]


@pytest.mark.parametrize(
    ("chosen", "creation"),
    [
        ({}, "paused by me: fire"),
        ({"provider": PROVIDER}, "paused by me: fire"),
        ({"provider": "equinix"}, None),
        ({"process": START}, None),
        ({"process": START, "provider": PROVIDER}, None),
        ({"seconds": -1}, None),
    ],
)
def test_a_pause_of_everything_or_of_its_provider_stops_the_provisioner(
    connection: Connection, chosen: dict[str, Any], creation: str | None
) -> None:
    """It works on no machine of the BMDB, so the claim cannot hold it up."""
    queries.pause(connection, owner="me", reason="fire", **chosen)
    assert provisioning.paused(connection, PROVIDER) == creation


def test_a_machine_that_the_provider_lost_is_set_aside_until_it_is_back(fleet: Fleet) -> None:
    """Set aside twice or taken back twice is the same; an operator's pause is not the Provisioner's to end."""
    machine_id = fleet.provided_machine()
    session = fleet.open_session()
    for _ in range(2):
        provisioning.set_aside(session, machine_id, "not listed")
    assert len(queries.pauses(fleet.connection)) == 1
    assert claimed(session, START) == []
    assert provisioning.ledger(fleet.connection, PROVIDER).provided[0].set_aside
    for _ in range(2):
        provisioning.take_back(session, machine_id)
    assert ids(claimed(session, START)) == [machine_id]

    queries.pause(fleet.connection, owner="me", reason="?", machine_id=machine_id)
    provisioning.take_back(session, machine_id)
    assert len(queries.pauses(fleet.connection)) == 1
