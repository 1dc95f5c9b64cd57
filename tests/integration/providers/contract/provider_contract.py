"""
The contract of a provider, as one test suite for all adapters.

To hold an adapter to it, write a test module with a class that inherits
``ProviderContract`` and overrides the fixture ``setup``::

    from tests.integration.providers.contract.provider_contract import ProviderContract, Setup

    class TestEquinix(ProviderContract):
        @pytest.fixture
        def setup(self) -> Iterator[Setup]:
            with EquinixApi(...) as api:
                yield Setup(provider=EquinixProvider(...), ...)

Every test asks for a fresh setup, with some machines and some unused
capacity in it. It is the edge that is faked (an API server, a file), never the
adapter. What a class names in ``lacks`` has no tests in it.
"""

import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Self
from uuid import UUID

import pytest
from shepherd_core.domain.clock import Deadline, Permission, SystemClock
from shepherd_core.domain.errors import NoLongerDue, TimeLimitExceeded
from shepherd_core.domain.errors.bmdb import SessionExpired
from shepherd_core.domain.errors.provider import (
    CapacityTaken,
    ListingInvalid,
    MachineNotFound,
    NotSupported,
    ProviderRefused,
    ProviderUnavailable,
)
from shepherd_core.domain.machine import INVALID, Availability, Machine, ProviderId, ProviderStatus
from shepherd_core.domain.provider import Capability, Provider
from shepherd_core.domain.remediation import RELEASE, STEPS, provider_steps
from shepherd_core.providers.kit.context import ProviderContext

from simulator.environment.faults import Delay, FakeAnswer, Rule
from simulator.providers.kit.fault_script import FaultScript
from simulator.providers.kit.hardware import NoHardware
from simulator.providers.kit.rest import RestApi
from tests.conftest import ManualClock
from tests.support.waiting import eventually

PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHb1Jc7TZl0g8cFz7h5oVb5Gg2c0J5s0n1p6c9w3Qk7d shepherd"
TOKEN = UUID("0a4bc1a8-7c5f-4c0f-9a53-6b4b5b1f0001")
OTHER_TOKEN = UUID("0a4bc1a8-7c5f-4c0f-9a53-6b4b5b1f0002")

ACTIONS = {kind.needs: kind for kind in STEPS.values() if kind.needs}
"""What recovery may ask a provider for."""
INTERRUPTIONS = {needs: kind for needs, kind in ACTIONS.items() if kind is not RELEASE}
"""Those whose methods take a permission."""

ODD_IDS = ("no-such", str(INVALID), "", ".", "..", "a/b", "a?b=1", "#", "%2e%2e", "a b", "\N{SNOWMAN}", "x" * 128)
"""Ids that no setup may use. A provider id is opaque text, so none of them may become anything else on the way."""


@dataclass(frozen=True, kw_only=True)
class Places:
    """The places in the answer with a listing, as the fault ``set`` names them: ``servers.*.id``."""

    path: str
    """The listing itself, as faults name paths."""
    id: str
    address: str


def _lacking(*_: object) -> None:
    pytest.fail("the setup has no such edge")


