import gzip
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from shepherd_core.adapters.http.bounded_answer import LONGEST_ANSWER
from shepherd_core.domain.clock import Deadline, SystemClock
from shepherd_core.domain.errors import SecretMissing, SecretUnavailable, ShepherdError, TimeLimitExceeded
from shepherd_core.domain.errors.provider import (
    MachineNotFound,
    ProviderError,
    ProviderRefused,
    ProviderUnavailable,
    ProviderUnusable,
)
from shepherd_core.providers.kit.auth import Basic, Header
from shepherd_core.providers.kit.dialect import Dialect
from shepherd_core.providers.kit.http import TEXT_LENGTH, TRIES, HttpApi

from tests.conftest import ManualClock
from tests.support.providers.scripted_http import DROPPED, Answer, Request, Script, in_turn, said, scripted_server

KEY = "the-api-key"
FINE = Answer(200, b'{"fine": true}')
CUT = Answer(200, FINE.body, missing=100)
PASSING = {
    **{str(status): Answer(status) for status in (429, 500, 503, 504)},
    "502": said(502, error="bad gateway"),
    "dropped": DROPPED,
    "cut": CUT,
    "not JSON": Answer(200, b"<html>"),
}
SENT, THEN = "Sat, 21 Nov 2026 10:00:00 GMT", "Sat, 21 Nov 2026 10:00:04 GMT"


@pytest.fixture
def script() -> Iterator[Script]:
    with scripted_server(in_turn(FINE)) as server:
        yield server


@pytest.fixture
def api(script: Script, clock: ManualClock) -> HttpApi:
    return HttpApi(script.url, Header("X-Auth-Token", lambda: KEY), clock, 2)


def in_real_time(url: str) -> HttpApi:
    """Return a client whose clock runs, and which makes one request at a time."""
    return HttpApi(url, Header("X-Auth-Token", lambda: KEY), SystemClock(), 1)


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


@pytest.mark.parametrize("fault", PASSING.values(), ids=PASSING)
def test_a_passing_failure_repeats_reads_and_no_change(
    fault: Answer, script: Script, api: HttpApi, clock: ManualClock, deadline: Deadline
) -> None:
    """A change may have been made although its answer was lost; twice could mean two machines."""
    script.answer = in_turn(fault, FINE)
    assert api.get("/things", deadline) == {"fine": True}
    assert (len(script.requests), len(clock.slept)) == (2, 1)
    script.answer = in_turn(fault)
    with pytest.raises(ProviderUnavailable, match="GET /things"):
        api.get("/things", deadline)
    assert len(script.requests) == 2 + TRIES
    with pytest.raises(ProviderUnavailable, match="POST /things"):
        api.post("/things", {}, deadline)
    assert len(script.requests) == 2 + TRIES + 1


def test_what_a_status_means_is_up_to_the_caller(script: Script, api: HttpApi, deadline: Deadline) -> None:
    """Actions are queued without an answer; a machine that is gone is news of its own."""
    without = (Answer(202), Answer(204), Answer(201), Answer(202, b"It has begun."))
    for answer, meaning in (*((each, None) for each in without), (said(202, id=1), {"id": 1})):
        script.answer = in_turn(answer)
        assert api.post("/things", {}, deadline) == meaning
    script.answer = in_turn(FINE)
    late = Deadline(SystemClock(), 5, lambda: 0)
    assert api.get("/things", late) == {"fine": True}  # reading does no harm after the session
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
        ({"Date": SENT, "Retry-After": THEN}, 4),
        ({"Date": THEN, "Retry-After": SENT}, 0),
        ({"Retry-After": THEN}, None),  # a date means nothing without the API's own
        *(({"Retry-After": odd}, None) for odd in ("soon", "-3", "²", "1 Jan 99999999999999999999 00:00:00 GMT")),
    ],
)
def test_the_api_says_when_to_come_back(
    headers: dict[str, str], pause: float | None, script: Script, api: HttpApi, clock: ManualClock
) -> None:
    """Coming sooner prolongs the ban; if it says nothing, pauses grow."""
    script.answer = in_turn(Answer(429, headers=headers), Answer(503, headers=headers), FINE)
    api.get("/things", Deadline(clock, 60))
    first, second = clock.slept
    assert (first, second) == (pause, pause) if pause is not None else 0.25 <= first <= 0.5 <= second <= 1


