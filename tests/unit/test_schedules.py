"""The simulated schedules: who is fired, and how often."""

import threading
from collections.abc import Mapping
from typing import Any, cast

from simulator.environment.scheduler import Schedules
from simulator.lambda_.service import Invocation, LambdaService

TICKS = 7


class Service:
    """Counts events, and tells when the seventh for ``often`` is there."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.enough = threading.Event()

    def invoke(self, name: str, _event: Mapping[str, Any]) -> Invocation:
        """Return at once."""
        self.events.append(name)
        if self.events.count("often") == TICKS:
            self.enough.set()
        return Invocation(name, 0.0, {})


def test_a_function_can_be_fired_less_often_than_the_others() -> None:
    """Where a provider counts listings by the hour, every minute is too often for those who list."""
    service, done = Service(), list[Invocation]()
    functions = ("seldom", "often")
    with Schedules(
        cast("LambdaService", service), functions, 0.002, done=done.append, every={"seldom": 3}, twice=0
    ) as schedules:
        assert service.enough.wait(20)
        schedules.close()
    fired = service.events.count("often")
    # The last interval may have been cut short after the first of its two events.
    assert service.events.count("seldom") in {-(-fired // 3), -(-(fired + 1) // 3)}
    assert len(done) == len(service.events)