@dataclass(kw_only=True)
class Setup:
    provider: Provider
    """The adapter under test."""
    capacity_ids: frozenset[str]
    """The ``Machine.capacity_id`` of all that the listing must hold, machines and capacity; at least two unused."""
    stores_tokens: bool
    """Whether the provider keeps the token of a machine, and so knows who used its capacity."""
    requests: Callable[[], int]
    """Returns how many requests the edge has seen."""
    settle: Callable[[], object] = lambda: None
    """Lets the time pass that the edge needs to finish what it was asked for (creation, reboot)."""
    make_unavailable: Callable[[], object] = _lacking
    """From now on the edge fails in a way that passes: no answer, 429, 5xx."""
    make_refusing: Callable[[], object] = _lacking
    """From now on the edge refuses everything: credential revoked, source gone."""
    spoil_listing: Callable[[], object]
    """From now on the listing is incomplete or contradicts itself."""
    reboots: Callable[[ProviderId], int] | None = None
    """Returns how often the edge has restarted this machine, by whatever means."""
    confuse: Callable[[ProviderId], object] = _lacking
    """From now on the provider reports an undocumented state of this machine."""
    stall: Callable[[], object] = _lacking
    """From now on the edge takes requests and never answers."""
    secret: str | None = None
    """The credential, which no error may repeat."""
    one_credential: bool = True
    """Whether one credential is for all machines, so that no machine is at fault when it is refused."""
    says_when: bool = True
    """Whether the edge says with a 429 when to come back."""
    faults: FaultScript | None = None
    """What injects faults into an edge over HTTP. With it, the failures above have a default."""
    lists: bool = True
    """Whether a listing asks this edge, and fails with it."""
    places: Places | None = None
    """What an answer with a listing has where."""
    remove_keys: Callable[[], object] = lambda: None
    """Removes our SSH key from the provider's key store."""
    keyed: Sequence[str] = ()
    """The actions that name a key of that store: ``create``, ``reinstall``; they are refused if it is gone."""
    calls: str = "**"
    """The paths of the API, as faults name them, where a login is at another one."""

    @classmethod
    def of(cls, api: RestApi, hardware: NoHardware, spoils: Rule, **facts: Any) -> Self:
        """Return the setup of a simulated API; *spoils* spoils its listing."""
        usual: dict[str, Any] = {
            "requests": lambda: api.calls.total(),  # noqa: PLW0108 - calls is another counter each time
            "settle": lambda: eventually(api.settled),
            "spoil_listing": lambda: api.faults.add(spoils),
            "reboots": lambda provider_id: hardware.calls.count(("reboot", provider_id)),
            "faults": api.faults,
        }
        return cls(**{**usual, **facts})

    def __post_init__(self) -> None:
        if (faults := self.faults) is not None:
            said = {"error": self.secret}
            rules = (
                FakeAnswer(times=0, status=503),
                FakeAnswer(times=0, status=403, body=said),
                Delay(times=0, seconds=60),
            )
            for name, rule in zip(("make_unavailable", "make_refusing", "stall"), rules, strict=True):
                if getattr(self, name) is _lacking:
                    setattr(self, name, partial(faults.add, rule))

    def unused(self, deadline: Deadline) -> list[Machine]:
        listing = self.provider.list_machines(deadline)
        return [each for each in listing if each.availability is not Availability.KNOWN_USED and not each.failed]

    def created(self, deadline: Deadline) -> Machine:
        """Return the machine with ``TOKEN``, which is for one capacity; create it on the first that is unused."""
        found = [machine for machine in self.provider.list_machines(deadline) if machine.token == TOKEN]
        created = found[0] if found else self.provider.create_machine(self.unused(deadline)[0], TOKEN, deadline)
        self.settle()
        return created

    @property
    def actions(self) -> list[Capability]:
        return [each for each in ACTIONS if each in self.provider.capabilities]

    def interruption(self, action: str) -> Callable[[ProviderId, Permission], None]:
        return provider_steps(self.provider)[INTERRUPTIONS[Capability(action)]]

    def method(self, action: str) -> Callable[[ProviderId, Deadline], None]:
        """Return the method for *action*, a ``Capability``; what interrupts a machine is permitted."""
        if action == Capability.RELEASE:
            return self.provider.release
        return lambda provider_id, deadline: self.interruption(action)(provider_id, Permission(deadline))

    def call(self, action: str, deadline: Deadline) -> Callable[[Deadline], Any]:
        """Return *action*, ready to be called: on a machine that exists, or on capacity that is unused."""
        if action == "list":
            return self.provider.list_machines
        if action == "create":
            capacity = self.unused(deadline)[-1]
            return lambda limit: self.provider.create_machine(capacity, TOKEN, limit)
        method = self.provider.get_machine if action == "get" else self.method(action)
        created = self.created(deadline)
        return lambda limit: method(created.provider_id, limit)

    def edge_calls(
        self, deadline: Deadline, only: Collection[str] | None = None
    ) -> Iterator[tuple[str, Callable[[Deadline], Any]]]:
        """Yield what asks the edge, each prepared when it is its turn; creation first, while there is no machine."""
        for action in (*(("create", "list", "get") if self.lists else ("get",)), *self.actions):
            if only is None or action in only:
                yield action, self.call(action, deadline)


