"""When the agent reports."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
from shepherd_core.settings.functions import RecovererSettings

from agent.shepherd_agent.heartbeat import INTERVAL_VARIABLE, interval, pause_after
from agent.shepherd_agent.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterable


@pytest.mark.parametrize(
    ("environment", "seconds"), [({}, 60.0), ({INTERVAL_VARIABLE: ""}, 60.0), ({INTERVAL_VARIABLE: "0.5"}, 0.5)]
)
def test_the_interval_is_a_minute_unless_it_is_set(environment: dict[str, str], seconds: float) -> None:
    """A demonstration cannot wait a minute."""
    assert interval(environment) == seconds


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "often", "1e999"])
def test_an_interval_that_makes_no_sense_is_refused(text: str) -> None:
    """The error names the variable, the value and the requirement."""
    with pytest.raises(Refusal, match=rf"{INTERVAL_VARIABLE} is '{text}'; set it to a positive number"):
        interval({INTERVAL_VARIABLE: text})


def _pauses(lost: Iterable[int], seed: int = 0) -> list[float]:
    chance = Random(seed)
    return [pause_after(count, 60.0, chance) for count in lost]


def test_a_lost_heartbeat_is_repeated_sooner_and_never_later_than_the_interval() -> None:
    """Waiting longer after a loss made one lost request in five look like dead machines."""
    assert all(54 <= pause <= 66 for pause in _pauses([0] * 100))
    assert all(6 <= pause <= 12 for pause in _pauses([1] * 100))
    assert all(9 <= pause <= 18 for pause in _pauses([2] * 100))
    assert max(_pauses(range(1, 2000))) <= 60
    assert min(_pauses(range(6, 2000))) >= 30


def test_machines_that_lose_a_heartbeat_together_do_not_repeat_it_together() -> None:
    """Or the end of an outage would bring all of them at once."""
    retries = sorted(pause_after(1, 60.0, Random(seed)) for seed in range(1000))
    busiest = max(sum(second <= retry < second + 1 for retry in retries) for second in range(6, 12))
    assert busiest < 1000 / 4


@pytest.mark.parametrize("share", [0.2, 0.3, 0.4])
def test_lost_requests_do_not_make_a_healthy_machine_look_unhealthy(share: float) -> None:
    """A hundred machines for an hour, each request lost with a fixed probability, at the default timeout."""
    timeout = RecovererSettings.model_fields["heartbeat_timeout_seconds"].default
    chance = Random(20261122)
    for _ in range(100):
        now = heard = chance.uniform(-60, 0)
        lost = 0
        while now < 3600:
            lost = lost + 1 if chance.random() < share else 0
            if not lost:
                assert now - heard < timeout
                heard = now
            now += pause_after(lost, 60.0, chance)


def test_a_fleet_asks_an_endpoint_that_is_down_at_most_half_as_often_again() -> None:
    """A hundred thousand machines that retry must not be the next outage."""
    chance = Random(1)
    requests = [0] * 60
    for _ in range(1000):
        now, lost = chance.uniform(0, 60), 0
        while now < 3600:
            requests[int(now // 60)] += 1
            lost += 1
            now += pause_after(lost, 60.0, chance)
    assert max(requests[:3]) < 3.5 * 1000
    assert max(requests[10:]) < 1.5 * 1000
