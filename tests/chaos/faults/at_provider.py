"""Faults of a provider's API."""

from collections.abc import Callable
from typing import Any

from pydantic.dataclasses import dataclass as checked
from shepherd_core.providers.equinix.objects import token_tag

from simulator.environment import faults
from tests.chaos.faults.fault import Fault, Stage, rows
from tests.chaos.stage.environment import PREFIX
from tests.support.waiting import eventually

_DEVICES = "/projects/{id}/devices"
_RESERVATIONS = "/projects/{id}/hardware-reservations"
_ACTIONS = "/devices/{id}/actions"


def _api(*rules: faults.Rule) -> Callable[[Stage], None]:
    def begin(stage: Stage) -> None:
        stage.environment.api.per_page_cap = 2  # so that listings have pages
        for rule in rules:
            stage.environment.api.faults.add(rule)
        stage.undo.callback(stage.environment.api.faults.clear)

    return begin


def _status(status: int, method: Any = "*", path: str = "**", **more: Any) -> Callable[[Stage], None]:
    return _api(faults.FakeAnswer(method=method, path=path, status=status, **{"times": 0, **more}))


@checked(frozen=True, kw_only=True)
class _Meanwhile(faults.Rule):
    """Runs ``call`` just before a request, and leaves the request as it is."""

    call: Any

    def hits(self, count: int) -> bool:
        if super().hits(count):
            self.call()
        return False


def _take_capacity(stage: Stage) -> None:
    """Take the capacity of the first creation between the listing and the creation."""
    second = stage.environment.api.reservations()[1]
    _api(_Meanwhile(method="POST", path=_DEVICES, call=lambda: stage.environment.api.occupy(second)))(stage)


def _one_token_for_two(stage: Stage) -> None:
    """Create two devices without a reservation that carry the token of a creation with unknown outcome."""
    ((token,),) = stage.environment.fleet.sql(
        "SELECT machine_id FROM machine_creation_intent ORDER BY intended_at DESC LIMIT 1"
    )
    devices = [
        stage.environment.api.add_active_device(f"{PREFIX}same", [token_tag(token)], racked=False) for _ in range(2)
    ]
    stage.undo.callback(stage.environment.api.forget, devices[0].id)


def _late(stage: Stage) -> None:
    """Create after the answer, and before the next invocation: that comes an hour later, when intents are abandoned."""
    _api(faults.CreateLate(method="POST", path=_DEVICES, seconds=0.1))(stage)
    stage.undo.callback(eventually, stage.environment.api.settled)


def _slow_to_answer(stage: Stage) -> None:
    _api(faults.Delay(method="POST", seconds=3, when="after", times=0))(stage)
    stage.scenario.access.machine_seconds = 1


_REFUSED, _UNAVAILABLE, _INVALID = "provider-refused", "provider-unavailable", "listing-invalid"
_UNUSABLE, _FORBIDDEN = "provider-unusable", "provider-forbidden"
_LEFT = f"penalty {_UNAVAILABLE}, incomplete"
_UNHEARD_OF = _api(faults.SetValue(times=0, at="**.state", value="unheard_of"))


def _page(kind: type[faults.Rule], path: str, **more: Any) -> Callable[[Stage], None]:
    return _api(kind(method="GET", path=path, **more))


PROVIDER = (
    *rows(
        "provisioner",
        ("401", _status(401), f"fails {_UNUSABLE}"),
        ("403", _status(403), f"fails {_FORBIDDEN}"),
        ("403", _status(403, "POST", _DEVICES), f"fails {_FORBIDDEN}"),
        ("404", _status(404, "GET", _RESERVATIONS), f"fails {_REFUSED}"),
        ("422", _status(422, "POST", _DEVICES), f"penalty {_REFUSED}"),
        ("429 with Retry-After", _status(429, "GET", retry_after=1, times=2), ""),
        ("429 with Retry-After", _status(429, "POST", _DEVICES, retry_after=60), "incomplete"),
        ("500", _status(500), f"fails {_UNAVAILABLE}"),
        ("503", _status(503, "GET", times=2), ""),
        ("503", _status(503, "POST", _DEVICES), _LEFT),
        ("timeout after the effect", _status(504, "POST", _DEVICES, when="after"), _LEFT),
        ("timeout after the effect", _api(faults.Drop(method="POST", path=_DEVICES, when="after")), _LEFT),
        ("empty page", _page(faults.EmptyPage, _RESERVATIONS), ""),
        ("empty page", _page(faults.EmptyPage, _RESERVATIONS, times=0), f"fails {_INVALID}"),
        ("page that repeats", _page(faults.RepeatPage, _RESERVATIONS, nth=2), ""),
        ("page that repeats", _page(faults.RepeatPage, _RESERVATIONS, times=0), f"fails {_INVALID}"),
        (
            "page that repeats",
            _page(faults.SetValue, _RESERVATIONS, times=0, at="meta.next", value={"href": "?page=1"}),
            "",
        ),
        ("listing that shrinks in the middle", _page(faults.Shrink, _RESERVATIONS, nth=2), ""),
        ("creation that succeeds late", _late, _LEFT),
        ("device in an unknown state", _UNHEARD_OF, ""),
        ("capacity taken by others", _take_capacity, "penalty capacity-taken"),
    ),
    Fault(
        "two devices with one token",
        "provisioner",
        _one_token_for_two,
        frozenset({"drifted"}),
        breaks="no_machine_is_created_twice",
    ),
    *rows(
        "recoverer",
        ("401", _status(401), f"cause {_UNUSABLE}"),
        ("403", _status(403), f"cause {_FORBIDDEN}"),
        ("404", _status(404, "POST", _ACTIONS), "cause machine-not-found"),
        ("422", _status(422, "POST", _ACTIONS), f"cause {_REFUSED}"),
        ("429 with Retry-After", _status(429, "GET", retry_after=1, times=2), ""),
        ("429 with Retry-After", _status(429, "POST", _ACTIONS, retry_after=60), f"cause {_UNAVAILABLE}"),
        ("500", _status(500, "POST", _ACTIONS), f"cause {_UNAVAILABLE}"),
        ("503", _status(503, "GET"), f"cause {_UNAVAILABLE}"),
        ("timeout after the effect", _slow_to_answer, f"cause {_UNAVAILABLE}"),
        ("device in an unknown state", _UNHEARD_OF, ""),
    ),
    *rows(
        "updater",
        ("401", _status(401), f"fails {_UNUSABLE}"),
        ("404", _status(404), f"fails {_REFUSED}"),
        ("429 with Retry-After", _status(429, retry_after=60), f"fails {_UNAVAILABLE}"),
        ("500", _status(500, times=2), ""),
        ("503", _status(503), f"fails {_UNAVAILABLE}"),
        ("empty page", _page(faults.EmptyPage, _DEVICES, times=0), f"fails {_INVALID}"),
        ("page that repeats", _page(faults.RepeatPage, _DEVICES, nth=2, times=0), f"fails {_INVALID}"),
        ("listing that shrinks in the middle", _page(faults.Shrink, _DEVICES, nth=2), ""),
        ("device in an unknown state", _UNHEARD_OF, ""),
    ),
)
