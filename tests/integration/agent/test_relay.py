"""Heartbeats through a relay: a real one, and such as lie, hang or die. None makes a healthy machine unhealthy."""

import hmac
import socket
import subprocess
import sys
import threading
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from itertools import pairwise
from pathlib import Path

import pytest
from shepherd_core.agent.endpoint import AgentRequest
from shepherd_core.domain.pb.callback_pb2 import AgentHardwareReport, HeartbeatResponse

from agent.shepherd_agent.__main__ import main
from agent.shepherd_agent.ed25519 import PrivateKey
from agent.shepherd_agent.messages import heartbeat_request
from agent.shepherd_agent.relay.client import RelayClient
from agent.shepherd_agent.reports.endpoint import Endpoint, NotDelivered
from agent.shepherd_agent.reports.reporter import Reporter
from simulator.environment.agent_endpoint import AgentEndpoint
from simulator.providers.kit.http_server import HttpRequest, Reply, Server
from tests.support.agents.signed_agent import SignedAgent, database_time, endpoint
from tests.support.bmdb.fleet import Fleet

ROOT = Path(__file__).parents[3]
RELAY = "192.0.2.7:7070"
SERVED = "127.0.0.0/8"


class Api:
    """The agent API over HTTP, with everything that it was asked."""

    def __init__(self, fleet: Fleet, relays: str = "") -> None:
        self.requests: list[HttpRequest] = []
        self._api = endpoint(fleet.connect(), relays=relays)
        self._fleet = fleet
        self._lock = threading.Lock()
        self.server = AgentEndpoint(self._receive)
        self.url = f"{self.server.url}/prod"

    @property
    def paths(self) -> list[str]:
        """The paths of the requests, in their order."""
        return [request.path for request in self.requests]

    def tell(self, relays: str, interval: int) -> None:
        """Go on as a new process of the function, with other settings."""
        self._api = endpoint(self._fleet.connect(), relays=relays, interval=interval)

    def _receive(self, request: HttpRequest) -> Reply:
        with self._lock:
            self.requests.append(request)
            headers = {name.lower(): value for name, value in request.headers.items()}
            now = database_time(self._fleet)
            answer = self._api.handle(AgentRequest("POST", request.path, headers, request.content, now))
        return Reply(status=answer.status, body=answer.body, headers=answer.headers)

    def close(self) -> None:
        """End the server."""
        self.server.close()


class Agent:
    """The agent's own code, without its process."""

    def __init__(self, fleet: Fleet, url: str, relay: str = "", interval: float = 10.0, seconds: float = 10.0) -> None:
        key = PrivateKey(b"k" * 32)
        self.known = SignedAgent(fleet)
        self.elapsed = 0.0
        self._fleet = fleet
        fleet.change(
            self.known.machine_id,
            f"UPDATE machine_agent_started SET agent_public_key = '\\x{key.public.hex()}' "
            f"WHERE machine_id = '{self.known.machine_id}'",
        )
        client = RelayClient(self.known.response_key, lambda: interval, seconds, lambda: self.elapsed)
        client.told(relay)
        self.reporter = Reporter(Endpoint(url, b""), key, str(self.known.machine_id), relay=client)

    def send(self, hardware: bytes = b"") -> HeartbeatResponse:
        """Send a heartbeat and return the response."""
        message = heartbeat_request(str(self.known.machine_id), hardware=hardware)
        return HeartbeatResponse.FromString(self.reporter.send("heartbeat", message))

    def signed_at(self) -> int:
        """Return the time of the last heartbeat on record."""
        query = "SELECT agent_signed_at FROM machine_agent_heartbeat WHERE machine_id = :id"
        rows = self._fleet.sql(query, id=self.known.machine_id)
        return int(rows[0][0]) if rows else 0


class Relay:
    """A relay in a process of its own."""

    def __init__(self, url: str, served: str = SERVED) -> None:
        # It needs the standard library alone; to find the environment's packages takes a third of its start.
        command = [sys.executable, "-S", "-m", "agent.shepherd_agent", "--relay", "127.0.0.1:0", url, served]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().split()[-1]

    def close(self) -> None:
        """Kill it."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()

    def connect(self) -> socket.socket:
        """Return a connection to it."""
        host, _, port = self.address.rpartition(":")
        return socket.create_connection((host, int(port)), timeout=20)

    def ask(self, request: bytes) -> bytes:
        """Return what it answers to any bytes."""
        with self.connect() as sock:
            sock.sendall(request)
            sock.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: sock.recv(65_536), b""))


def free_port() -> int:
    """Return a port that is free."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
        return port


