"""How requests of adapters over HTTP behave when the network, the API or the credential does not."""

import gzip
import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from shepherd_core.adapters.http.bounded_answer import LONGEST_ANSWER
from shepherd_core.domain.clock import Deadline, SystemClock
from shepherd_core.domain.errors import SecretMissing, SecretUnavailable, ShepherdError, TimeLimitExceeded
from shepherd_core.domain.errors.bmdb import SessionExpired
from shepherd_core.domain.errors.provider import MachineNotFound, ProviderError, ProviderRefused, ProviderUnavailable
from shepherd_core.providers.kit.auth import Header
from shepherd_core.providers.kit.http import TEXT_LENGTH, TRIES, HttpApi

from tests.conftest import ManualClock
from tests.support.providers.scripted_http import DROPPED, Answer, Request, Script, in_turn, said, scripted_server

KEY = "the-api-key"
FINE = Answer(200, b'{"fine": true}')
CUT = Answer(200, FINE.body, missing=100)


@pytest.fixture
def script() -> Iterator[Script]:
    """Return a server that answers as the test says."""
    with scripted_server(in_turn(FINE)) as server:
        yield server


@pytest.fixture
def api(script: Script, clock: ManualClock) -> HttpApi:
    """Return a client of the scripted server."""
    return HttpApi(script.url, Header("X-Auth-Token", lambda: KEY), clock, 2)


def whole_text(error: BaseException) -> str:
    """Return all that a log could show of an error, its causes included."""
    parts, at = [], [error]
    while at:
        one = at.pop()
        parts += [str(one), repr(one), repr(one.args)]
        request = getattr(one, "request", None)
        parts += [repr(vars(request))] if request is not None else []
        at += [below for below in (one.__cause__, one.__context__) if below is not None]
    return " ".join(parts)


PASSING = [
    Answer(500),
    said(502, error="bad gateway"),
    Answer(503),
    Answer(504),
    Answer(429),
    DROPPED,
    CUT,
    Answer(200, b"<html>"),
]
PASSING_NAMES = ["500", "502", "503", "504", "429", "dropped", "cut", "not JSON"]


@pytest.mark.parametrize("fault", PASSING, ids=PASSING_NAMES)
def test_a_read_is_tried_again_after_a_passing_failure(
    fault: Answer, script: Script, api: HttpApi, clock: ManualClock, deadline: Deadline
) -> None:
    """One hiccup of the network must not fail an invocation over the whole fleet."""
    script.answer = in_turn(fault, FINE)
    assert api.get("/things", deadline) == {"fine": True}
    assert len(script.requests) == 2
    assert len(clock.slept) == 1


@pytest.mark.parametrize("fault", PASSING, ids=PASSING_NAMES)
def test_a_read_that_keeps_failing_is_given_up(fault: Answer, script: Script, api: HttpApi, deadline: Deadline) -> None:
    """Endless retries would make an overloaded API worse."""
    script.answer = in_turn(fault)
    with pytest.raises(ProviderUnavailable, match="GET /things"):
        api.get("/things", deadline)
    assert len(script.requests) == TRIES


@pytest.mark.parametrize("fault", PASSING[:-1], ids=PASSING_NAMES[:-1])
def test_a_change_is_asked_for_once(fault: Answer, script: Script, api: HttpApi, deadline: Deadline) -> None:
    """It may have been made although the answer was lost; twice could mean two machines."""
    script.answer = in_turn(fault, FINE)
    with pytest.raises(ProviderUnavailable, match="POST /things"):
        api.post("/things", {}, deadline)
    assert len(script.requests) == 1


def test_an_unreadable_answer_to_a_change_leaves_it_unknown(script: Script, api: HttpApi, deadline: Deadline) -> None:
    """The caller must look before it asks again."""
    script.answer = in_turn(Answer(201, b"<html>"))
    with pytest.raises(ProviderUnavailable, match="not JSON"):
        api.post("/things", {}, deadline)


@pytest.mark.parametrize("status", [202, 204])
def test_a_change_that_is_merely_accepted_has_no_answer(
    status: int, script: Script, api: HttpApi, deadline: Deadline
) -> None:
    """Actions are queued; there is nothing to decode."""
    script.answer = in_turn(Answer(status, b""))
    assert api.post("/things", {}, deadline) is None


