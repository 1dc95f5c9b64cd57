"""The agent's move to another endpoint: only to one that has answered it, and never away from its heartbeats."""

import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from shepherd_core.domain.pb.callback_pb2 import HeartbeatResponse

from agent.shepherd_agent.ed25519 import PrivateKey
from agent.shepherd_agent.reports.endpoint import Endpoint, NotDelivered
from agent.shepherd_agent.reports.switching_reporter import SwitchingReporter
from simulator.providers.kit.http_server import Reply
from tests.support.agents.https_server import HttpsServer, certificate

DAY = 86_400.0


def _naming(url: str) -> Reply:
    """Return the answer that names the endpoint at *url*."""
    message = HeartbeatResponse(report_interval_seconds=300, endpoint=url)
    return Reply(status=200, body=message.SerializeToString())


STAY = _naming("")


class Setting:
    """Two endpoints under one CA, an agent's reporter for the first, and a clock."""

    def __init__(self, first: HttpsServer, second: HttpsServer, record: Path) -> None:
        self.first = first
        self.second = second
        self.record = record
        self.now = 0.0
        first.treatments, second.treatments = [_naming(second.url)], [STAY]
        self.reporter = self.restarted()

    def restarted(self, machine_id: str = "id") -> SwitchingReporter:
        """Return the reporter of a later agent."""
        endpoint = Endpoint(self.first.url, self.first.ca, 10.0)
        key = PrivateKey(b"k" * 32)
        self.reporter = SwitchingReporter(endpoint, key, machine_id, self.first.ca, str(self.record), lambda: self.now)
        self.first.endpoints.append(endpoint)
        return self.reporter

    def send(self, number: int = 1) -> list[int]:
        """Send heartbeats and return how many requests came to the first endpoint, and to the second."""
        before = len(self.first.requests), len(self.second.requests)
        for _ in range(number):
            self.reporter.send("heartbeat", b"")
        self.first.endpoints.append(self.reporter.endpoint)  # to be closed
        return [len(self.first.requests) - before[0], len(self.second.requests) - before[1]]


@pytest.fixture
def setting(tmp_path: Path) -> Iterator[Setting]:
    """Return two running endpoints."""
    with ExitStack() as stack:
        tls, ca = certificate(tmp_path)
        again = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        again.load_cert_chain(tmp_path / "server.pem")
        first, second = (stack.enter_context(closing(HttpsServer(each, ca))) for each in (tls, again))
        yield Setting(first, second, tmp_path / "agent.endpoint")


def test_the_agent_moves_to_an_endpoint_that_answers_it(setting: Setting) -> None:
    """So a fleet changes its endpoint without a takeover."""
    assert setting.send() == [1, 0]
    assert setting.send(3) == [0, 3]


def test_the_move_outlasts_the_agent(setting: Setting) -> None:
    """The next agent of the machine is told the old endpoint at takeover, which may be gone by now."""
    setting.send(2)
    assert setting.record.stat().st_mode & 0o777 == 0o600
    setting.restarted()
    assert setting.send() == [0, 1]


def test_a_record_of_something_else_is_ignored(setting: Setting) -> None:
    """A takeover that names another endpoint, or machine, is a later word than the file."""
    setting.send(2)
    setting.restarted("other")
    assert setting.send() == [1, 0]
    record = setting.record.read_text()
    for damaged in ("", record.replace("127", "128"), record[:-30], record + "more\n", "\0", "\u00e9", "x" * 10_000):
        setting.record.write_text(damaged)
        setting.first.treatments = [STAY]
        setting.restarted()
        assert setting.send()[0] == 1


def test_a_record_that_is_a_link_is_neither_read_nor_written(setting: Setting) -> None:
    """Somebody may have put it there to have the agent write elsewhere."""
    other = setting.record.with_name("other")
    other.write_text("content")
    setting.record.symlink_to(other)
    assert setting.send(2) == [1, 1]
    assert other.read_text() == "content"