@pytest.fixture
def api(fleet: Fleet) -> Iterator[Api]:
    """Return the API."""
    with closing(Api(fleet)) as running:
        yield running


@pytest.fixture
def relay(api: Api) -> Iterator[Relay]:
    """Return a relay for it."""
    with closing(Relay(api.url)) as running:
        yield running


# --- the way that every heartbeat goes ---


def test_heartbeats_go_through_the_relay_that_the_endpoint_names(fleet: Fleet) -> None:
    """The first comes directly and is told; then one request brings what all machines send within seconds."""
    with ExitStack() as stack:
        relay = stack.enter_context(closing(Relay(f"http://127.0.0.1:{free_port()}/prod")))
        api = stack.enter_context(closing(Api(fleet, relays=f"static={relay.address}")))
        own = stack.enter_context(closing(Relay(api.url)))
        agents = [Agent(fleet, api.url) for _ in range(3)]
        assert {agent.send().relay for agent in agents} == {relay.address}
        for agent in agents:
            agent.reporter._relay.told(own.address)  # type: ignore[union-attr]
        before = [agent.signed_at() for agent in agents]
        threads = [threading.Thread(target=agent.send) for agent in agents]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(agent.signed_at() > last for agent, last in zip(agents, before, strict=True))
        assert set(api.paths[3:]) == {"/prod/heartbeats"}


def test_hardware_travels_through_a_relay(fleet: Fleet, api: Api, relay: Relay) -> None:
    """The relay passes on bytes; it does not read them."""
    hardware = AgentHardwareReport(warning=["a fan"]).SerializeToString()
    Agent(fleet, api.url, relay.address).send(hardware)
    assert api.paths == ["/prod/heartbeats"]
    assert fleet.sql("SELECT hardware_report_raw FROM machine_hardware_report") == [[hardware]]


def test_a_requested_installation_is_fetched_directly(fleet: Fleet, relay: Relay) -> None:
    """It may contain secrets. The answer that the relay brings names no relay, so the next heartbeat is direct."""
    with closing(Api(fleet, relays=f"static={relay.address}")) as api, closing(Relay(api.url)) as own:
        agent = Agent(fleet, api.url, own.address)
        fleet.request_installation(agent.known.machine_id, 3)
        brought = agent.send()
        assert (brought.HasField("installation_request"), brought.relay) == (False, "")
        fetched = agent.send()
        assert fetched.installation_request.generation == 3
        assert api.paths == ["/prod/heartbeats", "/prod/heartbeat"]


@pytest.mark.parametrize(
    ("relays", "location", "named"),
    [
        ("", "ams", ""),
        (f"static={RELAY}", "ams", RELAY),
        (f"static={RELAY}", None, RELAY),
        (f"static/fra={RELAY}", "ams", ""),
        (f"static/fra={RELAY}, static/ams=10.0.0.1:7, static=10.0.0.2:7", "ams", "10.0.0.1:7"),
        (f"hetzner={RELAY}", "ams", ""),
    ],
)
def test_the_relay_is_that_of_the_location(fleet: Fleet, relays: str, location: str | None, named: str) -> None:
    """Otherwise that of the provider; otherwise none. It costs no round trip beside that for the key."""
    agent = SignedAgent(fleet)
    fleet.sql("UPDATE machine_provided SET provider_location = :location", location=location)
    api = endpoint(fleet.connect(), relays=relays)
    for _ in range(2):
        assert HeartbeatResponse.FromString(api.handle(agent.request()).body).relay == named


def test_an_agent_that_would_not_recognize_answers_is_told_of_no_relay(fleet: Fleet) -> None:
    """An agent of another make gave no key for answers."""
    agent = SignedAgent(fleet)
    fleet.sql("UPDATE machine_agent_started SET agent_response_key = NULL")
    assert endpoint(fleet.connect(), relays=f"static={RELAY}").handle(agent.request()).body == b""


# --- relays that are no good ---


class Liar(Server):
    """A relay that does with each request what a test says."""


