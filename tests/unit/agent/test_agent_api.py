import json
from http import HTTPStatus
from typing import Any

import pytest
from shepherd_core.agent.endpoint import AgentApi, AgentRequest, AgentResponse
from shepherd_core.agent.judgement import Limits

from tests.conftest import log_lines

MACHINE = "c0ffee00-0000-4000-8000-000000000001"
ADDRESS = "2001:db8::13"
LIMIT = 65_536
NO_ID = "the id of the machine, in the header Shepherd-Machine, is not a UUID"
OTHER_PATHS = ("/", "/heartbeats", "/heartbeat/", "/heartbeat/x", "heartbeat", "/Heartbeat", "")
NO_IDS = (None, "", "7", MACHINE + "0", "x" * 900, "\u00e4")


def endpoint() -> AgentApi:
    return AgentApi(None, Limits(5, 60, 240))  # type: ignore[arg-type]  # never used


def answer(
    body: bytes = b"", method: str = "POST", path: str = "/heartbeat", machine: str | None = MACHINE, **more: str
) -> AgentResponse:
    headers = {name: value for name, value in {"shepherd-machine": machine, **more}.items() if value is not None}
    return endpoint().handle(AgentRequest(method, path, headers, body, 1_700_000_000_000, ADDRESS))


@pytest.mark.parametrize(
    ("request_", "status", "text"),
    [
        *(({"path": path}, HTTPStatus.NOT_FOUND, "not found") for path in OTHER_PATHS),
        *(
            ({"method": method, "path": "/prod/heartbeat"}, HTTPStatus.METHOD_NOT_ALLOWED, "only POST is allowed")
            for method in ("GET", "PUT", "HEAD", "post")
        ),
        ({"body": b"x" * (LIMIT + 1)}, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body is longer than {LIMIT} bytes"),
        ({"content-encoding": "gzip"}, HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the body must not be compressed"),
        *(({"machine": machine}, HTTPStatus.BAD_REQUEST, NO_ID) for machine in NO_IDS),
    ],
)
def test_a_request_wrong_whoever_sent_it_is_refused(request_: dict[str, Any], status: HTTPStatus, text: str) -> None:
    """The sender is not verified yet. Agents set their clocks by the time; people look at the line with curl."""
    refused = answer(**request_)
    assert (refused.status, refused.body.decode()) == (status, f"{text}\n")
    assert refused.headers["shepherd-time"] == "1700000000000"
    assert refused.headers["content-type"] == "text/plain; charset=utf-8"
    assert refused.headers.get("allow") == ("POST" if status == HTTPStatus.METHOD_NOT_ALLOWED else None)


def test_a_refusal_is_one_short_line_in_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    """The sender decides how many there are, and they may hold secrets or attack a reader."""
    answer(b"a secret" * LIMIT)
    answer(machine="x" * 900)
    answer(path="/")
    output = capsys.readouterr().out
    lines = [json.loads(line) for line in output.splitlines()]
    told = [(line["level"], line["status"], line["machine_id"], line["address"]) for line in lines]
    assert told == [("WARNING", status, None, ADDRESS) for status in (413, 400, 404)]
    assert lines[1]["why"] == NO_ID
    assert ("secret" in output, "xxx" in output) == (False, False)
    assert max(map(len, output.splitlines())) < 400


def test_refusals_are_logged_once_a_minute_for_each_sender(capsys: pytest.CaptureFixture[str]) -> None:
    """A line costs more than the request, and any stranger can send thousands."""
    api = endpoint()

    def told(at: int, *addresses: str) -> list[str]:
        for address in addresses:
            api.handle(AgentRequest("POST", "/", {}, b"", at, address))
        return [line["address"] for line in log_lines(capsys)]

    assert [told(60_000, "a", "b", "a"), told(119_999, "b", "c"), told(120_000, "b")] == [["a", "b"], ["c"], ["b"]]
    assert len(told(180_000, *map(str, range(2_000)))) == 1_000