@pytest.mark.parametrize("status", [301, 307, 400, 401, 403, 404, 405, 409, 422])
def test_a_refusal_is_final(status: int, script: Script, api: HttpApi, deadline: Deadline) -> None:
    """Asking again changes nothing until somebody changes something."""
    script.answer = in_turn(said(status, error="no"))
    with pytest.raises(ProviderRefused, match=rf"GET /things: {status}: no"):
        api.get("/things", deadline)
    with pytest.raises(ProviderRefused, match=rf"POST /things: {status}: no"):
        api.post("/things", {}, deadline)
    assert [request.method for request in script.requests] == ["GET", "POST"]


def test_a_404_is_raised_as_the_error_that_the_caller_names(script: Script, api: HttpApi, deadline: Deadline) -> None:
    """A machine that is gone is news of its own; a project that is gone is a mistake in the settings."""
    script.answer = in_turn(Answer(404))
    with pytest.raises(MachineNotFound):
        api.get("/machine", deadline, missing=MachineNotFound)
    with pytest.raises(MachineNotFound):
        api.post("/machine", {}, deadline, missing=MachineNotFound)


@pytest.mark.parametrize(
    ("headers", "pause"),
    [
        ({"Retry-After": "7"}, 7),
        ({"Retry-After": "0"}, 0),
        ({"Date": "Sat, 21 Nov 2026 10:00:00 GMT", "Retry-After": "Sat, 21 Nov 2026 10:00:04 GMT"}, 4),
        ({"Date": "Sat, 21 Nov 2026 10:00:00 GMT", "Retry-After": "Sat, 21 Nov 2026 09:00:00 GMT"}, 0),
    ],
)
def test_the_api_says_when_to_come_back(
    headers: dict[str, str], pause: float, script: Script, api: HttpApi, clock: ManualClock
) -> None:
    """Coming sooner prolongs the ban."""
    script.answer = in_turn(Answer(429, headers=headers), Answer(503, headers=headers), FINE)
    api.get("/things", Deadline(clock, 60))
    assert clock.slept == [pause, pause]


@pytest.mark.parametrize(
    "value", ["soon", "-3", "²", "Sat, 21 Nov 2026 10:00:04 GMT", "1 Jan 99999999999999999999 00:00:00 GMT"]
)
def test_a_retry_after_that_says_nothing_is_ignored(
    value: str, script: Script, api: HttpApi, clock: ManualClock, deadline: Deadline
) -> None:
    """The usual pause is made instead. A date means nothing without the API's own."""
    script.answer = in_turn(Answer(503, headers={"Retry-After": value}), FINE)
    api.get("/things", deadline)
    assert len(clock.slept) == 1
    assert 0.25 <= clock.slept[0] <= 0.5


def test_a_long_wait_is_left_to_the_caller(
    script: Script, api: HttpApi, clock: ManualClock, deadline: Deadline
) -> None:
    """Sleeping is paid for; the caller knows what else to do."""
    script.answer = in_turn(Answer(429, headers={"Retry-After": "120"}))
    with pytest.raises(ProviderUnavailable) as caught:
        api.get("/things", Deadline(clock, 1_000))
    assert caught.value.retry_after == 120
    assert clock.slept == []
    with pytest.raises(ProviderUnavailable) as caught:
        api.post("/things", {}, deadline)
    assert caught.value.retry_after == 120


def test_pauses_grow(script: Script, api: HttpApi, clock: ManualClock, deadline: Deadline) -> None:
    """What did not help once is given more time."""
    script.answer = in_turn(Answer(503), Answer(503), FINE)
    api.get("/things", deadline)
    first, second = clock.slept
    assert 0.25 <= first <= 0.5 <= second <= 1


def test_no_pause_outlives_the_deadline(script: Script, api: HttpApi, clock: ManualClock) -> None:
    """The reason of the failure is better news than that the time is up."""
    script.answer = in_turn(Answer(503, headers={"Retry-After": "5"}))
    with pytest.raises(ProviderUnavailable, match="503"):
        api.get("/things", Deadline(clock, 5))
    assert clock.slept == []


