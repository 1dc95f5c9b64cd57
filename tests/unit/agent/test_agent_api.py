"""What the agents' endpoint refuses by itself: none of it reaches the BMDB, or needs to know who sent it."""

import json
from http import HTTPStatus

import pytest
from shepherd_core.agent.endpoint import AgentApi, AgentRequest, AgentResponse
from shepherd_core.agent.judgement import Limits

MACHINE = "c0ffee00-0000-4000-8000-000000000001"
ADDRESS = "2001:db8::13"
LIMIT = 65_536


class NoConnection:
    """A connection that must not be used."""


def answer(
    body: bytes = b"",
    method: str = "POST",
    path: str = "/heartbeat",
    machine: str | None = MACHINE,
    encoding: str | None = None,
) -> AgentResponse:
    """Return the answer to a request that needs no BMDB."""
    api = AgentApi(NoConnection(), Limits(5, 60, 240))  # type: ignore[arg-type]  # never used
    given = {"shepherd-machine": machine, "content-encoding": encoding}
    headers = {name: value for name, value in given.items() if value is not None}
    return api.handle(AgentRequest(method, path, headers, body, 1_700_000_000_000, ADDRESS))


@pytest.mark.parametrize("path", ["/", "/heartbeats", "/heartbeat/", "/heartbeat/x", "heartbeat", "/Heartbeat", ""])
def test_there_is_one_path(path: str) -> None:
    """Whatever else is asked for gets no further; what stands before it is the deployment's."""
    assert answer(path=path).status == HTTPStatus.NOT_FOUND


@pytest.mark.parametrize("method", ["GET", "PUT", "HEAD", "post"])
def test_there_is_one_method(method: str) -> None:
    """The method is not in the request's hands: its signature is over POST."""
    refused = answer(method=method, path="/prod/heartbeat")
    assert (refused.status, refused.headers["allow"]) == (HTTPStatus.METHOD_NOT_ALLOWED, "POST")


def test_a_body_over_the_limit_is_not_looked_at() -> None:
    """The sender is not verified yet, and decoding costs time."""
    refused = answer(b"x" * (LIMIT + 1))
    assert refused.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    assert str(LIMIT) in refused.body.decode()


def test_a_compressed_body_is_refused() -> None:
    """A few bytes could become gigabytes, and the signature is over what was sent."""
    refused = answer(encoding="gzip")
    assert (refused.status, refused.body) == (HTTPStatus.UNSUPPORTED_MEDIA_TYPE, b"the body must not be compressed\n")


@pytest.mark.parametrize("machine", [None, "", "7", MACHINE + "0", "x" * 900, "\u00e4"])
def test_a_request_without_a_machine_is_refused(machine: str | None) -> None:
    """Without it no key can be looked up."""
    refused = answer(machine=machine)
    text = b"the id of the machine, in the header Shepherd-Machine, is not a UUID\n"
    assert (refused.status, refused.body) == (HTTPStatus.BAD_REQUEST, text)


def test_every_refusal_has_the_time_in_a_line_of_text() -> None:
    """People look at them with curl; agents set their clocks by them."""
    for refused in (answer(path="/"), answer(method="GET"), answer(b"x" * (LIMIT + 1)), answer(machine="")):
        assert refused.headers["shepherd-time"] == "1700000000000"
        assert refused.headers["content-type"] == "text/plain; charset=utf-8"
        assert refused.body.decode().count("\n") == 1
        assert len(refused.body) < 100


def test_a_refusal_is_one_short_line_in_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    """The sender decides how many there are, and they may hold secrets or attack a reader."""
    answer(b"a secret" * LIMIT)
    answer(machine="x" * 900)
    answer(path="/")
    output = capsys.readouterr().out
    lines = [json.loads(line) for line in output.splitlines()]
    assert [(line["level"], line["status"], line["machine_id"], line["address"]) for line in lines] == [
        ("WARNING", 413, None, ADDRESS),
        ("WARNING", 400, None, ADDRESS),
        ("WARNING", 404, None, ADDRESS),
    ]
    assert lines[1]["why"] == "the id of the machine, in the header Shepherd-Machine, is not a UUID"
    assert "secret" not in output
    assert "xxx" not in output
    assert max(map(len, output.splitlines())) < 400
