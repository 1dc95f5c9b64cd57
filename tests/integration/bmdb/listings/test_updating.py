"""One Updater at a time for each provider, the fence for its writes, and what its statements read."""

from dataclasses import replace
from functools import partial
from uuid import UUID

import pytest
from shepherd_core.bmdb.listings import provider_facts
from shepherd_core.bmdb.listings.provider_facts import FactsChange, ListingStatus
from shepherd_core.bmdb.session import Session
from shepherd_core.domain.errors.bmdb import SessionExpired

from tests.support.bmdb.fleet import HOUR, PROVIDER, Fleet
from tests.support.bmdb.listings import facts, record

MOMENT = 0.4
"""Seconds: long enough to begin something within it, short enough to wait for its end."""


@pytest.fixture
def holder(fleet: Fleet) -> Session:
    session = fleet.open_session(connection=fleet.connect())
    assert provider_facts.begin(session, PROVIDER, None)
    return session


def a_change(fleet: Fleet) -> FactsChange:
    machine_id = fleet.provided_machine()
    record(fleet, machine_id)
    (known,) = (
        each
        for each in provider_facts.known(fleet.connection, PROVIDER, everything=True)
        if each.machine_id == machine_id
    )
    return FactsChange(known, replace(known.facts, location="fra"))


def location(fleet: Fleet, machine_id: UUID) -> str | None:
    return facts(fleet, machine_id)[2]


# --- one at a time ---


def test_one_of_two_that_saw_the_same_becomes_the_updater(fleet: Fleet) -> None:
    """Both may have seen that there was none, or the same expired session."""
    first, second, third = (fleet.open_session() for _ in range(3))
    assert provider_facts.begin(first, PROVIDER, None)
    assert not provider_facts.begin(second, PROVIDER, None)
    fleet.expire(first)
    assert provider_facts.begin(second, PROVIDER, first.session_id)
    assert not provider_facts.begin(third, PROVIDER, first.session_id)


def test_the_status_of_a_listing_names_its_holder(fleet: Fleet, holder: Session) -> None:
    fleet.provided_machine()
    fleet.provided_machine("equinix")
    check = partial(provider_facts.check, fleet.connection, PROVIDER, HOUR)
    assert check() == ListingStatus(1, due=True, holder=holder.session_id, holder_alive=True)
    fleet.pass_time(100)
    provider_facts.end(holder, PROVIDER)
    # It counts from its beginning: changes during the listing are not in it.
    assert fleet.sql("SELECT listed_at = began_at FROM provider_listings") == [[True]]
    assert check() == ListingStatus(1, due=False, holder=holder.session_id, holder_alive=True)
    fleet.expire(holder)
    assert check() == ListingStatus(1, due=False, holder=holder.session_id, holder_alive=False)
    fleet.pass_time(HOUR)
    assert check().due
    assert provider_facts.check(fleet.connection, "none", HOUR) == ListingStatus(
        0, due=True, holder=None, holder_alive=False
    )


@pytest.mark.parametrize("steps", [False, True])
def test_a_machine_that_failed_is_asked_about_if_steps_follow(fleet: Fleet, *, steps: bool) -> None:
    """Without a policy for it, its provider says nothing new, and each request counts."""
    machine_id, _ = fleet.provided_machine(), fleet.provided_machine("equinix")
    fleet.sql("UPDATE machine_provided SET provider_status = 'ProvisioningFailedPermanent'")
    fleet.sql("INSERT INTO recovery_policy VALUES ('static', 600, 1800, 1800, :steps)", steps=steps)
    for everything in (False, True):
        found = provider_facts.known(fleet.connection, PROVIDER, everything=everything)
        assert [each.machine_id for each in found] == [machine_id] * (steps or everything)


# --- the fence ---


def test_a_replaced_updater_neither_writes_nor_ends_the_listing(fleet: Fleet, holder: Session) -> None:
    """Its session may be alive after all; the other one has read the facts on record, and relies on them."""
    change = a_change(fleet)
    assert provider_facts.begin(fleet.open_session(), PROVIDER, holder.session_id)
    with pytest.raises(SessionExpired):
        provider_facts.write(holder, PROVIDER, [change])
    with pytest.raises(SessionExpired):
        provider_facts.end(holder, PROVIDER)
    assert location(fleet, change.known.machine_id) == "ams"
    assert fleet.sql("SELECT listed_at FROM provider_listings") == [[None]]


def test_a_statement_that_waited_beyond_the_deadline_writes_nothing(fleet: Fleet, holder: Session) -> None:
    """It compares the deadline when it has the provider's row, not when it began."""
    change = a_change(fleet)
    fleet.die_in(MOMENT, holder)
    with pytest.raises(SessionExpired):
        fleet.held_up(
            "UPDATE provider_listings SET began_at = began_at",
            lambda: provider_facts.write(holder, PROVIDER, [change]),
            lambda: fleet.wait_until_dead(holder),
        )
    assert location(fleet, change.known.machine_id) == "ams"


def test_a_write_renews_the_session_and_may_be_repeated(fleet: Fleet, holder: Session) -> None:
    """All chunks together may take longer than a session's lease."""
    change = a_change(fleet)
    fleet.sql("UPDATE sessions SET deadline = clock_timestamp() + interval '1 minute'")
    assert [provider_facts.write(holder, PROVIDER, [change]) for _ in range(2)] == [[change], [change]]
    assert fleet.sql("SELECT deadline > clock_timestamp() + interval '50 minutes' FROM sessions") == [[True]]
    assert fleet.sql("SELECT deadline <= clock_timestamp() + interval '1 hour' FROM sessions") == [[True]]
    assert location(fleet, change.known.machine_id) == "fra"