def test_nothing_is_sent_after_the_deadline(script: Script, api: HttpApi, clock: ManualClock) -> None:
    """The answer would come too late."""
    deadline = Deadline(clock, 5)
    clock.now += 5
    with pytest.raises(TimeLimitExceeded):
        api.get("/things", deadline)
    with pytest.raises(TimeLimitExceeded):
        api.post("/things", {}, deadline)
    assert script.requests == []


def test_no_change_is_asked_for_once_the_session_is_over(script: Script, api: HttpApi, clock: ManualClock) -> None:
    """Another may be at work on the same machine by then. Reading does no harm."""
    deadline = Deadline(clock, 5, lambda: 0)
    with pytest.raises(SessionExpired):
        api.post("/things", {}, deadline)
    assert script.requests == []
    assert api.get("/things", deadline) == {"fine": True}


def test_an_api_that_never_answers_is_left_at_the_deadline(script: Script) -> None:
    """An invocation must end by itself, before it is ended."""
    script.answer = in_turn(Answer(head=b"", pause_seconds=30))
    api = HttpApi(script.url, Header("X-Auth-Token", lambda: KEY), SystemClock(), 1)
    with pytest.raises(ProviderUnavailable, match="no complete answer") as caught:
        api.get("/things", Deadline(SystemClock(), 2))
    waited = re.search(r"read timeout=([\d.]+)", str(caught.value.__cause__))
    assert waited is not None
    assert float(waited[1]) <= 2


def test_an_answer_that_trickles_in_is_left_at_the_deadline(script: Script) -> None:
    """Each piece comes in time, the whole never does."""
    script.answer = in_turn(Answer(200, b" ", repeat=10_000, pause_seconds=0.02))
    api = HttpApi(script.url, Header("X-Auth-Token", lambda: KEY), SystemClock(), 1)
    with pytest.raises(ProviderUnavailable, match="POST /things"):
        api.post("/things", {}, Deadline(SystemClock(), 2))


@pytest.mark.parametrize("begin", [b"HTTP/1.1 200 ", b"HTTP/1.1 200 OK\r\nX-Slow: "])
def test_headers_that_trickle_in_are_cut_off(script: Script, begin: bytes) -> None:
    """A timeout of the socket begins anew with each byte; one slow server held a loop until it was killed."""
    script.answer = in_turn(Answer(head=begin, body=b"a", repeat=10_000, pause_seconds=0.02))
    api = HttpApi(script.url, Header("X-Auth-Token", lambda: KEY), SystemClock(), 1)
    with pytest.raises(ProviderUnavailable, match="POST /things: no complete answer"):
        api.post("/things", {}, Deadline(SystemClock(), 1))
    assert script.left.wait(30)


def test_no_more_requests_than_allowed_are_made_at_once(script: Script, api: HttpApi, deadline: Deadline) -> None:
    """The provider bans clients with too many requests."""
    at_once: list[int] = [0]
    most: list[int] = []
    changed = threading.Condition()

    def count(_: Request) -> Answer:
        with changed:
            at_once[0] += 1
            most.append(at_once[0])
            changed.notify_all()
            changed.wait_for(lambda: at_once[0] > 2, timeout=0.05)  # give a third the chance to come
            at_once[0] -= 1
        return FINE

    script.answer = count
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(lambda _: api.get("/things", deadline), range(6))) == [{"fine": True}] * 6
    assert max(most) == 2


def test_a_request_waits_for_its_turn_until_its_deadline(script: Script, deadline: Deadline) -> None:
    """Slow requests of others are no excuse."""
    arrived, leave = threading.Event(), threading.Event()

    def hold(_: Request) -> Answer:
        arrived.set()
        leave.wait(30)
        return FINE

    script.answer = hold
    api = HttpApi(script.url, Header("X-Auth-Token", lambda: KEY), SystemClock(), 1)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(api.get, "/things", deadline)
        assert arrived.wait(30)
        with pytest.raises(TimeLimitExceeded):
            api.get("/things", Deadline(SystemClock(), 0.1))
        leave.set()
        assert first.result() == {"fine": True}
    assert len(script.requests) == 1