@pytest.mark.parametrize(
    "answer",
    [
        Reply(status=401),
        Reply(status=404),
        Reply(status=503),
        Reply(status=302, headers={"Location": "/"}),
        Reply(status=200, body=b"<html>It works!</html>"),
        Reply(status=200, body=b""),
        _naming("https://third.example.com"),
        None,
    ],
    ids=["401", "404", "503", "redirection", "a web page", "nothing", "names another", "no answer"],
)
def test_an_endpoint_that_does_not_accept_is_not_used(setting: Setting, answer: Reply | None) -> None:
    """The heartbeat goes to the endpoint before, and the next trial waits."""
    setting.second.treatments = [answer]
    setting.send()
    assert setting.send() == [1, 1]
    assert setting.send(3) == [3, 0]
    assert not setting.record.exists()
    setting.second.treatments = [STAY]
    setting.now += 600
    assert setting.send(2) == [0, 2]


def test_trials_become_rarer(setting: Setting) -> None:
    """An endpoint that never answers costs a handshake a day. After a day of peace the agent is quick again."""
    setting.second.treatments = [Reply(status=503)]
    setting.send()
    tried = []
    for pause in [600] * 32 + [3600] * 66:
        tried.append((setting.now, setting.send()[1]))
        setting.now += pause
    assert sum(trials for at, trials in tried if at < DAY) == 8
    assert sum(trials for at, trials in tried if at >= DAY) == 2  # in two days
    setting.first.treatments = [STAY]
    setting.send()
    setting.now += 2 * DAY
    setting.first.treatments = [_naming(setting.second.url)]
    setting.send()
    for wanted in ([1, 1], [1, 0]):
        assert setting.send() == wanted
    setting.now += 600
    assert setting.send() == [1, 1]


def test_an_endpoint_under_another_ca_is_not_used(setting: Setting, tmp_path: Path) -> None:
    """The one CA of the takeover holds for every endpoint."""
    folder = tmp_path / "other"
    folder.mkdir()
    with closing(HttpsServer(*certificate(folder))) as stranger:
        stranger.treatments = [STAY]
        setting.first.treatments = [_naming(stranger.url)]
        assert setting.send(3) == [3, 0]
        assert stranger.requests == []


def test_a_dead_endpoint_is_not_used(setting: Setting) -> None:
    """It costs no heartbeat."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    setting.first.treatments = [_naming(f"https://127.0.0.1:{port}")]
    assert setting.send(3) == [3, 0]


@pytest.mark.parametrize(
    "address",
    [
        "http://{place}",
        "ftp://{place}",
        "https://user:password@{place}",
        "https://{place}/?query",
        "https://{place}/\r\nHost: evil",
        "https://{place}/a b",
        "https://{place}/\u00e4",
        "https://{place}/" + "a" * 2_000,
        "https://",
        "\0",
    ],
)
def test_an_address_that_a_takeover_would_refuse_is_refused(setting: Setting, address: str) -> None:
    """And one that would send heartbeats unencrypted from now on."""
    setting.first.treatments = [_naming(address.format(place=setting.second.url.removeprefix("https://")))]
    assert setting.send(3) == [3, 0]
    assert setting.second.handshakes == []


def test_the_first_endpoint_is_used_again_if_the_other_one_is_lost(setting: Setting) -> None:
    """A move must not lose an agent. It does not move again at once: the other one may come and go."""
    setting.send(2)
    setting.second.treatments = [Reply(status=403)]
    for _ in range(3):
        with pytest.raises(NotDelivered):
            setting.send()
    assert setting.send(3) == [3, 0]
    assert setting.record.read_text() == ""
    setting.second.treatments = [STAY]
    setting.now += 599
    assert setting.send() == [1, 0]
    setting.now += 601
    assert setting.send(2) == [0, 2]


def test_an_agent_that_was_moved_can_be_moved_back(setting: Setting) -> None:
    """A change of mind is one change of the setting."""
    setting.send(2)
    setting.second.treatments, setting.first.treatments = [_naming(setting.first.url)], [STAY]
    assert setting.send() == [0, 1]
    setting.now += 600
    assert setting.send(3) == [3, 0]
    setting.restarted()
    assert setting.send() == [1, 0]


def test_the_answer_on_trial_does_not_set_the_clock(setting: Setting) -> None:
    """A wrong time would make the endpoint in use refuse the heartbeat."""
    setting.second.treatments = [Reply(status=401, headers={"Shepherd-Time": "1"})]
    setting.send(3)
    assert all(int(request.headers["Shepherd-Time"]) > 10**12 for request in setting.first.requests)