def test_a_long_wait_is_left_to_the_caller(
    script: Script, api: HttpApi, clock: ManualClock, deadline: Deadline
) -> None:
    """Sleeping is paid for; and no pause outlives the deadline."""
    script.answer = in_turn(Answer(429, headers={"Retry-After": "120"}))
    with pytest.raises(ProviderUnavailable) as reading:
        api.get("/things", Deadline(clock, 1_000))
    with pytest.raises(ProviderUnavailable) as changing:
        api.post("/things", {}, deadline)
    assert (reading.value.retry_after, changing.value.retry_after) == (120, 120)
    script.answer = in_turn(Answer(503, headers={"Retry-After": "5"}))
    with pytest.raises(ProviderUnavailable, match="503"):
        api.get("/things", Deadline(clock, 5))
    assert clock.slept == []


def test_an_api_that_never_answers_is_left_at_the_deadline(script: Script) -> None:
    script.answer = in_turn(Answer(head=b"", pause_seconds=30))
    with pytest.raises(ProviderUnavailable, match="no complete answer") as caught:
        in_real_time(script.url).get("/things", Deadline(SystemClock(), 2))
    waited = re.search(r"read timeout=([\d.]+)", str(caught.value.__cause__))
    assert waited is not None
    assert float(waited[1]) <= 2


@pytest.mark.parametrize(
    "answer",
    [Answer(200, b" "), *(Answer(head=head, body=b"a") for head in (b"HTTP/1.1 200 ", b"HTTP/1.1 200 OK\r\nX-Slow: "))],
    ids=["body", "status", "header"],
)
def test_an_answer_that_trickles_in_is_cut_off(script: Script, answer: Answer) -> None:
    """A timeout of the socket begins again with each byte; one slow server held a loop until it was killed."""
    script.answer = in_turn(Answer(answer.status, answer.body, repeat=10_000, pause_seconds=0.02, head=answer.head))
    with pytest.raises(ProviderUnavailable, match="POST /things"):
        in_real_time(script.url).post("/things", {}, Deadline(SystemClock(), 1))
    assert script.left.wait(30)


def test_no_more_requests_than_allowed_are_made_at_once(script: Script, api: HttpApi, deadline: Deadline) -> None:
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
    arrived, leave = threading.Event(), threading.Event()

    def hold(_: Request) -> Answer:
        arrived.set()
        leave.wait(30)
        return FINE

    script.answer = hold
    api = in_real_time(script.url)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(api.get, "/things", deadline)
        assert arrived.wait(30)
        with pytest.raises(TimeLimitExceeded):
            api.get("/things", Deadline(SystemClock(), 0.1))
        leave.set()
        assert first.result() == {"fine": True}
    assert len(script.requests) == 1


def test_a_replaced_credential_is_taken_up(script: Script, clock: ManualClock, deadline: Deadline) -> None:
    keys = iter([" old\n", "new"])  # secrets that were pasted into a file end with a new line
    api = HttpApi(script.url, Header("X-Auth-Token", lambda: next(keys)), clock, 1)
    script.answer = in_turn(FINE, Answer(401), FINE)
    for _ in range(3):
        api.get("/things", deadline)
    api.post("/things", {}, deadline)
    assert [request.headers["X-Auth-Token"] for request in script.requests] == ["old", "old", "new", "new", "new"]
    assert len({request.port for request in script.requests}) == 1, "each page would begin with a handshake"


@pytest.mark.parametrize(
    ("raised", "expected"),
    [(SecretUnavailable("later"), ProviderUnavailable), (SecretMissing("gone"), ProviderUnusable)],
)
def test_an_unreadable_credential_is_an_error_of_the_provider(
    raised: ShepherdError, expected: type[ProviderError], script: Script, clock: ManualClock, deadline: Deadline
) -> None:
    """Callers handle the errors that a provider may raise, and no others; one that we lack blames no machine."""

    def ask() -> str:
        raise raised

    api = HttpApi(script.url, Header("X-Auth-Token", ask), clock, 1)
    with pytest.raises(expected, match=str(raised)):
        api.get("/things", deadline)
    assert script.requests == []


@pytest.mark.parametrize(
    ("style", "broken", "words"),
    [
        *[(Header, broken, "cannot be sent") for broken in ("", " ", "the-\n-secret", "the-secrét", "the-\x00secret")],
        *[(Basic, broken, "not of the form USER:PASSWORD") for broken in ("the-secret", "user:", ":the-secret")],
    ],
)
def test_a_credential_that_cannot_be_sent_is_not_quoted(
    style: Any, broken: str, words: str, deadline: Deadline
) -> None:
    """The HTTP library would quote it in full; half of one can only fail, and some APIs count failures."""
    login = style("X-Auth-Token", lambda: broken) if style is Header else style(lambda: broken)
    with pytest.raises(ProviderRefused, match=words) as caught:
        HttpApi("http://127.0.0.1:9", login, SystemClock(), 1).get("/things", deadline)
    assert "the-" not in whole_text(caught.value)