def test_a_replaced_credential_is_taken_up(script: Script, clock: ManualClock, deadline: Deadline) -> None:
    """Keys are rotated while functions stay warm."""
    keys = iter(["old", "new"])
    api = HttpApi(script.url, Header("X-Auth-Token", lambda: next(keys)), clock, 1)
    script.answer = in_turn(FINE, Answer(401), FINE)
    for _ in range(3):
        api.get("/things", deadline)
    api.post("/things", {}, deadline)
    assert [request.headers["X-Auth-Token"] for request in script.requests] == ["old", "old", "new", "new", "new"]


def test_a_credential_that_did_not_change_is_not_tried_again(script: Script, api: HttpApi, deadline: Deadline) -> None:
    """It would only count as another failed attempt to log in."""
    script.answer = in_turn(said(401, error="Invalid authentication token"))
    with pytest.raises(ProviderRefused, match="Invalid authentication token"):
        api.get("/things", deadline)
    assert len(script.requests) == 1


@pytest.mark.parametrize(
    ("raised", "expected"),
    [(SecretUnavailable("later"), ProviderUnavailable), (SecretMissing("gone"), ProviderRefused)],
)
def test_a_credential_that_cannot_be_read_is_an_error_of_the_provider(
    raised: ShepherdError, expected: type[ProviderError], script: Script, clock: ManualClock, deadline: Deadline
) -> None:
    """Callers handle the errors that a provider may raise, and no others."""

    def ask() -> str:
        raise raised

    api = HttpApi(script.url, Header("X-Auth-Token", ask), clock, 1)
    with pytest.raises(expected, match=str(raised)):
        api.get("/things", deadline)
    assert script.requests == []


def test_space_around_a_credential_does_not_matter(script: Script, clock: ManualClock, deadline: Deadline) -> None:
    """Secrets that were pasted into a file end with a new line."""
    HttpApi(script.url, Header("X-Auth-Token", lambda: f" {KEY}\n"), clock, 1).get("/things", deadline)
    assert script.requests[0].headers["X-Auth-Token"] == KEY


@pytest.mark.parametrize("broken", ["", " ", "the-api\n-key", "the-api-kéy", "the-api\x00key"])
def test_a_credential_that_cannot_be_sent_is_not_quoted(
    broken: str, script: Script, clock: ManualClock, deadline: Deadline
) -> None:
    """The HTTP library would quote it in full."""
    with pytest.raises(ProviderRefused, match="cannot be sent") as caught:
        HttpApi(script.url, Header("X-Auth-Token", lambda: broken), clock, 1).get("/things", deadline)
    assert "the-api" not in whole_text(caught.value)


@pytest.mark.parametrize(
    "fault",
    [
        said(401, error=f"token {KEY} is not valid"),
        said(422, errors=["no", f"not with {KEY}"]),
        said(500, error=KEY),
        Answer(400, KEY.encode()),
        Answer(200, KEY.encode()),
        DROPPED,
        CUT,
        Answer(302, headers={"Location": "http://127.0.0.1:1/"}),
    ],
)
def test_the_credential_is_in_no_error(fault: Answer, script: Script, api: HttpApi, deadline: Deadline) -> None:
    """Errors are logged and kept in the history; the libraries' errors hold the request with all its headers."""
    script.answer = in_turn(fault)
    with pytest.raises(ProviderError) as caught:
        api.get("/things", deadline)
    assert KEY not in whole_text(caught.value)
    with pytest.raises(ProviderError) as caught:
        api.post("/things", {}, deadline)
    assert KEY not in whole_text(caught.value)


def test_a_refused_connection_is_retryable(clock: ManualClock, deadline: Deadline) -> None:
    """The reason is named, without the layers of libraries around it."""
    with scripted_server(in_turn(FINE)) as server:
        url = server.url
    api = HttpApi(url, Header("X-Auth-Token", lambda: KEY), clock, 1)
    with pytest.raises(ProviderUnavailable, match=r"GET /things: no complete answer: ConnectionRefusedError"):
        api.get("/things", deadline)
    assert len(clock.slept) == TRIES - 1


