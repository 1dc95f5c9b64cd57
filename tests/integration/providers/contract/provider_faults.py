"""
What goes wrong between an adapter and an API over HTTP, as one test suite for all adapters.

A test class joins it beside the contract, with the same fixture ``setup``, whose
``faults`` (and ``places``) must be there::

    class TestAcme(ProviderContract, ProviderFaults):
        ...
"""

import json
from collections.abc import Callable
from typing import Any

import pytest
from shepherd_core.adapters.http.bounded_answer import LONGEST_ANSWER, MOST_VALUES
from shepherd_core.domain.clock import Deadline, Permission, SystemClock
from shepherd_core.domain.errors import TimeLimitExceeded
from shepherd_core.domain.errors.provider import (
    CapacityTaken,
    ListingInvalid,
    MachineNotFound,
    ProviderError,
    ProviderRefused,
    ProviderUnavailable,
    ProviderUnusable,
)
from shepherd_core.domain.machine import INVALID, Machine
from shepherd_core.domain.provider import Capability
from shepherd_core.providers.kit import fields

from simulator.environment.faults import Cut, Delay, Drop, FakeAnswer, Rule, Scramble, SetValue, Shrink
from simulator.providers.kit.fault_script import FaultScript
from tests.conftest import ManualClock
from tests.integration.providers.contract.provider_contract import ACTIONS, INTERRUPTIONS, TOKEN, Places, Setup

WRITES = ("POST", "PUT", "PATCH", "DELETE")

NOT_US, REFUSED = (ProviderUnusable,), (ProviderRefused, ProviderUnavailable, CapacityTaken, MachineNotFound)
STATUSES: dict[int, tuple[type[ProviderError], ...]] = {
    401: NOT_US,
    403: NOT_US,
    404: (MachineNotFound, ProviderRefused),
    409: REFUSED,
    422: REFUSED,
    429: (ProviderUnavailable,),
    500: (ProviderUnavailable,),
    503: (ProviderUnavailable,),
}
"""The errors that each status may become."""

LOST = [
    Drop(times=0, when="after"),
    FakeAnswer(times=0, status=500, when="after"),
    FakeAnswer(times=0, status=504, body="<h1>Gateway time-out</h1>", when="after"),
]
"""Answers to a change that was carried out."""

_HOSTILE = {
    "deep": "[" * 200_000,
    "deeper": '{"a":' * 100_000 + "1" + "}" * 100_000,
    "many": "[" + "{}," * MOST_VALUES + "{}]",
    "huge": " " * (LONGEST_ANSWER + 1),
    "html": "<html>",
}
HOSTILE = {
    **{name: FakeAnswer(times=0, status=200, body=body) for name, body in _HOSTILE.items()},
    "truncated": Cut(times=0),
}
ODD: list[Any] = [None, 7, True, "text", [], [None], [[]], {}, {"unheard": "of"}]
"""JSON, and not what was asked for."""

NO_IDS: list[Any] = ["", "invalid", "x" * 129, "a\0b", None, [], {}]
NO_ADDRESSES: list[Any] = ["0.0.0.0", "::", "224.0.0.1", "fe80::1%eth0", "300.1.1.1", "localhost", 7, {}]


