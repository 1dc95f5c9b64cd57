"""What hosting providers have alike in their contract tests: ``kit.hosting``, and a fake with one server of ours."""

from collections.abc import Iterator
from typing import Any, ClassVar
from uuid import UUID

import pytest
from shepherd_core.domain.clock import Deadline, Permission
from shepherd_core.domain.machine import INVALID, Availability, Machine, ProviderStatus
from shepherd_core.domain.provider import Provider
from shepherd_core.providers.kit.hosting import mark_of
from shepherd_core.providers.latitude import name_of

from simulator.environment.faults import SetValue
from simulator.providers.kit.hardware import NoHardware
from tests.conftest import ManualClock
from tests.integration.providers.contract.description import Description
from tests.integration.providers.contract.provider_contract import PUBLIC_KEY, Places, ProviderContract, Setup, context
from tests.integration.providers.contract.provider_faults import ProviderFaults

SECRET = "a-key-that-nobody-may-see"
OURS = UUID(int=2**127 + 5)
"""The token of the server in the first slot of the fleet."""
NEW = UUID(int=9)


class HostingContract(ProviderContract, ProviderFaults):
    lacks = frozenset({"power-cycle"})
    secret = SECRET
    fleet = "web"
    """What comes before the number in the name of a slot."""
    given: ClassVar[dict[str, Any]]
    """The settings besides those that all have."""
    adapter: ClassVar[tuple[type[Any], type[Any]]]
    """The class of the settings, and that of the provider."""
    simulator: ClassVar[tuple[type[Any], dict[str, Any]]]
    """The class of the simulated API, and what it is made with besides the credential."""
    servers: ClassVar[tuple[tuple[str, dict[str, Any]], ...]]
    """The names and facts of the servers: one of ours, the others of somebody else."""
    spoils: ClassVar[SetValue]
    places: ClassVar[Places]
    setup_facts: ClassVar[dict[str, Any]] = {}
    ordered: ClassVar[dict[str, Any]] = {}
    """What the request for a new server must have said."""
    states: ClassVar[dict[str, tuple[ProviderStatus, str | None] | None]]
    """Status and failure of our server in some states; None: it is not ours any more, and its slot is free."""
    off: str = ""
    """The state of a server that is off, if the API tells that one is."""
    tags: ClassVar[Any] = None
    """As a server has them to which somebody gave the tags role, whose value is db, and gpu; None: it has none."""

    @pytest.fixture
    def api(self) -> Iterator[Any]:
        kind, options = self.simulator
        with kind(NoHardware(), secret=self.secret, **options) as api:
            for name, facts in self.servers:
                api.add_active(name, **facts)
            Description(kind.__name__.removesuffix("Api").lower()).hold(api)
            yield api
            assert api.errors == []

    def provider(self, api: Any, clock: ManualClock, **settings: Any) -> Provider:
        chosen, provider = self.adapter
        usual = {"credential_parameter": "/unused", "limit": 4, "api_url": api.url}
        built: Provider = provider(chosen(**{**usual, **self.given, **settings}), context(clock, self.secret))
        return built

    @pytest.fixture
    def setup(self, clock: ManualClock, api: Any) -> Setup:
        usual = {"remove_keys": api.keys.clear, "keyed": ("create", "reinstall")} if "key_name" in self.given else {}
        return Setup.of(
            api,
            api.machines.hardware,
            self.spoils,
            provider=self.provider(api, clock),
            capacity_ids=frozenset(f"{self.fleet}/{number}" for number in range(1, 5)),
            stores_tokens=True,
            confuse=lambda provider_id: api.change(provider_id, state="unheard of"),
            secret=self.secret.rpartition(":")[2],
            places=self.places,
            **{**usual, **self.setup_facts},
        )

    def ours(self, setup: Setup, deadline: Deadline) -> Machine:
        (found,) = (each for each in setup.provider.list_machines(deadline) if each.token == OURS)
        return found

    def test_tags_of_people_are_labels(self, setup: Setup, api: Any, deadline: Deadline) -> None:
        """The mark of the fleet, which may be one of its tags, is no label."""
        before = self.ours(setup, deadline)
        assert not any(str(OURS) in text for label in before.labels.items() for text in label)
        if self.tags is not None:
            server, api.check_answer = api.machine(before.provider_id), None  # which leaves out what is optional
            own = server.fields.get("tags", type(self.tags)())
            server.fields["tags"] = own | self.tags if isinstance(own, dict) else own + self.tags
            assert self.ours(setup, deadline).labels == {**before.labels, "role": "db", "gpu": ""}

    def test_a_state_means_a_status(self, setup: Setup, api: Any, deadline: Deadline) -> None:
        ours = self.ours(setup, deadline).provider_id
        for state, meaning in self.states.items():
            api.change(ours, state=state)
            listed = setup.provider.list_machines(deadline)
            found = [each for each in listed if each.token == OURS]
            assert [(each.status, each.failure) for each in found] == ([] if meaning is None else [meaning]), state
            assert all(each.failed is (each.failure is not None) for each in found), state
            assert {each.capacity_id for each in listed} == setup.capacity_ids, state
            if meaning is None:
                asked = api.calls.total()
                setup.provider.release(ours, deadline)
                assert api.calls.total() == asked + 1, "it is looked for, and nothing is done with it"

    def test_a_server_that_is_off_is_switched_on(self, setup: Setup, api: Any, deadline: Deadline) -> None:
        """Where the API does not tell that it is off, it is restarted."""
        ours = self.ours(setup, deadline).provider_id
        if self.off:
            api.change(ours, state=self.off)
        setup.provider.reboot(ours, Permission(deadline))
        assert api.machine(ours).actions_taken == ["power_on" if self.off else "reboot"]

    def test_a_new_server_is_what_was_ordered(self, setup: Setup, api: Any, deadline: Deadline) -> None:
        """It admits our key; its address comes later, and its place, if no answer tells it, is the one of the order."""
        made = self.create(setup.provider, deadline)
        assert (made.status, made.address) == (ProviderStatus.PROVISIONING, None)
        assert made.location == self.given["location"]
        server = api.machine(made.provider_id)
        assert server.name in (mark_of(f"{self.fleet}/3", NEW), name_of(NEW, "3"))
        assert server.authorized_key == PUBLIC_KEY
        assert {name: server.fields[name] for name in self.ordered} == self.ordered
        assert made.location in {each.location for each in setup.provider.list_machines(deadline)}

    def create(self, provider: Provider, deadline: Deadline) -> Machine:
        slot = f"{self.fleet}/3"
        capacity = Machine(provider_id=INVALID, availability=Availability.KNOWN_UNUSED, reservation_id=slot)
        return provider.create_machine(capacity, NEW, deadline)
