"""A fleet whose relays go bad, each in another way: every machine goes on reporting, and none is rebooted."""

import socket
from base64 import b64decode
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from http import HTTPStatus
from itertools import cycle

import requests
from shepherd_core.domain.pb.callback_pb2 import HeartbeatBatch, SignedHeartbeat

from simulator.providers.kit.http_server import HttpRequest, Reply
from tests.conftest import ManualClock
from tests.integration.agent.test_relay import LIES, Agent, Api, Relay, free_port, lie, place
from tests.support.bmdb.fleet import Fleet
from tests.support.bmdb.recovery import RecoveryEnvironment

AT_EACH = 3
"""Machines at a location."""
INTERVAL = 240
ROUNDS = 3
"""How often all machines report after the relays went bad: for longer than the heartbeat timeout."""
FRESH = "SELECT count(*) FROM machine_agent_heartbeat WHERE agent_heartbeat_at > now() - interval '1 minute'"


class Flooding:
    """A relay that sends the endpoint what it has got, again and again, and tells its machines nothing."""

    def __init__(self, url: str) -> None:
        self._url = f"{url}/heartbeats"
        self._kept: list[SignedHeartbeat] = []
        self.sent = 0

    def receive(self, request: HttpRequest) -> Reply:
        """Take a heartbeat."""
        headers = {name.lower(): value for name, value in request.headers.items()}
        heartbeat = SignedHeartbeat(
            machine_id=headers["shepherd-machine"],
            time=int(headers["shepherd-time"]),
            signature=b64decode(headers["shepherd-signature"]),
            body=request.content,
        )
        self._kept.append(heartbeat)
        entries = cycle(list(self._kept))
        flood = HeartbeatBatch(heartbeat=[next(entries) for _ in range(500)]).SerializeToString()
        for _ in range(2):
            requests.post(self._url, flood, timeout=20)
            self.sent += 500
        return Reply(status=HTTPStatus.SERVICE_UNAVAILABLE)


class Racks(RecoveryEnvironment):
    """Machines at several locations, each location with its relay."""

    def __init__(self, fleet: Fleet, clock: ManualClock, api: Api) -> None:
        super().__init__(fleet, clock)
        self._api = api
        self.agents: list[Agent] = []

    def rack(self, relays: dict[str, str]) -> None:
        """Put machines at the locations of *relays*."""
        for location in relays:
            for _ in range(AT_EACH):
                agent = Agent(self.fleet, self._api.url, seconds=0.5 if location == "delaying" else 10.0)
                self.fleet.locate(agent.known.machine_id, location)
                self.agents.append(agent)
        self._api.tell(",".join(f"static/{location}={relay}" for location, relay in relays.items()), INTERVAL)

    def report(self) -> None:
        """Let all machines report at the same time, and an interval pass in which the Recoverer runs every minute."""
        with ThreadPoolExecutor(len(self.agents)) as threads:
            answers = list(threads.map(Agent.send, self.agents))
        assert {answer.report_interval_seconds for answer in answers} == {INTERVAL}
        assert self.fleet.sql(FRESH) == [[len(self.agents)]]
        for _ in range(INTERVAL // 60):
            self.tick()
            assert (self.provider.reboots, self.suspended()) == ({}, {})
        for agent in self.agents:
            agent.elapsed += INTERVAL


def test_relays_that_go_bad_reboot_no_machine_and_suspend_nothing(fleet: Fleet, clock: ManualClock) -> None:
    """One is killed; others lie, delay, flood the endpoint, or do not reach it. Machines then report directly."""
    with ExitStack() as stack:
        api = stack.enter_context(closing(Api(fleet)))
        sound, killed = (stack.enter_context(closing(Relay(api.url))) for _ in range(2))
        cut_off = stack.enter_context(closing(Relay(f"http://127.0.0.1:{free_port()}/prod")))
        delaying = stack.enter_context(socket.create_server(("127.0.0.1", 0)))  # takes everything, answers nothing
        lies = cycle(LIES.values())
        lying = stack.enter_context(closing(lie(lambda request: next(lies)(bytes(32), request))))
        flooding = Flooding(api.url)
        racks = Racks(fleet, clock, api)
        racks.rack(
            {
                "sound": sound.address,
                "killed": killed.address,
                "cut-off": cut_off.address,
                "delaying": f"127.0.0.1:{delaying.getsockname()[1]}",
                "lying": place(lying),
                "flooding": place(stack.enter_context(closing(lie(flooding.receive)))),
            }
        )
        racks.report()  # directly: the machines are told of their relays
        api.requests.clear()
        racks.report()
        assert len(direct(api)) == 4 * AT_EACH
        killed.close()
        for _ in range(ROUNDS):
            api.requests.clear()
            racks.report()
            assert direct(api) == {str(agent.known.machine_id) for agent in racks.agents[AT_EACH:]}
        assert flooding.sent > 0


def direct(api: Api) -> set[str]:
    """Return the machines that reported directly."""
    headers = [{name.lower(): value for name, value in request.headers.items()} for request in api.requests]
    return {each["shepherd-machine"] for each in headers if "shepherd-machine" in each}