class ProviderFaults:
    """The faults table: nothing but the provider's own errors leaves the adapter, and nothing is done twice."""

    @pytest.mark.parametrize("methods", [("*",), WRITES], ids=["all", "changes"])
    def test_each_status_has_its_meaning(
        self, setup: Setup, deadline: Deadline, clock: ManualClock, methods: tuple[str, ...]
    ) -> None:
        """By the error, loops decide whether to come back, and whether a machine or an operator is concerned."""
        changes = {*ACTIONS, *(["create"] if setup.stores_tokens else [])}
        for action, call in setup.edge_calls(deadline, changes if methods == WRITES else None):
            for status, errors in STATUSES.items():
                case = f"{action}: {status}"
                if status == 429 and methods == ("*",) and not setup.says_when:
                    continue  # this client waits by itself
                path = setup.calls if status == 404 else "**"  # a 404 of the login says nothing of a machine
                for method in methods:
                    _faults(setup).add(FakeAnswer(method=method, path=path, times=0, status=status, retry_after=7))  # type: ignore[arg-type]
                if status == 404 and action == Capability.RELEASE:
                    call(deadline)  # it is gone
                else:
                    error = _error(case, call, deadline)
                    assert isinstance(error, errors if setup.one_credential else (*errors, *REFUSED)), case
                    if isinstance(error, ProviderUnavailable) and status == 429:
                        assert error.retry_after == (7 if setup.says_when else None), case
                _faults(setup).clear()
                clock.now += 3_600  # a login that was refused is not sent again for a while

    @pytest.mark.parametrize("fault", LOST, ids=lambda rule: f"{rule.do}-{getattr(rule, 'status', '')}")
    def test_an_unanswered_change_is_known_and_done_once(self, setup: Setup, deadline: Deadline, fault: Rule) -> None:
        """It is unknown then whether it was done: a second machine would be paid for, a second reboot would do harm."""
        capacity = setup.unused(deadline)[0]
        if setup.stores_tokens:
            _after(setup, fault)
            with pytest.raises(ProviderUnavailable):
                setup.provider.create_machine(capacity, TOKEN, deadline)
            _faults(setup).clear()
        machine = setup.provider.create_machine(capacity, TOKEN, deadline)
        setup.settle()
        assert len(setup.provider.list_machines(deadline)) == len(setup.capacity_ids)
        for action in INTERRUPTIONS:
            if action in setup.provider.capabilities:
                permission = Permission(Deadline(SystemClock(), 60), lambda: _after(setup, fault))
                already = setup.reboots(machine.provider_id) if setup.reboots else 0
                with pytest.raises(ProviderUnavailable):
                    setup.interruption(action)(machine.provider_id, permission)
                assert permission.interrupted, action
                _faults(setup).clear()
                setup.settle()
                if setup.reboots is not None and action == Capability.REBOOT:
                    assert setup.reboots(machine.provider_id) == already + 1

    @pytest.mark.needs("tokens")
    def test_a_creation_that_takes_too_long_is_found_again(self, setup: Setup, deadline: Deadline) -> None:
        """A function that is killed meanwhile leaves the same behind."""
        capacity = setup.unused(deadline)[0]
        _after(setup, Delay(times=0, seconds=60, when="after"))
        with pytest.raises((ProviderUnavailable, TimeLimitExceeded)):
            setup.provider.create_machine(capacity, TOKEN, Deadline(SystemClock(), 1))
        _faults(setup).clear()
        setup.provider.create_machine(capacity, TOKEN, deadline)
        setup.settle()
        assert [each.token for each in setup.provider.list_machines(deadline)].count(TOKEN) == 1

    def test_a_hostile_answer_is_no_answer(self, setup: Setup, deadline: Deadline) -> None:
        for action, call in setup.edge_calls(deadline, {"list", "get"}):
            for name, fault in HOSTILE.items():
                if name != "huge" or action == "get":
                    _faults(setup).add(fault)
                    error = _error(f"{action}: {name}", call, deadline)
                    assert isinstance(error, ProviderUnavailable | ListingInvalid), (action, name)
                    _faults(setup).clear()

    @pytest.mark.parametrize("where", ["the whole", "somewhere"])
    def test_a_value_of_another_type_is_a_providers_error(self, setup: Setup, deadline: Deadline, where: str) -> None:
        """A TypeError would end the loop for all machines. And what is listed can be dialed."""
        odd = [FakeAnswer(times=0, status=200, body=json.dumps(body)) for body in ODD]
        for action, call in setup.edge_calls(deadline):
            reads = action in {"get", "list"}
            scrambled = [Scramble(times=0, seed=seed) for seed in range(24 * reads)]
            for fault in odd if where == "the whole" else scrambled:
                _faults(setup).add(fault)
                found = _outcome(f"{action}: {fault}", call, deadline)
                _check(found if isinstance(found, list) else [found] if reads and found else [])
                _faults(setup).clear()

    @pytest.mark.needs("places")
    def test_a_machine_without_a_usable_id_makes_the_listing_invalid(self, setup: Setup, deadline: Deadline) -> None:
        """An empty id would name all such machines at once; the BMDB cannot hold the others."""
        places = _places(setup)
        for value in NO_IDS:
            _faults(setup).add(SetValue(path=places.path, times=0, at=places.id, value=value))
            error = _error(f"id {value!r:.20}", setup.provider.list_machines, deadline)
            assert isinstance(error, ListingInvalid), value
            _faults(setup).clear()

    @pytest.mark.needs("places")
    def test_an_address_that_no_machine_can_have_is_never_dialed(self, setup: Setup, deadline: Deadline) -> None:
        """0.0.0.0 is the function itself, and a name would be looked up."""
        setup.created(deadline)
        places = _places(setup)
        for value in NO_ADDRESSES:
            _faults(setup).add(SetValue(path=places.path, times=0, at=places.address, value=value))
            found = _outcome(f"address {value!r}", setup.provider.list_machines, deadline)
            _check(found or [])
            assert str(value) not in {str(machine.address) for machine in found or []}, value
            _faults(setup).clear()

    @pytest.mark.needs("places")
    def test_a_listing_that_shrinks_meanwhile_is_complete_or_invalid(self, setup: Setup, deadline: Deadline) -> None:
        """An entry that moves to a page that was read before looks as if it were gone."""
        _faults(setup).add(Shrink(path=_places(setup).path, nth=2))
        found = _outcome("list", setup.provider.list_machines, deadline)
        assert found is None or {each.capacity_id for each in found} == setup.capacity_ids


def _faults(setup: Setup) -> FaultScript:
    assert setup.faults is not None, "this suite is for edges with faults"
    return setup.faults


def _places(setup: Setup) -> Places:
    assert setup.places is not None
    return setup.places


def _after(setup: Setup, fault: Rule) -> None:
    for method in WRITES:
        _faults(setup).add(type(fault)(**{**vars(fault), "method": method}))


def _check(machines: list[Machine]) -> None:
    for machine in machines:
        assert machine.provider_id == INVALID or fields.identifier(machine.provider_id)
        assert machine.address is None or fields.address(str(machine.address))


def _error(case: str, call: Callable[[Deadline], Any], deadline: Deadline) -> ProviderError:
    with pytest.raises(ProviderError) as raised:
        _outcome(case, call, deadline, raises=True)
    return raised.value


def _outcome(case: str, call: Callable[[Deadline], Any], deadline: Deadline, *, raises: bool = False) -> Any:
    """Return what *call* returns, None if it raises an error of the provider; fail if it raises any other."""
    try:
        found = call(deadline)
    except ProviderError:
        if raises:
            raise
        return None
    except Exception as error:  # noqa: BLE001 - it becomes the message
        pytest.fail(f"{case}: {error!r:.200}")
    assert not raises, f"{case}: no error"
    return found