def lie(answer: Callable[[HttpRequest], Reply | None]) -> Liar:
    """Return a running one."""
    server = Liar(answer, "127.0.0.1")
    server.start()
    return server


def place(server: Server) -> str:
    """Return its HOST:PORT."""
    return server.url.rpartition("/")[2]


def signed(key: bytes, request: HttpRequest, body: bytes, status: int = 200) -> Reply:
    """Return an answer that *key* authenticates."""
    headers = {name.lower(): value for name, value in request.headers.items()}
    signature = b64decode(headers["shepherd-signature"]).hex()
    text = f"shepherd-answer-v1\n{signature}\n{status}\n1\n".encode() + body
    mac = b64encode(hmac.new(key, text, "sha256").digest()).decode()
    return Reply(status=status, body=body, headers={"Shepherd-Time": "1", "Shepherd-Mac": mac})


INTERVAL = HeartbeatResponse(report_interval_seconds=3600).SerializeToString()
LIES: dict[str, Callable[[bytes, HttpRequest], Reply | None]] = {
    "a bare 200": lambda key, request: Reply(status=200),
    "a forged interval": lambda key, request: signed(bytes(32), request, INTERVAL),
    "a mac that is none": lambda key, request: Reply(
        status=200, headers={"Shepherd-Mac": "\u00e4", "Shepherd-Time": "1"}
    ),
    "another body": lambda key, request: Reply(status=200, body=INTERVAL, headers=signed(key, request, b"").headers),
    "another status": lambda key, request: Reply(status=200, headers=signed(key, request, b"", 401).headers),
    "a refusal": lambda key, request: signed(key, request, b"not authorized\n", 401),
    "a limit": lambda key, request: signed(key, request, b"too often\n", 429),
    "an error": lambda key, request: Reply(status=503),
    "a hangup": lambda key, request: None,
    "a huge answer": lambda key, request: Reply(status=200, body=b"x" * 10_000_000),
}


@pytest.mark.parametrize("name", LIES)
def test_a_relay_that_lies_costs_no_heartbeat(fleet: Fleet, api: Api, name: str) -> None:
    """The same heartbeat goes to the endpoint at once, and the relay rests."""
    agent = Agent(fleet, api.url)
    with closing(lie(lambda request: LIES[name](agent.known.response_key, request))) as liar:
        agent.reporter._relay.told(place(liar))  # type: ignore[union-attr]
        before = agent.signed_at()
        assert agent.send().report_interval_seconds == 0
        assert agent.signed_at() > before
        assert api.paths == ["/prod/heartbeat"]


def test_an_older_answer_is_not_believed_again(fleet: Fleet, api: Api) -> None:
    """It was the endpoint's, to another heartbeat."""
    agent = Agent(fleet, api.url)
    kept: list[Reply] = []

    def replay(request: HttpRequest) -> Reply:
        kept.append(signed(agent.known.response_key, request, b""))
        return kept[0]

    with closing(lie(replay)) as liar:
        agent.reporter._relay.told(place(liar))  # type: ignore[union-attr]
        agent.send()
        assert api.paths == []  # the first one is right, as far as the agent can tell
        agent.reporter._relay.told(place(liar))  # type: ignore[union-attr]
        agent.send()
        assert api.paths == ["/prod/heartbeat"]


def test_a_relay_that_hangs_delays_a_heartbeat_by_seconds(fleet: Fleet, api: Api) -> None:
    """It takes the request and says nothing; or one byte a second, for ever."""
    with socket.create_server(("127.0.0.1", 0)) as unresponsive:
        agent = Agent(fleet, api.url, f"127.0.0.1:{unresponsive.getsockname()[1]}", seconds=0.2)
        agent.send()
        assert api.paths == ["/prod/heartbeat"]


def test_a_relay_that_failed_rests_and_is_tried_again(fleet: Fleet, api: Api) -> None:
    """For two minutes at first, then twice as long each time, up to an hour: each trial may cost half a minute."""
    agent = Agent(fleet, api.url)
    asked: list[float] = []

    def refuse(request: HttpRequest) -> Reply:
        asked.append(agent.elapsed)
        return Reply(status=503)

    with closing(lie(refuse)) as lying, closing(Api(fleet, relays=f"static={place(lying)}")) as named:
        agent = Agent(fleet, named.url)
        for _ in range(60):
            agent.send()
            agent.elapsed += 150
    pauses = [later - earlier for earlier, later in pairwise(asked)]
    assert pauses == sorted(pauses)
    assert pauses[:4] == [150, 300, 600, 1050]
    assert max(pauses) <= 3600 + 150


