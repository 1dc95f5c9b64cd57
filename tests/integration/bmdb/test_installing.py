from collections.abc import Callable
from typing import get_args
from uuid import UUID

import pytest
from shepherd_core.bmdb.agents import installation
from shepherd_core.bmdb.agents.installation import Installation
from shepherd_core.bmdb.connection import Connection
from shepherd_core.domain.pb.callback_pb2 import MetropolisInstallation

from tests.support.bmdb.breaking_connection import BreakingConnection, Lost
from tests.support.bmdb.fleet import Fleet

IMAGE = MetropolisInstallation(
    image_url="https://images.example.com/a.img", image_sha256=bytes(range(32)), node_parameters=b"\0opaque"
)
OTHER = MetropolisInstallation(image_url="https://images.example.com/b.img", image_sha256=bytes(32))


def ask(connection: Connection, machine_id: UUID, image: MetropolisInstallation = IMAGE) -> int | None:
    return installation.request(connection, machine_id, image, installation.load(connection, machine_id))


@pytest.mark.parametrize(
    ("requested", "reported", "generation"),
    [(None, None, 1), (1, None, 2), (1, 1, 2), (4, 2, 5), (2, 4, 5), (None, 7, 8), (2**53, None, 2**53 + 1)],
)
def test_a_request_is_newer_than_any_request_or_report(
    fleet: Fleet, connection: Connection, requested: int | None, reported: int | None, generation: int
) -> None:
    """An agent ignores older ones, and a report that is on its way must not answer a later request."""
    machine_id, other = fleet.started_machine(), fleet.started_machine()
    fleet.request_installation(other, 9)
    fleet.report_installation(other, 9)
    if requested is not None:
        fleet.request_installation(machine_id, requested)
    if reported is not None:
        fleet.report_installation(machine_id, reported)
    assert installation.load(connection, machine_id).pending is (requested is not None and requested != reported)
    assert ask(connection, machine_id) == generation
    found = installation.load(connection, machine_id)
    assert found.request is not None
    assert (found.request.generation, found.pending, found.next_generation) == (generation, True, generation + 1)


CHANGES: dict[str, Callable[[Fleet, UUID], None]] = {
    "another request": lambda fleet, machine_id: fleet.request_installation(machine_id, 2),
    "a report": lambda fleet, machine_id: fleet.report_installation(machine_id, 1, "Error"),
    "a success after all": lambda fleet, machine_id: fleet.report_installation(machine_id, 0),
}


@pytest.mark.parametrize("change", CHANGES)
def test_nothing_is_requested_when_something_came_in_between(fleet: Fleet, connection: Connection, change: str) -> None:
    """A request based on an old state would replace, or repeat, something that its operator never saw."""
    machine_id = fleet.started_machine()
    fleet.request_installation(machine_id, 1)
    fleet.report_installation(machine_id, 0, "Error")
    seen = installation.load(connection, machine_id)
    CHANGES[change](fleet, machine_id)
    before = installation.load(connection, machine_id)
    assert installation.request(connection, machine_id, IMAGE, seen) is None
    assert installation.load(connection, machine_id) == before


@pytest.mark.parametrize("asked_before", [False, True])
def test_a_request_that_waits_for_another_sees_its_change(fleet: Fleet, asked_before: bool) -> None:
    """There may be no request row yet: then the insertion waits for the other's, and the newest state counts."""
    machine_id = fleet.started_machine()
    if asked_before:
        fleet.request_installation(machine_id, 1)
    seen = installation.load(fleet.connection, machine_id)
    concurrent = fleet.connect()
    asked = fleet.held_up(
        f"INSERT INTO machine_os_installation_request VALUES ('{machine_id}', 2, '\\x1002') "
        "ON CONFLICT (machine_id) DO UPDATE SET generation = excluded.generation",
        lambda: installation.request(concurrent, machine_id, OTHER, seen),
    )
    assert asked is None
    assert installation.load(fleet.connection, machine_id).next_generation == 3


def test_a_request_dates_from_when_it_is_recorded(fleet: Fleet) -> None:
    machine_id, moments, concurrent = fleet.started_machine(), [], fleet.connect()
    fleet.held_up(
        "UPDATE machine_provided SET provider_status = provider_status",
        lambda: ask(concurrent, machine_id),
        lambda: moments.extend(fleet.sql("SELECT clock_timestamp()")[0]),
    )
    request = installation.load(fleet.connection, machine_id).request
    assert request is not None
    assert request.requested_at >= moments[0]


def test_a_machine_that_is_not_provided_gets_no_installation(fleet: Fleet, connection: Connection) -> None:
    """The Provisioner may still forget that machine, and rows that refer to it would prevent that."""
    assert ask(connection, fleet.bare_machine()) is None
    assert fleet.sql("SELECT * FROM machine_os_installation_request") == []


@pytest.mark.parametrize("lost", get_args(Lost))
def test_a_request_is_made_once_whatever_is_lost(fleet: Fleet, breaking: BreakingConnection, lost: Lost) -> None:
    """A blind repetition would be another generation: the machine would be installed twice."""
    machine_id = fleet.started_machine()
    breaking.lose(lost)
    assert installation.request(fleet.connect(breaking.settings), machine_id, IMAGE, Installation()) == 1
    assert fleet.sql("SELECT generation FROM machine_os_installation_request") == [[1]]


def test_a_lost_request_that_was_replaced_counts_as_refused(fleet: Fleet, breaking: BreakingConnection) -> None:
    machine_id = fleet.started_machine()
    breaking.lose("answer", meanwhile=lambda: ask(fleet.connection, machine_id, OTHER))
    assert installation.request(fleet.connect(breaking.settings), machine_id, IMAGE, Installation()) is None
    assert fleet.sql("SELECT generation FROM machine_os_installation_request") == [[2]]
