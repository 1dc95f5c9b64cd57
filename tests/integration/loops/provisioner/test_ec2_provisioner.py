"""The Provisioner between EC2 and the BMDB: what becomes of instances that are lost, and of those that end."""

from collections.abc import Callable, Iterator

import pytest
from shepherd_core.adapters import ssh_keys
from shepherd_core.bmdb.machines import pauses
from shepherd_core.domain.clock import Deadline
from shepherd_core.domain.machine import Process
from shepherd_core.providers.ec2.adapter import Ec2Provider
from shepherd_core.settings.providers.ec2 import Ec2Settings
from shepherd_core.telemetry import Metric

from tests.conftest import ManualClock
from tests.support.bmdb.capacity import intents, provided, provisioner
from tests.support.bmdb.fleet import HOUR, Fleet, claimed
from tests.support.providers.ec2_api import FLEET, IMAGE, Ec2Api, ec2_api, subnets

Run = Callable[..., dict[Metric, float]]

LIMIT = 3
OUR_LINE = ssh_keys.public_line(ssh_keys.generate())


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ec2Api]:
    with ec2_api() as api:
        monkeypatch.setenv("AWS_ENDPOINT_URL_EC2", api.server.url)
        yield api


@pytest.fixture
def run(api: Ec2Api, fleet: Fleet, clock: ManualClock) -> Run:
    settings = Ec2Settings(fleet=FLEET, limit=LIMIT, subnets=",".join(subnets()), image=IMAGE, machine_type="m5.metal")
    provider = Ec2Provider(settings, lambda: OUR_LINE, clock)

    def run(drift_limit: int = 1) -> dict[Metric, float]:
        found = provisioner(provider, fleet.connection, clock, boot_seconds=0, drift_limit=drift_limit)
        return found.run(Deadline(clock, 600), "a test")

    return run


def living(api: Ec2Api) -> set[str]:
    return {found.id for found in api.instances() if found._state.name != "terminated"}


def test_a_creation_without_answer_is_adopted_with_its_host_key(api: Ec2Api, fleet: Fleet, run: Run) -> None:
    """What is known of the key by then stands in a tag and nowhere else."""
    api.lost = {"RunInstances"}
    assert run()[Metric.CREATED] == 0
    api.lost = set()
    counts = run(drift_limit=0)
    assert (counts[Metric.INTENTS_COMPLETED], counts[Metric.CREATED]) == (1, LIMIT - 1)
    assert set(provided(fleet)) == living(api)
    assert fleet.sql("SELECT count(*) FROM machine_host_key") == [[LIMIT]]
    assert intents(fleet) == []


@pytest.mark.parametrize("ended", [1, LIMIT], ids=["one", "all"])
def test_instances_that_were_terminated_are_vanished_machines_and_are_replaced(
    api: Ec2Api, fleet: Fleet, run: Run, ended: int
) -> None:
    """EC2 itself reports that they are gone, so that this is no drift, also when EC2 does not list them any more."""
    run()
    fleet.pass_time(HOUR)
    gone = sorted(living(api))[:ended]
    for instance_id in gone:
        api.set_state(instance_id, "terminated", "Client.UserInitiatedShutdown")
    counts = run()
    assert (counts[Metric.CREATED], counts[Metric.DRIFTED], counts[Metric.DRIFT_LIMIT_EXCEEDED]) == (ended, ended, 0)
    known = provided(fleet)
    assert {pause.machine_id for pause in pauses.pauses_in_force(fleet.connection)} == {known[each] for each in gone}
    works = claimed(fleet.open_session(), Process.AGENT_START, provider="ec2")
    assert {work.provider_id for work in works} == living(api)

    api.hidden = set(gone)
    counts = run()
    assert (counts[Metric.CREATED], counts[Metric.DRIFTED]) == (0, ended)


def test_a_machine_that_ended_unrecorded_leaves_nothing_behind(api: Ec2Api, fleet: Fleet, run: Run) -> None:
    """EC2 launches no other instance for its token, so the intent would wait without end."""
    api.lost = {"RunInstances"}
    run()
    api.lost = set()
    (instance_id,) = living(api)
    api.set_state(instance_id, "terminated", "Client.UserInitiatedShutdown")
    fleet.pass_time(HOUR)  # the penalty of the first attempt is over
    counts = run()
    assert (counts[Metric.INTENTS_ABANDONED], counts[Metric.CREATED]) == (1, LIMIT - 1)
    assert intents(fleet) == []
    assert set(provided(fleet)) == living(api)