@pytest.mark.parametrize(
    "address", ["", "x", ":1", "h:", "h:0", "h:70000", "h:x", "\u00e4:1", "h\n:1", "h" * 400 + ":1"]
)
def test_an_address_that_is_none_is_not_used(fleet: Fleet, api: Api, address: str) -> None:
    """The endpoint says it, from a setting that somebody typed."""
    Agent(fleet, api.url, address).send()
    assert api.paths == ["/prod/heartbeat"]


# --- the relay itself ---


def test_a_killed_relay_costs_no_heartbeat(fleet: Fleet, api: Api, relay: Relay) -> None:
    """The next heartbeat cannot connect to it, and goes to the endpoint."""
    agent = Agent(fleet, api.url, relay.address)
    agent.send()
    agent.reporter._relay.told(relay.address)  # type: ignore[union-attr]
    relay.close()
    agent.send()
    assert api.paths == ["/prod/heartbeats", "/prod/heartbeat"]


def test_a_relay_without_its_endpoint_says_so_at_once(fleet: Fleet, api: Api, relay: Relay) -> None:
    """The first machine waits until it is known, the others do not; afterwards it passes on again."""
    agent = Agent(fleet, api.url, relay.address)
    api.server.outage = True
    request = passed(agent.known)
    answer = relay.ask(request)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"Shepherd-Mac" not in answer
    api.server.outage = False
    assert relay.ask(passed(agent.known)).startswith(b"HTTP/1.1 503 ")  # at once, without a batch
    assert api.paths == []
    agent.send()
    assert api.paths == ["/prod/heartbeat"]


