"""``make test-ironic`` runs these in front of the real service."""

import json
import re
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from shepherd_core.domain.clock import Clock, Deadline, Permission, SystemClock
from shepherd_core.domain.errors.provider import (
    CapacityTaken,
    MachineNotFound,
    ProviderError,
    ProviderRefused,
    ProviderUnavailable,
)
from shepherd_core.domain.machine import Machine, ProviderStatus
from shepherd_core.domain.provider import Capability
from shepherd_core.providers.ironic.calls import LOCKED_SECONDS
from shepherd_core.providers.ironic.keystone import ApplicationCredential

from simulator.environment.faults import Drop, FakeAnswer, Rule, SetValue
from simulator.providers.ironic.api import IronicApi
from simulator.providers.kit.hardware import NoHardware
from tests.conftest import ManualClock
from tests.integration.providers.contract.provider_contract import (
    INTERRUPTIONS,
    PUBLIC_KEY,
    TOKEN,
    Places,
    ProviderContract,
    Setup,
)
from tests.integration.providers.contract.provider_faults import ProviderFaults
from tests.support.providers.ironic_api import CREDENTIAL, ironic_api, ironic_provider, needs_the_fake, operate
from tests.support.providers.scripted_http import Answer, Request, said, scripted_server
from tests.support.waiting import eventually


def in_state(state: str) -> Rule:
    return SetValue(path="/v1/nodes", times=0, at="nodes.*.provision_state", value=state)


def shared(clock: ManualClock) -> Iterator[Setup]:
    """Yield nodes with a machine of ours, and another tenant's, one in maintenance, and three free ones."""
    hardware, deadline = NoHardware(), Deadline(SystemClock(), 60)
    with ironic_api(hardware) as api:
        provider = ironic_provider(api, clock)
        resource_class = provider._settings.machine_type
        *ours, foreign, broken = api.enroll(resource_class, [hardware.reserve() for _ in range(6)])
        operate(api, "PATCH", foreign, [{"op": "add", "path": "/instance_uuid", "value": str(uuid4())}])
        operate(api, "PUT", f"{broken}/maintenance", {"reason": "a disk"})
        provider.create_machine(provider.list_machines(deadline)[0], uuid4(), deadline)
        eventually(api.settled)
        yield Setup.of(
            api,
            hardware,
            FakeAnswer(path="/v1/nodes", times=0, status=200, body={"nodes": [{"uuid": ours[0]}] * 2}),
            provider=provider,
            capacity_ids=frozenset(ours),
            stores_tokens=True,
            confuse=lambda _: api.faults.add(in_state("unheard of")),
            secret=CREDENTIAL.partition(":")[2],
            places=Places(path="/v1/nodes", id="nodes.*.uuid", address="nodes.*.extra.ipv4_address"),
        )
        assert api.errors == []


class TestIronic(ProviderContract):
    @pytest.fixture
    def setup(self, clock: ManualClock) -> Iterator[Setup]:
        yield from shared(clock)


@pytest.mark.skipif(needs_the_fake, reason="the faults do not reach the real service")
class TestIronicFaults(ProviderFaults):
    """The same, where requests and answers go wrong on their way."""

    @pytest.fixture
    def setup(self, clock: ManualClock) -> Iterator[Setup]:
        yield from shared(clock)


LOCKED = {"error_message": '{"faultcode": "Client", "faultstring": "Node n is locked by host h, please retry"}'}


@pytest.fixture
def api() -> Iterator[IronicApi]:
    with ironic_api(NoHardware()) as api:
        yield api
        assert api.errors == []


class Nodes:
    def __init__(
        self, api: IronicApi, clock: ManualClock, deadline: Deadline, number: int = 1, **settings: Any
    ) -> None:
        self.api, self.deadline = api, deadline
        self.provider = ironic_provider(api, clock, **settings)
        addresses = [api.machines.hardware.reserve() for _ in range(number)]
        self.ids = api.enroll(self.provider._settings.machine_type, addresses)

    def listed(self) -> list[Machine]:
        return self.provider.list_machines(self.deadline)

    def create(self) -> Machine:
        self.provider.create_machine(self.listed()[0], TOKEN, self.deadline)
        eventually(self.api.settled)
        return self.provider.get_machine(self.listed()[0].provider_id, self.deadline)

    def patch(self, node: str, **fields: str | None) -> int:
        """Return the status of an operator's change of these fields, but those that are None."""
        changes = [{"op": "add", "path": f"/{name}", "value": value} for name, value in fields.items() if value]
        return operate(self.api, "PATCH", node, changes).status_code


@pytest.fixture
def nodes(api: IronicApi, clock: ManualClock, deadline: Deadline) -> Nodes:
    return Nodes(api, clock, deadline)