def context(clock: ManualClock, credential: str) -> ProviderContext:
    """Return what an adapter with this credential gets of its surroundings."""
    return ProviderContext(
        clock=clock,
        read=lambda _: b"",
        read_secret=lambda _: credential,
        invalidate_secret=lambda _: None,
        public_key=lambda: PUBLIC_KEY,
    )


class ProviderContract:
    lacks: frozenset[str] = frozenset()
    """Which of ``ACTIONS`` the provider, and which others of the tests' marks ``needs`` its edge has not."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        """Return a clock that stands still; here, because classes of other packages see no fixtures of ours."""
        return ManualClock()

    @pytest.fixture
    def deadline(self) -> Deadline:
        return Deadline(SystemClock(), 60)

    @pytest.fixture
    def setup(self) -> Setup:
        raise NotImplementedError

    def test_only_what_a_provider_lacks_is_neither_supported_nor_tested(self, setup: Setup, deadline: Deadline) -> None:
        """The loops trust the capabilities; a call that did nothing would look like a successful step."""
        edge = {
            "tokens": setup.stores_tokens,
            "states": setup.confuse is not _lacking,
            "silence": setup.stall is not _lacking,
            "places": setup.places or not setup.faults,
        }
        lacks = [capability for capability in ACTIONS if capability not in setup.provider.capabilities]
        assert self.lacks == {*lacks, *(name for name, has in edge.items() if not has)}
        created = setup.created(deadline)
        before = _by_capacity(setup.provider.list_machines(deadline))
        for capability in lacks:
            with pytest.raises(NotSupported, match=f"{setup.provider.name} cannot {capability}"):
                setup.method(capability)(created.provider_id, deadline)
        assert _by_capacity(setup.provider.list_machines(deadline)) == before

    # Listing and creation

    def test_a_listing_is_complete_and_the_same_from_each_thread(self, setup: Setup, deadline: Deadline) -> None:
        """A loop works on many machines at a time with one adapter; the id connects a machine with its row."""
        with ThreadPoolExecutor(4) as threads:
            listings = list(threads.map(lambda _: setup.provider.list_machines(deadline), range(4)))
        assert {len(set(_ids(listing))) for listing in listings} == {len(_ids(listings[0]))}
        for listing in listings:
            assert set(_by_capacity(listing)) == setup.capacity_ids
            assert len(listing) == len(setup.capacity_ids)
            assert set(_ids(listing)) == set(_ids(listings[0]))
            assert all(0 < len(provider_id) <= 128 for provider_id in _ids(listing))

    def test_unused_capacity_becomes_one_machine(self, setup: Setup, deadline: Deadline) -> None:
        """A call whose answer was lost is repeated; what is listed as capacity and as a machine would be used twice."""
        setup.settle()
        before, capacity = _by_capacity(setup.provider.list_machines(deadline)), setup.unused(deadline)[0]
        created = setup.provider.create_machine(capacity, TOKEN, deadline)
        assert created.provider_id != INVALID
        assert (created.capacity_id, created.availability) == (capacity.capacity_id, Availability.KNOWN_USED)
        for _ in range(2):
            assert setup.provider.create_machine(capacity, TOKEN, deadline).provider_id == created.provider_id
            setup.settle()
        listing = setup.provider.list_machines(deadline)
        found = setup.provider.get_machine(created.provider_id, deadline)
        assert (found.provider_id, found.capacity_id) == (created.provider_id, created.capacity_id)
        for machine in (found, *(each for each in listing if each.availability is not Availability.KNOWN_UNUSED)):
            if not machine.failed:
                assert machine.provider_id != INVALID
                assert machine.address is not None or machine.status is ProviderStatus.PROVISIONING
        assert len(listing) == len(before)
        assert _ids(listing).count(created.provider_id) == 1
        after = _by_capacity(listing)
        del before[created.capacity_id], after[created.capacity_id]
        assert after == before

    @pytest.mark.needs("tokens")
    def test_a_machine_is_known_by_its_token_and_not_shared(self, setup: Setup, deadline: Deadline) -> None:
        """Its creator may have died before recording it. Two on one capacity would be one machine with two owners."""
        capacity = setup.unused(deadline)[0]
        created = setup.created(deadline)
        with pytest.raises(CapacityTaken):
            setup.provider.create_machine(capacity, OTHER_TOKEN, deadline)
        listing = setup.provider.list_machines(deadline)
        assert OTHER_TOKEN not in {machine.token for machine in listing}
        found = [machine for machine in listing if machine.token == TOKEN]
        assert [(each.provider_id, each.availability) for each in found] == [
            (created.provider_id, Availability.KNOWN_USED)
        ]
        assert setup.provider.get_machine(created.provider_id, deadline).token == TOKEN

    def test_a_removed_key_is_added_again(self, setup: Setup, deadline: Deadline) -> None:
        """A function lives for hours; until its end no machine could be made or reinstalled."""
        first, second = setup.unused(deadline)[:2]
        machine = setup.provider.create_machine(first, TOKEN, deadline)
        calls: dict[str, Callable[[], object]] = {
            "create": lambda: setup.provider.create_machine(second, OTHER_TOKEN, deadline),
            Capability.REINSTALL: lambda: setup.provider.reinstall(machine.provider_id, Permission(deadline)),
        }
        for action in setup.keyed:
            setup.settle()
            if action != "create":
                calls[action]()  # so that it knows the key
                setup.settle()
            setup.remove_keys()
            with pytest.raises(ProviderRefused):
                calls[action]()
            calls[action]()

    def test_a_missing_machine_is_neither_found_nor_acted_on(self, setup: Setup, deadline: Deadline) -> None:
        setup.settle()
        before = _by_capacity(setup.provider.list_machines(deadline))
        for odd in map(ProviderId, ODD_IDS):
            for action in ("get", *setup.actions):
                act = setup.provider.get_machine if action == "get" else setup.method(action)
                if action == Capability.RELEASE:
                    act(odd, deadline)  # what is not there is released already
                else:
                    with pytest.raises(MachineNotFound):
                        pytest.fail(f"{action} of {odd!r}: {act(odd, deadline)}")
        assert _by_capacity(setup.provider.list_machines(deadline)) == before

    # States

    @pytest.mark.needs("states")
    def test_an_undocumented_state_is_unknown(self, setup: Setup, deadline: Deadline) -> None:
        """Providers invent new ones; taken for off, gone or failed, a machine that is well would be given up."""
        created = setup.created(deadline)
        setup.confuse(created.provider_id)
        listed = _by_capacity(setup.provider.list_machines(deadline))[created.capacity_id]
        for machine in (listed, setup.provider.get_machine(created.provider_id, deadline)):
            assert machine.provider_id == created.provider_id
            assert machine.status is ProviderStatus.UNKNOWN
            assert not machine.failed

    # Recovery

    @pytest.mark.parametrize("action", INTERRUPTIONS)
    def test_a_machine_is_interrupted_once_if_confirmed_just_before(
        self, setup: Setup, deadline: Deadline, action: Capability
    ) -> None:
        """It may have come back while the adapter logged in; but a step of several requests must not stop half way."""
        interrupt = setup.interruption(action)
        created = setup.created(deadline)
        before = setup.provider.get_machine(created.provider_id, deadline)
        asked: list[int] = []
        outcomes: list[type[Exception] | None] = [NoLongerDue, None, ProviderRefused]

        def ask() -> None:
            assert not permission.interrupted
            asked.append(setup.requests())
            if len(asked) == 1:
                raise NoLongerDue
            if len(asked) == len(outcomes):
                setup.make_refusing()

        already, restarts = setup.requests(), 0
        for error in outcomes:
            permission = Permission(Deadline(SystemClock(), 60), ask)
            with pytest.raises(error) if error else nullcontext():
                interrupt(created.provider_id, permission)
            assert permission.interrupted is (error is None), "else it was not asked for, or the edge did not do it"
            if error is not ProviderRefused:
                setup.settle()
                after = setup.provider.get_machine(created.provider_id, deadline)
                if error or action != Capability.REINSTALL:
                    assert after == before
                identity = created.provider_id, created.capacity_id, created.token
                assert (after.provider_id, after.capacity_id, after.token) == identity
            if setup.reboots is not None:
                more = setup.reboots(created.provider_id) - restarts
                if error or action != Capability.REINSTALL:
                    assert more == (error is None)
                restarts += more
        assert len(asked) == len(outcomes)
        assert asked[0] > already, "what is looked up is looked up before"

    @pytest.mark.needs("silence")
    @pytest.mark.parametrize("action", [Capability.REBOOT, Capability.POWER_CYCLE])
    def test_an_interruption_without_an_answer_may_have_happened(
        self, setup: Setup, deadline: Deadline, clock: ManualClock, action: Capability
    ) -> None:
        """Taken for not done, it would be done again to a machine that is booting, and never counted."""
        interrupt = setup.interruption(action)
        created = setup.created(deadline)
        # Its clock stands still: each request has a second, whatever a busy computer takes for those before it.
        permission = Permission(Deadline(clock, 1), setup.stall)
        with pytest.raises((ProviderUnavailable, TimeLimitExceeded)):
            interrupt(created.provider_id, permission)
        assert permission.interrupted

    @pytest.mark.needs("release")
    def test_a_released_machine_is_in_use_no_more(self, setup: Setup, deadline: Deadline) -> None:
        """A released machine must not be listed as ours, and a release may be repeated."""
        release = setup.method(Capability.RELEASE)
        created = setup.created(deadline)
        release(created.provider_id, deadline)
        setup.settle()
        release(created.provider_id, deadline)
        in_use = [machine for machine in setup.provider.list_machines(deadline) if machine.token == TOKEN]
        assert in_use == []

    # Time

    def test_nothing_is_done_when_time_or_session_is_over(self, setup: Setup, deadline: Deadline) -> None:
        """A session that is over has lost its machine to another: two would act on one machine."""
        for actions in (("create",), ("list", "get", *setup.actions)):
            calls = {action: setup.call(action, deadline) for action in actions}
            before = _by_capacity(setup.provider.list_machines(deadline))
            for action, call in calls.items():
                sent = setup.requests()
                with pytest.raises(TimeLimitExceeded):
                    pytest.fail(f"{action}: {call(Deadline(SystemClock(), 0))}")
                assert setup.requests() == sent, action
                if action not in ("list", "get"):
                    with pytest.raises(SessionExpired):
                        pytest.fail(f"{action}: {call(Deadline(SystemClock(), 60, session_left=lambda: 0))}")
            setup.settle()
            assert _by_capacity(setup.provider.list_machines(deadline)) == before

    # Failures of the edge

    @pytest.mark.parametrize(
        ("failure", "errors"),
        [
            ("make_unavailable", ProviderUnavailable),
            ("make_refusing", ProviderRefused),
            pytest.param("stall", (ProviderUnavailable, TimeLimitExceeded), marks=pytest.mark.needs("silence")),
        ],
    )
    def test_a_passing_failure_alone_may_be_tried_again(
        self, setup: Setup, deadline: Deadline, failure: str, errors: Any
    ) -> None:
        """An edge that does not answer is given up in time."""
        calls = dict(setup.edge_calls(deadline))
        getattr(setup, failure)()
        for action, call in calls.items():
            limit = Deadline(SystemClock(), 0.2) if failure == "stall" else deadline
            with pytest.raises(errors) as raised:
                pytest.fail(f"{action}: {call(limit)}")
            assert raised.value.retryable is isinstance(raised.value, ProviderUnavailable), action
            _assert_holds_no_secret(setup, raised.value)

    def test_listing_that_cannot_be_trusted_is_no_listing(self, setup: Setup, deadline: Deadline) -> None:
        setup.spoil_listing()
        with pytest.raises(ListingInvalid) as raised:
            setup.provider.list_machines(deadline)
        _assert_holds_no_secret(setup, raised.value)


def _ids(machines: list[Machine]) -> list[ProviderId]:
    return [machine.provider_id for machine in machines if machine.provider_id != INVALID]


def _by_capacity(machines: list[Machine]) -> dict[str | None, Machine]:
    return {machine.capacity_id: machine for machine in machines}


def _assert_holds_no_secret(setup: Setup, error: BaseException) -> None:
    """Fail if the credential is in *error* or in any error behind it, as a log line would show them."""
    shown = "".join(traceback.format_exception(error)) + repr(error)
    assert setup.secret is None or setup.secret not in shown
