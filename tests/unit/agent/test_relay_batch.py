"""When a relay passes on what it has collected: as soon as the first of the agents cannot wait any longer."""

import asyncio
import threading
from collections.abc import Mapping
from http.client import HTTPMessage
from typing import cast

import pytest

from agent.shepherd_agent.relay.batch import Away, Batches, RelayedAnswer
from agent.shepherd_agent.relay.client import RelayClient
from agent.shepherd_agent.relay.server import allowed_seconds
from agent.shepherd_agent.relay.times import ANSWER_SECONDS, LONGEST_COLLECT_SECONDS, collect_seconds
from agent.shepherd_agent.reports.endpoint import CONTENT_TYPE, Answer, Endpoint, NotDelivered
from agent.shepherd_agent.wire import field, fields, integer

HOUR = 3600.0
ENDPOINTS = 4


class Api:
    """The endpoint's side: counts the heartbeats of each batch, and answers when a test lets it."""

    seconds = HOUR

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.open = threading.Event()
        self.open.set()
        self.asked = threading.Semaphore(0)
        self.away = False

    def post(self, _method: str, message: bytes, _headers: Mapping[str, str]) -> Answer:
        """Answer a batch."""
        count = len(list(fields(message)))
        self.batches.append(count)
        self.asked.release()
        self.open.wait(60)
        if self.away:
            reason = "away"
            raise NotDelivered(reason)
        headers = HTTPMessage()
        headers["Content-Type"] = CONTENT_TYPE
        return Answer(200, "200 OK", headers, field(1, integer(1, 200)) * count)


@pytest.fixture
def api() -> Api:
    """Return an endpoint that answers at once."""
    return Api()


def batches_to(api: Api) -> Batches:
    """Return the batches of a relay."""
    return Batches(lambda: cast("Endpoint", api))


def add(batches: Batches, seconds: float) -> asyncio.Future[RelayedAnswer]:
    """Add a heartbeat that can wait so long."""
    return batches.add(b"m", 1, b"s" * 64, b"", seconds)


def test_the_batch_goes_when_the_first_of_its_heartbeats_cannot_wait(api: Api) -> None:
    """A machine with a short interval may stand beside others; it takes them with it, which harms none."""

    async def collect() -> None:
        batches = batches_to(api)
        await asyncio.wait_for(asyncio.gather(*(add(batches, each) for each in (HOUR, 0.01, HOUR))), 60)

    asyncio.run(collect())
    assert api.batches == [3]


def test_a_batch_that_is_late_does_not_wait_for_a_heartbeat_that_can(api: Api) -> None:
    """It goes when an answer has come, though others have joined it; its agents have waited long enough."""

    async def collect() -> None:
        batches = batches_to(api)
        api.open.clear()
        busy = []
        for _ in range(ENDPOINTS):
            busy.append(add(batches, 0))
            await asyncio.to_thread(api.asked.acquire)
        late = add(batches, 0)
        for _ in range(3):
            await asyncio.sleep(0)  # its timer ends, and nothing is free
        joined = add(batches, HOUR)
        api.open.set()
        await asyncio.wait_for(asyncio.gather(*busy, late, joined), 60)

    asyncio.run(collect())
    assert api.batches == [1, 1, 1, 1, 2]


def test_heartbeats_after_a_failure_are_collected_as_before(api: Api) -> None:
    """What was waiting is told at once that the endpoint is away, and nothing of it stays."""

    async def collect() -> None:
        batches = batches_to(api)
        api.away = True
        for waiting in (add(batches, HOUR), add(batches, 0)):
            with pytest.raises(Away):
                await asyncio.wait_for(waiting, 60)
        with pytest.raises(Away):
            add(batches, 0)
        api.away, batches._away_until = False, 0.0  # as after ten seconds
        await asyncio.wait_for(asyncio.gather(add(batches, HOUR), add(batches, 0.01)), 60)

    asyncio.run(collect())
    assert api.batches == [2, 2]


@pytest.mark.parametrize(
    ("text", "seconds"), [("7", 7), ("20", 20), ("9999", 20), ("0", 0), ("", 0), ("-1", 0), ("x", 0), ("²", 0)]
)
def test_a_relay_collects_for_as_long_as_the_agent_says(text: str, seconds: int) -> None:
    """Up to a limit. An agent that does not say it may not wait at all."""
    assert allowed_seconds({"shepherd-collect": text}) == seconds
    assert allowed_seconds({"shepherd-collect": "9" * 5000}) == allowed_seconds({}) == 0


@pytest.mark.parametrize(("interval", "seconds"), [(1, 0), (10, 0), (60, 5), (239, 19), (240, 20), (3600, 20)])
def test_a_relay_collects_for_a_twelfth_of_the_interval(interval: float, seconds: int) -> None:
    """A machine with a short interval has less to lose."""
    assert collect_seconds(interval) == seconds


def test_a_relay_that_hangs_and_three_lost_requests_make_no_machine_unhealthy() -> None:
    """The machine has two and a half intervals, and 260 seconds at the least, which a rule between settings demands."""
    requests, pauses = 4 * 20, 10 + 15 + 22.5  # the fourth request arrives
    for interval in range(10, 3601):
        relay = collect_seconds(interval) + ANSWER_SECONDS
        assert 1.1 * interval + relay + requests + pauses <= max(260, 2.5 * interval), interval


def test_with_the_default_interval_a_relay_makes_no_machine_late() -> None:
    """The circuit breaker takes a machine for late after half of its timeout, 300 seconds by default."""
    assert 1.1 * 240 + LONGEST_COLLECT_SECONDS + ANSWER_SECONDS < 300


def test_a_relay_that_failed_is_left_alone_for_longer_than_three_lost_requests() -> None:
    """A relay that hangs may delay one heartbeat of an agent, and not each."""
    times: list[float] = []
    asked: list[float] = []
    client = RelayClient(b"k" * 32, lambda: 240.0, elapsed=lambda: times[-1])
    client.told("an address that is none")

    def headers() -> Mapping[str, str]:
        asked.append(times[-1])
        return {}

    for time in (0.0, 3 * 20 + 10 + 15 + 22.5, 120.0):
        times.append(time)
        assert client.send(b"", headers) is None
    assert asked == [0.0, 120.0]
