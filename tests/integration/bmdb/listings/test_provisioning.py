"""What the Provisioner keeps in the BMDB: one Provisioner at a time, and no writes by an expired one."""

from collections.abc import Callable
from dataclasses import replace
from ipaddress import ip_address
from uuid import UUID, uuid4

import pytest
from shepherd_core.bmdb.listings import provisioning
from shepherd_core.bmdb.listings.provisioning import PreviousInvocation
from shepherd_core.bmdb.recovery.explain import Block, why
from shepherd_core.bmdb.session import Session
from shepherd_core.domain import records
from shepherd_core.domain.errors import ShepherdError
from shepherd_core.domain.errors.bmdb import SessionExpired
from shepherd_core.domain.machine import Availability, Machine, Process, ProviderId, ProviderStatus
from shepherd_core.domain.records import Intent, Provided

from tests.support.bmdb.fleet import HOUR, PROVIDER, Fleet, claimed

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


def writes(session: Session, intended: Intent) -> list[Callable[[], object]]:
    return [
        lambda: provisioning.create_intent(session, PROVIDER, "rack 2"),
        lambda: provisioning.provide(session, PROVIDER, intended.machine_id, MACHINE),
        lambda: provisioning.delete_intent(session, PROVIDER, intended),
    ]


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
    other = fleet.open_session()
    assert provisioning.take_lock(other, "equinix") == PreviousInvocation()
    machine_id = intend(session, PROVIDER, None)
    provisioning.provide(session, PROVIDER, machine_id, MACHINE)
    provisioning.penalize(session, PROVIDER, "rack 9", HOUR, ShepherdError("no power"))
    assert provisioning.ledger(fleet.connection, "equinix") == records.Ledger()
    with pytest.raises(SessionExpired):
        provisioning.create_intent(session, "equinix", None)


def test_there_is_one_provisioner_at_a_time(fleet: Fleet, session: Session) -> None:
    """However often the schedule fires. The holder may take the lock again; others may when its session has ended."""
    other = fleet.open_session()
    assert provisioning.take_lock(other, PROVIDER) is None
    assert provisioning.take_lock(session, PROVIDER) is not None
    for write in writes(other, Intent(uuid4(), None)):
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