def passed(agent: SignedAgent, changed: Mapping[str, str] | None = None) -> bytes:
    """Return the bytes of a heartbeat as an agent sends it to a relay."""
    request = agent.request(path="/prod/heartbeat")
    headers = {**request.headers, "content-length": str(len(request.body)), **(changed or {})}
    lines = [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join(["POST /heartbeat HTTP/1.1", *lines, "\r\n"]).encode() + request.body


BAD: dict[str, Callable[[SignedAgent], bytes]] = {
    "GET": lambda agent: b"GET / HTTP/1.1\r\n\r\n",
    "another path": lambda agent: passed(agent).replace(b"/heartbeat", b"/heartbeats", 1),
    "no length": lambda agent: b"POST /heartbeat HTTP/1.1\r\n\r\n",
    "negative length": lambda agent: b"POST /heartbeat HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
    "too long a body": lambda agent: b"POST /heartbeat HTTP/1.1\r\ncontent-length: 65537\r\n\r\n",
    "a length without end": lambda agent: b"POST /heartbeat HTTP/1.1\r\ncontent-length: " + b"9" * 5000 + b"\r\n\r\n",
    "chunked": lambda agent: b"POST /heartbeat HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "compressed": lambda agent: passed(agent, {"content-encoding": "gzip"}),
    "too long headers": lambda agent: b"POST /heartbeat HTTP/1.1\r\n" + b"a: b\r\n" * 10_000 + b"\r\n",
    "no signature": lambda agent: passed(agent, {"shepherd-signature": ""}),
    "a short signature": lambda agent: passed(agent, {"shepherd-signature": "AAAA"}),
    "no time": lambda agent: passed(agent, {"shepherd-time": ""}),
    "a time with zeros": lambda agent: passed(agent, {"shepherd-time": "007"}),
    "a time without end": lambda agent: passed(agent, {"shepherd-time": "9" * 16}),
    "a long machine": lambda agent: passed(agent, {"shepherd-machine": "m" * 65}),
    "no HTTP": lambda agent: b"\x16\x03\x01\r\n\r\n",
}


def test_a_relay_passes_on_no_request_that_is_none(fleet: Fleet, api: Api, relay: Relay) -> None:
    """Each gets a status of 400 or so; the endpoint hears nothing of it, and the relay goes on."""
    agent = SignedAgent(fleet)
    for name, make in BAD.items():
        try:
            answer = relay.ask(make(agent))
        except ConnectionError:
            continue  # it did not read all that was sent
        assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 413 ")), name
    assert relay.ask(b"POST /heartbeat HTTP/1.1\r\ncontent-length: 10\r\n\r\nshort") == b""
    assert api.paths == []
    assert relay.ask(passed(agent)).startswith(b"HTTP/1.1 200 ")


def test_a_relay_answers_only_the_networks_that_it_was_told(fleet: Fleet, api: Api) -> None:
    """Others are hung up on before a byte is read."""
    with closing(Relay(api.url, "192.0.2.0/24,2001:db8::/32")) as relay:
        with relay.connect() as sock, suppress(ConnectionError):
            assert sock.recv(1) == b""
        agent = Agent(fleet, api.url, relay.address)
        agent.send()
    assert api.paths == ["/prod/heartbeat"]


def test_a_flood_of_connections_shuts_out_its_sender_alone(fleet: Fleet, api: Api, relay: Relay) -> None:
    """Sixteen of an address are answered; a machine at another address goes on."""
    agent = SignedAgent(fleet)
    host, _, port = relay.address.rpartition(":")
    with ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(relay.connect())
        other = socket.create_connection((host, int(port)), timeout=20, source_address=("127.0.0.2", 0))
        stack.enter_context(other).sendall(passed(agent))
        assert other.recv(100).startswith(b"HTTP/1.1 200 ")


def test_many_heartbeats_at_once_are_few_requests(fleet: Fleet, api: Api, relay: Relay) -> None:
    """And each gets its own answer."""
    agents = [SignedAgent(fleet) for _ in range(12)]
    with ExitStack() as stack:
        sockets = [stack.enter_context(relay.connect()) for _ in agents]
        for sock, agent in zip(sockets, agents, strict=True):
            sock.sendall(passed(agent, {"shepherd-collect": "2"}))
        answers = [sock.makefile("rb").read() for sock in sockets]
    assert all(answer.startswith(b"HTTP/1.1 200 ") for answer in answers)
    assert len(api.requests) <= 2
    assert fleet.sql("SELECT count(*) FROM machine_agent_heartbeat") == [[12]]


@pytest.mark.parametrize(("interval", "seconds"), [(10.0, 0), (60.0, 5), (240.0, 20), (3600.0, 20)])
def test_an_agent_tells_the_relay_how_long_it_may_collect(
    fleet: Fleet, api: Api, interval: float, seconds: int
) -> None:
    """The relay does not know the interval, and a machine with a short one must not wait long for it."""
    asked: list[str] = []

    def refuse(request: HttpRequest) -> Reply:
        asked.append({name.lower(): value for name, value in request.headers.items()}["shepherd-collect"])
        return Reply(status=503)

    with closing(lie(refuse)) as lying:
        Agent(fleet, api.url, place(lying), interval).send()
    assert asked == [str(seconds)]


@pytest.mark.parametrize(
    "arguments",
    [
        ["127.0.0.1", "http://127.0.0.1:9", SERVED],
        ["127.0.0.1:x", "http://127.0.0.1:9", SERVED],
        ["127.0.0.1:99999", "http://127.0.0.1:9", SERVED],
        ["example.com:7070", "http://127.0.0.1:9", SERVED],
        ["127.0.0.1:0", "http://192.0.2.1", SERVED],
        ["127.0.0.1:0", "http://127.0.0.1:9", "everyone"],
        ["127.0.0.1:0", "http://127.0.0.1:9", ""],
        ["127.0.0.1:0", "http://127.0.0.1:9", SERVED, "/nonexistent"],
        ["192.0.2.1:7070", "http://127.0.0.1:9", SERVED],
    ],
    ids=str,
)
def test_a_relay_refuses_arguments_that_are_not_valid(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line says what is wrong, and a service manager sees the status."""
    monkeypatch.setattr(sys, "argv", ["agent", "--relay", *arguments])
    assert main() == 1
    errors = capsys.readouterr().err
    assert errors.startswith("shepherd-agent: ")
    assert errors.count("\n") == 1


def test_not_even_a_direct_report_is_delivered_without_the_endpoint(fleet: Fleet, api: Api, relay: Relay) -> None:
    """The machine then counts as unhealthy, and Shepherd's own fault is for the circuit breaker."""
    agent = Agent(fleet, api.url, relay.address)
    api.server.outage = True
    with pytest.raises(NotDelivered):
        agent.send()