def test_the_reason_is_not_taken_from_another_error(clock: ManualClock, deadline: Deadline) -> None:
    """Python links an error to the one that is being handled, which may have nothing to do with it."""
    with scripted_server(in_turn(FINE)) as server:
        url = server.url
    api = HttpApi(url, Header("X-Auth-Token", lambda: KEY), clock, 1)

    def ask_while_handling(error: ShepherdError) -> None:
        try:
            raise error
        except ShepherdError:
            api.get("/things", deadline)

    with pytest.raises(ProviderUnavailable, match="ConnectionRefusedError"):
        ask_while_handling(ProviderRefused("something else"))


@pytest.mark.parametrize("url", ["", "ftp://127.0.0.1", "http://", "api.equinix.com/metal/v1"])
def test_an_invalid_url_is_not_tried_again(url: str, clock: ManualClock, deadline: Deadline) -> None:
    """A mistake in the settings does not pass by itself."""
    with pytest.raises(ProviderRefused, match="URL"):
        HttpApi(url, Header("X-Auth-Token", lambda: KEY), clock, 1).get("/things", deadline)
    assert clock.slept == []


def test_redirections_are_not_followed(script: Script, api: HttpApi, deadline: Deadline) -> None:
    """The credential would go to whomever the answer names."""
    with scripted_server(in_turn(FINE)) as elsewhere:
        script.answer = in_turn(Answer(302, headers={"Location": f"{elsewhere.url}/things"}))
        with pytest.raises(ProviderRefused, match="302"):
            api.get("/things", deadline)
        assert elsewhere.requests == []


def test_no_other_credential_is_sent(
    script: Script, api: HttpApi, deadline: Deadline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The HTTP library looks into ~/.netrc on its own."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login somebody password secret\n")
    monkeypatch.setenv("NETRC", str(netrc))
    api.get("/things", deadline)
    assert "Authorization" not in script.requests[0].headers


def test_cookies_are_not_kept(script: Script, api: HttpApi, deadline: Deadline) -> None:
    """Requests of several threads share nothing but connections."""
    script.answer = in_turn(Answer(200, FINE.body, {"Set-Cookie": "a=b; Path=/"}))
    api.get("/things", deadline)
    api.get("/things", deadline)
    assert "Cookie" not in script.requests[1].headers


def test_connections_are_kept(script: Script, api: HttpApi, deadline: Deadline) -> None:
    """Every page of a listing would otherwise begin with a handshake."""
    for _ in range(5):
        api.get("/things", deadline)
    assert len({request.port for request in script.requests}) == 1


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"error": "not\\n  here"}', "GET /things: 400: not here"),
        (b'{"errors": ["one", "two"]}', "GET /things: 400: one; two"),
        (b'{"errors": []}', "GET /things: 400"),
        (b'{"error": null}', "GET /things: 400"),
        (b"[]", "GET /things: 400"),
        (b"<html>bad</html>", "GET /things: 400"),
        (b"", "GET /things: 400"),
        (json.dumps({"error": "x" * 5000}).encode(), "GET /things: 400: " + "x" * TEXT_LENGTH),
    ],
)
def test_an_error_says_what_the_api_said(
    body: bytes, expected: str, script: Script, api: HttpApi, deadline: Deadline
) -> None:
    """It ends up in the history of a machine: short, and in one line."""
    script.answer = in_turn(Answer(400, body))
    with pytest.raises(ProviderRefused) as caught:
        api.get("/things", deadline)
    assert str(caught.value) == expected


def test_an_answer_is_bounded_by_what_it_decompresses_to(script: Script, api: HttpApi, deadline: Deadline) -> None:
    """Kilobytes of gzip can be gigabytes, which would end the function and all that it holds."""
    script.answer = in_turn(Answer(200, gzip.compress(b" " * (LONGEST_ANSWER + 1)), {"Content-Encoding": "gzip"}))
    with pytest.raises(ProviderUnavailable, match=f"longer than {LONGEST_ANSWER} bytes"):
        api.get("/things", deadline)
