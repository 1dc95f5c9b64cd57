"""What Provisioner and Updater record of a provider: one of each at a time, and no writes by an expired one."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from ipaddress import ip_address
from uuid import UUID

import pytest
from shepherd_core.bmdb.listings import provider_facts, provisioning
from shepherd_core.bmdb.listings.provider_facts import FactsChange, ListingStatus
from shepherd_core.bmdb.listings.provisioning import PreviousInvocation
from shepherd_core.bmdb.recovery.explain import Block, why
from shepherd_core.bmdb.session import Session
from shepherd_core.domain import records
from shepherd_core.domain.errors import ShepherdError
from shepherd_core.domain.errors.bmdb import SessionExpired
from shepherd_core.domain.machine import Availability, Machine, Process, ProviderId, ProviderStatus
from shepherd_core.domain.records import Intent, Provided

from tests.support.bmdb.fleet import HOUR, MOMENT, PROVIDER, Fleet, claimed
from tests.support.bmdb.listings import facts, record

MACHINE = Machine(
    provider_id=ProviderId("machine 1"),
    availability=Availability.KNOWN_USED,
    address=ip_address("2001:db8::1"),
    reservation_id="rack 1",
    location="am6",
    status=ProviderStatus.RUNNING,
)


@pytest.fixture
def session(fleet: Fleet) -> Session:
    opened = fleet.open_session(connection=fleet.connect())
    assert provisioning.take_lock(opened, PROVIDER) == PreviousInvocation()
    return opened


def intend(session: Session, provider: str, capacity_id: str | None) -> UUID:
    machine_id = provisioning.create_intent(session, provider, capacity_id)
    assert machine_id is not None
    return machine_id


def test_an_intended_machine_is_claimed_when_it_may_have_booted(fleet: Fleet, session: Session) -> None:
    """The intent comes first: after a crash at the provider, a later pass adopts the machine by it."""
    machine_id = intend(session, PROVIDER, "rack 1")
    (intent,) = provisioning.ledger(fleet.connection, PROVIDER).intents
    assert (intent.machine_id, intent.capacity_id) == (machine_id, "rack 1")
    assert claimed(session, Process.AGENT_START) == []

    listed = replace(MACHINE, host_key="ssh-ed25519 A")
    provisioning.provide(session, PROVIDER, machine_id, listed, boot_seconds=300)
    ledger = provisioning.ledger(fleet.connection, PROVIDER)
    assert ledger.intents == ()
    (provided,) = ledger.provided
    usual = Provided(machine_id, ProviderId("machine 1"), None, "rack 1", ProviderStatus.RUNNING)
    assert provided == replace(usual, address=str(MACHINE.address), host_key="ssh-ed25519 A")
    assert fleet.sql("SELECT provider_ip_address, provider_location FROM machine_provided") == [["2001:db8::1", "am6"]]

    # An attempt that comes before it has booted costs a call and a failure; nothing else delays the machine.
    assert claimed(session, Process.AGENT_START) == []
    verdict = why(fleet.connection, machine_id)[0]
    assert (verdict.process, verdict.blocked_by) == (Process.AGENT_START, Block.BACKOFF)
    assert verdict.because == "waiting: it was only just created, and has yet to boot"
    fleet.pass_time(301)
    (work,) = claimed(session, Process.AGENT_START)
    assert (work.machine_id, work.last_interval_seconds) == (machine_id, None)


def test_a_rebound_machine_is_recorded_as_it_is_listed_now(fleet: Fleet, session: Session) -> None:
    listed = replace(
        MACHINE,
        provider_id=ProviderId("machine 2"),
        address=ip_address("192.0.2.2"),
        reservation_id="rack 2",
        location="fra",
        status=ProviderStatus.PROVISIONING_FAILED_PERMANENT,
        failure="its disk is broken",
        hardware="https://bmc2",
        labels={"role": "db"},
    )
    machine_id = intend(session, PROVIDER, None)
    provisioning.provide(session, PROVIDER, machine_id, MACHINE)
    provisioning.rebind(session, PROVIDER, machine_id, listed, "?")
    other = replace(listed, provider_id=ProviderId("machine 3"))
    provisioning.provide(session, PROVIDER, intend(session, PROVIDER, None), other)
    rebound, provided = fleet.sql("SELECT to_jsonb(p) - 'machine_id' FROM machine_provided p ORDER BY provider_id")
    assert rebound == [provided[0] | {"provider_id": "machine 2"}]
    assert rebound[0]["provider_hardware"] == "https://bmc2"


def test_providers_are_kept_apart(fleet: Fleet, session: Session) -> None:
    assert provisioning.take_lock(fleet.open_session(), "equinix") == PreviousInvocation()
    provisioning.provide(session, PROVIDER, intend(session, PROVIDER, None), MACHINE)
    provisioning.penalize(session, PROVIDER, "rack 9", HOUR, ShepherdError("no power"))
    assert provisioning.ledger(fleet.connection, "equinix") == records.Ledger()
    with pytest.raises(SessionExpired):
        provisioning.create_intent(session, "equinix", None)


def test_there_is_one_provisioner_at_a_time(fleet: Fleet, session: Session) -> None:
    """However often the schedule fires. The holder may take the lock again; others may when its session has ended."""
    other = fleet.open_session()
    assert provisioning.take_lock(other, PROVIDER) is None
    assert provisioning.take_lock(session, PROVIDER) is not None
    writes: list[Callable[[], object]] = [
        lambda: provisioning.create_intent(other, PROVIDER, "rack 2"),
        lambda: provisioning.provide(other, PROVIDER, UUID(int=1), MACHINE),
        lambda: provisioning.delete_intent(other, PROVIDER, Intent(UUID(int=1), None)),
    ]
    for write in writes:
        with pytest.raises(SessionExpired):
            write()
    provisioning.record_waiting(other, PROVIDER, 20, 50)
    assert provisioning.waiting(fleet.connection) == []
    session.close()
    assert provisioning.take_lock(other, PROVIDER) is not None


def test_penalized_capacity_is_not_used_for_its_time(fleet: Fleet, session: Session) -> None:
    """In the predecessor a restart forgot it. Penalizing again moves the end, and success ends it."""
    for _ in range(2):
        provisioning.penalize(session, PROVIDER, "rack 1", HOUR, ShepherdError("no power"))
        provisioning.penalize(session, PROVIDER, "rack 2", HOUR, ShepherdError("no power"))
        fleet.pass_time(HOUR - 60)
    assert provisioning.ledger(fleet.connection, PROVIDER).penalized == {"rack 1", "rack 2"}
    fresh = fleet.open_session()
    provisioning.take_lock(fresh, PROVIDER)
    provisioning.provide(fresh, PROVIDER, intend(fresh, PROVIDER, "rack 1"), MACHINE)
    assert provisioning.ledger(fleet.connection, PROVIDER).penalized == {"rack 2"}
    fleet.pass_time(60)
    assert provisioning.ledger(fleet.connection, PROVIDER).penalized == frozenset()


@pytest.fixture
def holder(fleet: Fleet) -> Session:
    session = fleet.open_session(connection=fleet.connect())
    assert provider_facts.begin(session, PROVIDER, None)
    return session


def a_change(fleet: Fleet) -> FactsChange:
    record(fleet, fleet.provided_machine())
    (known,) = provider_facts.known(fleet.connection, PROVIDER, everything=True)
    return FactsChange(known, replace(known.facts, location="fra"))


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
    never = ListingStatus(0, due=True, holder=None, holder_alive=False)
    assert provider_facts.check(fleet.connection, "none", HOUR) == never


@pytest.mark.parametrize("steps", [False, True])
def test_a_machine_that_failed_is_asked_about_if_steps_follow(fleet: Fleet, *, steps: bool) -> None:
    """Without a policy for it, its provider says nothing new, and each request counts."""
    machine_id, _ = fleet.provided_machine(), fleet.provided_machine("equinix")
    fleet.sql("UPDATE machine_provided SET provider_status = 'ProvisioningFailedPermanent'")
    fleet.sql("INSERT INTO recovery_policy VALUES ('static', 600, 1800, 1800, :steps)", steps=steps)
    for everything in (False, True):
        found = provider_facts.known(fleet.connection, PROVIDER, everything=everything)
        assert [each.machine_id for each in found] == [machine_id] * (steps or everything)


def test_a_replaced_updater_neither_writes_nor_ends_the_listing(fleet: Fleet, holder: Session) -> None:
    """Its session may be alive after all; the other one has read the facts on record, and relies on them."""
    change = a_change(fleet)
    assert provider_facts.begin(fleet.open_session(), PROVIDER, holder.session_id)
    with pytest.raises(SessionExpired):
        provider_facts.write(holder, PROVIDER, [change])
    with pytest.raises(SessionExpired):
        provider_facts.end(holder, PROVIDER)
    assert facts(fleet, change.known.machine_id)[2] == "ams"
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
    assert facts(fleet, change.known.machine_id)[2] == "ams"


def test_a_write_renews_the_session_and_may_be_repeated(fleet: Fleet, holder: Session) -> None:
    """All chunks together may take longer than a session's lease."""
    change = a_change(fleet)
    fleet.sql("UPDATE sessions SET deadline = clock_timestamp() + interval '1 minute'")
    assert [provider_facts.write(holder, PROVIDER, [change]) for _ in range(2)] == [[change], [change]]
    assert fleet.sql("SELECT deadline - clock_timestamp() BETWEEN '50 minutes' AND '1 hour' FROM sessions") == [[True]]
    assert facts(fleet, change.known.machine_id)[2] == "fra"