def test_a_refused_credential_is_not_sent_during_the_lockout(
    script: Script, clock: ManualClock, deadline: Deadline
) -> None:
    """Each failed login counts, by whatever method; one that was replaced is used at once."""
    keys = ["old"]
    api = HttpApi(script.url, Header("X-Auth-Token", lambda: keys[-1]), clock, 1, dialect=Dialect(lockout_seconds=600))
    script.answer = lambda request: FINE if request.headers["X-Auth-Token"] == "new" else Answer(401)
    with pytest.raises(ProviderRefused, match="401"):
        api.get("/things", deadline)
    clock.now += 599
    for call in (partial(api.get, "/things"), partial(api.post, "/things", {})):
        with pytest.raises(ProviderRefused, match="not sent: the credential was refused; retry in 1 s"):
            call(deadline)
    assert len(script.requests) == 1
    clock.now += 1
    with pytest.raises(ProviderRefused, match="401"):
        api.get("/things", deadline)
    keys.append("new")
    assert api.get("/things", deadline) == {"fine": True}
    assert len(script.requests) == 3


@pytest.mark.parametrize(
    "fault",
    [
        said(401, error=f"token {KEY} is not valid"),
        said(422, errors=["no", f"not with {KEY}"]),
        said(500, error=KEY),
        Answer(200, KEY.encode()),
        DROPPED,
        CUT,
        Answer(302, headers={"Location": "http://127.0.0.1:1/"}),
    ],
)
def test_the_credential_is_in_no_error(fault: Answer, script: Script, api: HttpApi, deadline: Deadline) -> None:
    """Errors are logged and kept in the history; the libraries' errors hold the request with all its headers."""
    script.answer = in_turn(fault)
    with pytest.raises(ProviderError) as reading:
        api.get("/things", deadline)
    with pytest.raises(ProviderError) as changing:
        api.post("/things", {}, deadline)
    assert KEY not in whole_text(reading.value) + whole_text(changing.value)


def test_a_refused_connection_is_retryable(clock: ManualClock, deadline: Deadline) -> None:
    """The reason is its own, and not that of an error that is handled meanwhile, to which Python links it."""
    with scripted_server(in_turn(FINE)) as server:
        url = server.url
    api = HttpApi(url, Header("X-Auth-Token", lambda: KEY), clock, 1)

    def ask_while_handling(error: ShepherdError) -> None:
        try:
            raise error
        except ShepherdError:
            api.get("/things", deadline)

    with pytest.raises(ProviderUnavailable, match=r"GET /things: no complete answer: ConnectionRefusedError"):
        ask_while_handling(ProviderRefused("something else"))
    assert len(clock.slept) == TRIES - 1


def test_the_library_sends_nothing_on_its_own(
    script: Script, api: HttpApi, deadline: Deadline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No credential from ~/.netrc, no cookie that threads would share, nothing to whomever a redirection names."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login somebody password secret\n")
    monkeypatch.setenv("NETRC", str(netrc))
    with scripted_server(in_turn(FINE)) as elsewhere:
        moved = Answer(302, headers={"Location": f"{elsewhere.url}/things", "Set-Cookie": "a=b; Path=/"})
        script.answer = in_turn(moved, FINE)
        with pytest.raises(ProviderRefused, match="302"):
            api.get("/things", deadline)
        api.get("/things", deadline)
        assert elsewhere.requests == []
    assert [{"Authorization", "Cookie"} & request.headers.keys() for request in script.requests] == [set(), set()]


def test_an_error_says_what_the_api_said(script: Script, api: HttpApi, deadline: Deadline) -> None:
    """It ends up in the history of a machine: short, and in one line."""
    for answer, words in (
        (said(400, error="not\n  here"), ": not here"),
        (said(400, errors=[]), ""),
        (Answer(400, b"<html>bad</html>"), ""),
        (said(400, error="x" * 5000), ": " + "x" * TEXT_LENGTH),
    ):
        script.answer = in_turn(answer)
        with pytest.raises(ProviderRefused) as caught:
            api.get("/things", deadline)
        assert str(caught.value) == f"GET /things: 400{words}"


def test_an_answer_is_bounded_by_what_it_decompresses_to(script: Script, api: HttpApi, deadline: Deadline) -> None:
    """Kilobytes of gzip can be gigabytes, which would end the function and all that it holds."""
    script.answer = in_turn(Answer(200, gzip.compress(b" " * (LONGEST_ANSWER + 1)), {"Content-Encoding": "gzip"}))
    with pytest.raises(ProviderUnavailable, match=f"longer than {LONGEST_ANSWER} bytes"):
        api.get("/things", deadline)