def test_a_machine_is_the_instance_and_admits_our_key(nodes: Nodes) -> None:
    """The id of a node would name the next machine on it too."""
    created = nodes.create()
    assert created.provider_id == str(created.token) == str(TOKEN)
    assert created.reservation_id == nodes.ids[0]
    assert created.status is ProviderStatus.RUNNING
    hardware = nodes.api.machines.hardware
    assert isinstance(hardware, NoHardware)
    assert hardware.authorized_keys == {created.provider_id: PUBLIC_KEY}
    nodes.provider.release(created.provider_id, nodes.deadline)
    eventually(nodes.api.settled)
    assert [each.reservation_id for each in nodes.listed()] == nodes.ids
    with pytest.raises(MachineNotFound):
        nodes.provider.get_machine(created.provider_id, nodes.deadline)


def test_only_free_nodes_with_trait_and_address_are_capacity(
    api: IronicApi, clock: ManualClock, deadline: Deadline
) -> None:
    nodes = Nodes(api, clock, deadline, 5, trait="CUSTOM_FLEET")
    fit, untraited, reserved, broken, unreachable = nodes.ids
    for each in set(nodes.ids) - {untraited}:
        operate(api, "PUT", f"{each}/traits/CUSTOM_FLEET").raise_for_status()
    assert nodes.patch(reserved, instance_uuid=str(uuid4())) == 200
    operate(api, "PUT", f"{broken}/maintenance", {"reason": "a disk"}).raise_for_status()
    operate(api, "PATCH", unreachable, [{"op": "remove", "path": "/extra/ipv4_address"}]).raise_for_status()
    assert [each.reservation_id for each in nodes.listed()] == [fit]


@pytest.mark.parametrize(
    ("project", "owner", "lessee", "offered"),
    [
        (None, "them", None, True),  # without projects, a label
        (None, None, "them", False),
        ("us", None, None, True),
        ("us", "us", None, True),
        ("us", "them", None, False),
        ("us", "them", "us", True),
        ("us", "us", "them", False),
    ],
)
def test_a_node_of_another_project_is_no_capacity(
    api: IronicApi, clock: ManualClock, deadline: Deadline, *, project: Any, owner: Any, lessee: Any, offered: bool
) -> None:
    """An administrator is shown the nodes of all projects."""
    nodes = Nodes(api, clock, deadline, project=project)
    nodes.patch(nodes.ids[0], owner=owner, lessee=lessee)
    assert [each.reservation_id for each in nodes.listed()] == nodes.ids * offered


@pytest.mark.parametrize("action", [*INTERRUPTIONS, Capability.RELEASE])
def test_a_node_in_maintenance_is_not_touched(nodes: Nodes, action: Capability) -> None:
    """An operator works on it. Ironic itself would still reboot and undeploy it."""
    created = nodes.create()
    operate(nodes.api, "PUT", f"{nodes.ids[0]}/maintenance", {"reason": "a new disk"}).raise_for_status()
    limit: Any = nodes.deadline if action == Capability.RELEASE else Permission(nodes.deadline)
    with pytest.raises(ProviderRefused, match="is in maintenance: 'a new disk'"):
        getattr(nodes.provider, action.replace("-", "_"))(created.provider_id, limit)
    assert nodes.provider.get_machine(created.provider_id, nodes.deadline) == created


@pytest.mark.parametrize(
    ("fault", "error", "words", "retry_after"),
    [
        (FakeAnswer(method="PUT", times=0, status=409, body=LOCKED), ProviderUnavailable, "locked", LOCKED_SECONDS),
        (in_state("deploying"), ProviderUnavailable, "is 'deploying'", None),
        (in_state("deploy failed"), ProviderRefused, "is 'deploy failed'", None),
    ],
)
def test_only_a_node_at_work_is_called_again(
    nodes: Nodes, fault: Rule, error: type[ProviderError], words: str, retry_after: float | None
) -> None:
    """Neither node nor capacity is at fault while Ironic works on it, and the request was not carried out."""
    created = nodes.create()
    nodes.api.faults.add(fault)
    for step in (nodes.provider.reboot, nodes.provider.power_cycle):
        limit = Permission(nodes.deadline)
        with pytest.raises(ProviderError, match=words) as raised:
            step(created.provider_id, limit)
        assert (type(raised.value), getattr(raised.value, "retry_after", None)) == (error, retry_after)
        assert not limit.interrupted


