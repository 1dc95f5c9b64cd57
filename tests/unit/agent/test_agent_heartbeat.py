"""When the agent reports."""

from collections.abc import Iterable
from random import Random

import pytest
from shepherd_core.settings.functions.services import AgentApiSettings

from agent.shepherd_agent.reports.heartbeat import first_pause, pause_after, pause_after_failure

DEFAULT = AgentApiSettings.model_fields["heartbeat_interval_seconds"].default


def _pauses(lost: Iterable[int], interval: float) -> list[float]:
    chance = Random(0)
    return [pause_after(count, interval, chance) for count in lost]


@pytest.mark.parametrize("interval", [60, DEFAULT, 3600])
def test_a_lost_heartbeat_is_repeated_within_seconds_to_a_minute(interval: float) -> None:
    """Waiting longer after a loss made one lost request in five look like dead machines."""
    assert all(0.9 * interval <= pause <= 1.1 * interval for pause in _pauses([0] * 100, interval))
    assert all(5 <= pause <= 10 for pause in _pauses([1] * 100, interval))
    assert all(7.5 <= pause <= 15 for pause in _pauses([2] * 100, interval))
    assert max(_pauses(range(1, 2000), interval)) <= 60
    assert min(_pauses(range(6, 2000), interval)) >= 30


@pytest.mark.parametrize("interval", [0.05, 1, 10])
def test_with_a_short_interval_no_pause_is_longer(interval: float) -> None:
    assert all(0.1 * interval <= pause <= 0.2 * interval for pause in _pauses([1] * 100, interval))
    assert max(_pauses(range(1, 2000), interval)) <= interval


@pytest.mark.parametrize(("interval", "seconds"), [(10, 10), (60, 60), (DEFAULT, 60), (3600, 60)])
def test_a_heartbeat_not_accepted_is_repeated_after_a_minute(interval: float, seconds: float) -> None:
    """The endpoint is there and in trouble; but nothing was recorded, and an hour would be too long."""
    chance = Random(0)
    pauses = [pause_after_failure(0, interval, chance) for _ in range(100)]
    assert all(0.9 * seconds <= pause <= 1.1 * seconds for pause in pauses)
    assert all(5 <= pause_after_failure(1, 3600, chance) <= 10 for _ in range(100))


def test_machines_that_get_an_interval_together_spread_over_it() -> None:
    """Or a fleet that was changed to an hour would report in the same minutes of each hour."""
    chance = Random(0)
    pauses = [first_pause(3600, chance) for _ in range(1000)]
    tenths = [sum(360 * part <= pause < 360 * (part + 1) for pause in pauses) for part in range(10)]
    assert tenths[0] == 0  # they have just reported
    assert all(80 <= count <= 150 for count in tenths[1:])


@pytest.mark.parametrize("interval", [60, DEFAULT, 3600])
def test_a_fleet_spares_an_endpoint_that_is_down(interval: float) -> None:
    chance = Random(1)
    requests = [0] * 60
    for _ in range(1000):
        now, lost = chance.uniform(0, min(interval, 3540)), 0
        while now < 3600:
            requests[int(now // 60)] += 1
            lost += 1
            now += pause_after(lost, interval, chance)
    assert max(requests[:3]) < 4 * 1000
    assert max(requests[10:]) < 1.5 * 1000
