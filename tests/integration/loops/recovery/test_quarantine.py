"""Machines that recovery gave up on: no loop touches them, until an operator says so."""

from uuid import UUID

import pytest
from shepherd_core.bmdb.listings import provider_facts, provisioning
from shepherd_core.bmdb.machines import lookup, pauses
from shepherd_core.bmdb.recovery import explain, remediation
from shepherd_core.bmdb.recovery.explain import Block
from shepherd_core.domain.machine import Availability, Machine, Process, ProviderId, ProviderStatus
from shepherd_core.rules.provisioning import PlanLimits as ReconcileLimits
from shepherd_core.rules.provisioning import make_plan

from tests.support.bmdb.fleet import HOUR, PROVIDER, Fleet, claimed

START, RECOVER = Process.AGENT_START, Process.RECOVERY
LIMITS = ReconcileLimits(max_machines=50, chunk=20, drift_limit=1, assimilate=False, abandon_seconds=HOUR)


def quarantined(fleet: Fleet, cause: str = "enough") -> UUID:
    machine_id = fleet.unhealthy_machine()
    session = fleet.open_session()
    (held,) = claimed(session, RECOVER)
    assert remediation.quarantine(session, {held: cause}) == {machine_id}
    session.close()
    return machine_id


def unquarantine(fleet: Fleet, machine_id: UUID) -> bool:
    return bool(remediation.unquarantine(fleet.connection, machine_id, reason="me: mended"))


CHANGES = {
    "nothing": "SELECT 1",
    "a heartbeat": "UPDATE machine_agent_heartbeat SET agent_heartbeat_at = now()",
    "its agent's tags dropped": "DELETE FROM machine_agent_heartbeat; DELETE FROM machine_agent_started",
    "an installation wanted": "INSERT INTO machine_os_installation_request SELECT machine_id, 1, '' FROM machines",
    "asked to come back": "INSERT INTO machine_grace SELECT machine_id, 'epoch', 'epoch' FROM machines",
}


@pytest.mark.parametrize("change", CHANGES)
def test_no_loop_is_ever_handed_a_machine_in_quarantine(fleet: Fleet, change: str) -> None:
    """Not even if its facts change: a loop that comes back to it would undo what an operator is doing."""
    machine_id = quarantined(fleet)
    fleet.change(CHANGES[change])
    session = fleet.open_session(24 * HOUR)
    for seconds in (0, 5 * HOUR):
        fleet.pass_time(seconds)
        assert claimed(session, START) == claimed(session, RECOVER) == []
    verdicts = explain.why(fleet.connection, machine_id)
    assert [verdict.blocked_by for verdict in verdicts] == [Block.QUARANTINED] * 2


def listed(fleet: Fleet, machine_id: UUID) -> Machine:
    provider_id = ProviderId(str(lookup.show_machine(fleet.connection, machine_id).provider_id))
    return Machine(provider_id=provider_id, availability=Availability.KNOWN_USED, status=ProviderStatus.RUNNING)


def test_the_provisioner_counts_a_quarantined_machine_and_leaves_it(fleet: Fleet) -> None:
    """It occupies its capacity. An operator works on it, so that its absence from the listing is no drift."""
    fleet.sql("UPDATE machines SET machine_created_at = now() - interval '1 day'")
    machines = [quarantined(fleet) for _ in range(3)]
    fleet.sql("UPDATE machines SET machine_created_at = now() - interval '1 day'")
    ledger = provisioning.ledger(fleet.connection, PROVIDER)
    for listing in ([], [listed(fleet, machine_id) for machine_id in machines]):
        plan = make_plan(listing, ledger, LIMITS)
        assert (plan.managed, plan.set_aside, plan.take_back, plan.create) == (3, (), (), ())
    session = fleet.open_session()
    provisioning.set_aside(session, machines[0], "a plan from before")
    assert pauses.pauses_in_force(fleet.connection) == []


def test_the_updater_does_not_ask_about_a_machine_in_quarantine(fleet: Fleet) -> None:
    """It may be switched off for weeks, and would have the provider asked every minute."""
    machine_id = quarantined(fleet)
    fleet.sql("UPDATE machine_provided SET provider_status = 'Stopped'")
    assert provider_facts.check(fleet.connection, PROVIDER, HOUR).not_ready == 0
    assert provider_facts.known(fleet.connection, PROVIDER, everything=True) == []
    assert unquarantine(fleet, machine_id)
    assert provider_facts.check(fleet.connection, PROVIDER, HOUR).not_ready == 1
    assert [each.machine_id for each in provider_facts.known(fleet.connection, PROVIDER, everything=True)] == [
        machine_id
    ]