def test_a_reservation_without_deployment_can_be_deployed_or_released(nodes: Nodes) -> None:
    """A function may be killed between the two requests of a creation."""
    capacity = nodes.listed()[0]
    for _ in range(2):
        nodes.api.faults.add(Drop(method="PUT", times=0))
        with pytest.raises(ProviderUnavailable):
            nodes.provider.create_machine(capacity, TOKEN, nodes.deadline)
        nodes.api.faults.clear()
        (reserved,) = nodes.listed()
        assert (reserved.token, reserved.status) == (TOKEN, ProviderStatus.PROVISIONING)
        nodes.provider.release(reserved.provider_id, nodes.deadline)
        assert nodes.listed() == [capacity]
    nodes.api.faults.add(Drop(method="PUT"))
    with pytest.raises(ProviderUnavailable):
        nodes.provider.create_machine(capacity, TOKEN, nodes.deadline)
    assert nodes.provider.create_machine(capacity, TOKEN, nodes.deadline).token == TOKEN
    eventually(nodes.api.settled)
    assert nodes.listed()[0].status is ProviderStatus.RUNNING


@pytest.mark.parametrize("undone", [True, False])
def test_a_refused_deployment_whose_reservation_stays_is_no_refusal(nodes: Nodes, *, undone: bool) -> None:
    """Otherwise the node would never be used: a refusal promises that nothing was created."""
    capacity = nodes.listed()[0]
    nodes.api.faults.add(FakeAnswer(method="PUT", status=400, body={"error_message": "no such image"}))
    if not undone:
        nodes.api.faults.add(FakeAnswer(method="PATCH", nth=2, status=500))
    with pytest.raises(ProviderRefused if undone else ProviderUnavailable, match="no such image"):
        nodes.provider.create_machine(capacity, TOKEN, nodes.deadline)
    assert (nodes.listed()[0].token is None) is undone


def test_a_node_that_another_tenant_reserves_first_is_taken(nodes: Nodes) -> None:
    """Between our look at the node and our reservation; Ironic refuses the second instance."""
    capacity = nodes.listed()[0]
    other = str(uuid4())
    nodes.patch(nodes.ids[0], instance_uuid=other)
    with pytest.raises(CapacityTaken, match=other):
        nodes.provider.create_machine(capacity, TOKEN, nodes.deadline)
    assert nodes.patch(nodes.ids[0], instance_uuid=str(TOKEN)) == 409
    assert nodes.listed() == []


def test_a_node_deployed_by_an_operator_becomes_no_machine(nodes: Nodes) -> None:
    """Between our look at it and our reservation; Ironic sees no instance that it would refuse to replace."""
    capacity = nodes.listed()[0]
    operate(nodes.api, "PUT", f"{nodes.ids[0]}/states/provision", {"target": "active"}).raise_for_status()
    eventually(nodes.api.settled)
    nodes.api.faults.add(SetValue(method="GET", path="/v1/nodes/{id}", at="provision_state", value="available"))
    with pytest.raises(ProviderRefused, match="is 'active', and not free"):
        nodes.provider.create_machine(capacity, TOKEN, nodes.deadline)
    assert nodes.api.instances() == {}


@pytest.mark.parametrize(
    ("credential", "ends", "says"),
    [
        ("an-id:a-secret\n", "2026-01-01T01:00:00.000000Z", ""),
        ("an-id", "", "ProviderUnusable.*ID:SECRET"),
        ("an-id:wrong", "", "ProviderUnusable.*requires authentication"),
        # Python refuses to subtract a time without a zone from one with it.
        ("an-id:a-secret", "2026-01-01T01:00:00", "ProviderUnavailable.*not understood"),
    ],
)
def test_an_application_credential_becomes_a_token(
    credential: str, ends: str, says: str, clock: Clock, deadline: Deadline
) -> None:
    """Its times are by Keystone's clock: only their difference counts. No error shows the secret."""

    def answer(request: Request) -> Answer:
        given = json.loads(request.body)["auth"]["identity"]["application_credential"]
        if given != {"id": "an-id", "secret": "a-secret"}:
            return said(401, error={"message": f"requires authentication, and not {request.body!r}"})
        token = {"issued_at": "2026-01-01T00:00:00.000000Z", "expires_at": ends}
        return Answer(201, json.dumps({"token": token}).encode(), {"X-Subject-Token": "a-token"})

    with scripted_server(answer) as keystone:
        style = ApplicationCredential(f"{keystone.url}/v3", lambda: credential, clock)
        if not says:
            login = style.login("https://ironic", deadline)
            assert (login.headers, login.until) == ({"X-Auth-Token": "a-token"}, clock.monotonic() + 3570)
            return
        with pytest.raises(ProviderError) as raised:
            style.login("https://ironic", deadline)
    assert re.match(says, f"{type(raised.value).__name__}: {raised.value}")
    assert "wrong" not in str(raised.value)
