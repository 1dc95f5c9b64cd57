"""The parts that adapters are made of, where no provider's own tests hold them: tokens, pages and refusals."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from shepherd_core.domain.clock import Deadline
from shepherd_core.domain.errors.provider import ListingInvalid, ProviderRefused, ProviderUnavailable, ProviderUnusable
from shepherd_core.providers.kit import paging as kit_paging
from shepherd_core.providers.kit.auth import ClientCredentials
from shepherd_core.providers.kit.dialect import said
from shepherd_core.providers.kit.http import HttpApi
from shepherd_core.providers.kit.paging import NextLinks, Offsets, PageNumbers, Paging, listed

from simulator.environment.faults import EmptyPage, FakeAnswer, RepeatPage, Rule, SetValue, Shrink
from simulator.providers.kit.hardware import NoHardware
from simulator.providers.kit.machines import Options
from simulator.providers.kit.oauth2 import OAuth2Api
from simulator.providers.kit.rest import Call, route
from tests.conftest import ManualClock

SECRET = "a-client:a-secret-that-nobody-may-see"
IDS = [f"thing-{number}" for number in range(5)]
COUNTED = PageNumbers(entries="things", total="total")
UNCOUNTED = PageNumbers(entries="things")
PLACED = PageNumbers(entries="things", total="meta.total", current="meta.current", more="meta.next")
LINKED = NextLinks(entries="things", next="next", size="per_page")
SKIPPED = Offsets(entries="things", size="per_page")
CURSOR = NextLinks(entries="things", next="cursor", cursor="page", total="total", size="per_page")


class Things(OAuth2Api):
    """An API with five things, in pages of two."""

    @route("GET", "/things")
    def list_things(self, call: Call) -> Any:
        shown, page = self.page(call, IDS[int(call.query.get("offset", 0)) :])
        following = f"{self.url}/things?page={page.number + 1}&per_page={page.size}"
        return {
            "things": [{"id": each} for each in shown],
            "total": page.total,
            "meta": {"total": page.total, "current": page.number, "next": page.number < page.last or None},
            "next": following if page.number < page.last else None,
            "cursor": str(page.number + 1) if page.number < page.last else "",
        }


def one(thing_id: object) -> dict[str, Any]:
    """Return a listing of one thing, whichever way its pages are read."""
    return {"things": [{"id": thing_id}], "total": 1, "meta": {"total": 1, "current": 1, "next": None}, "next": None}


@pytest.fixture
def things() -> Iterator[Things]:
    with Things(NoHardware(), secret=SECRET, options=Options(per_page_cap=2)) as api:
        yield api
        assert api.errors == []


@pytest.fixture
def api(things: Things, clock: ManualClock) -> HttpApi:
    return HttpApi(things.url, ClientCredentials(f"{things.url}/token", lambda: SECRET, clock), clock)


def test_one_token_is_used_until_shortly_before_its_end(
    things: Things, api: HttpApi, clock: ManualClock, deadline: Deadline
) -> None:
    """A token for each request would be half of the requests; one that ends on the way would be refused."""
    for seconds, tokens in ((0, 1), (269, 1), (1, 2), (269, 2)):
        clock.now += seconds
        api.get("/things", deadline)
        assert things.calls["POST", "/token"] == tokens


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (FakeAnswer(path="/token", times=0, status=400, body={"error": "invalid_client"}), ProviderUnusable),
        (FakeAnswer(path="/token", times=0, status=401, body={"error": SECRET}), ProviderUnusable),
        (FakeAnswer(path="/token", times=0, status=503), ProviderUnavailable),
        (SetValue(path="/token", times=0, at="access_token", value="a\nb"), ProviderUnusable),
        (SetValue(path="/token", times=0, at="access_token", value=None), ProviderUnavailable),
        (SetValue(path="/token", times=0, at="expires_in", value=-1), ProviderUnavailable),
    ],
)
def test_a_refused_token_is_an_error_of_the_provider(
    answer: Rule, error: type[Exception], things: Things, api: HttpApi, deadline: Deadline
) -> None:
    things.faults.add(answer)
    with pytest.raises(error) as raised:
        api.get("/things", deadline)
    assert "a-secret" not in str(raised.value)
    assert things.calls["GET", "/things"] == 0


@pytest.mark.parametrize(
    ("paging", "fault"),
    [
        (COUNTED, None),
        (UNCOUNTED, None),
        (LINKED, None),
        (CURSOR, None),
        (SKIPPED, None),
        (SKIPPED, Shrink(path="/things", nth=2, times=2)),
        (PLACED, None),
        (COUNTED, Shrink(path="/things", nth=2)),
        (UNCOUNTED, Shrink(path="/things", nth=2, times=2)),
        (COUNTED, EmptyPage(path="/things", nth=2)),
        (PLACED, RepeatPage(path="/things", nth=2)),
        (PLACED, SetValue(path="/things", nth=3, at="meta.next", value=True)),
        (PLACED, SetValue(path="/things", at="meta.current", value=7)),
    ],
)
def test_a_listing_is_complete(
    paging: Paging, fault: Rule | None, things: Things, api: HttpApi, deadline: Deadline
) -> None:
    """Also where entries move to pages that were read: what is missing would count as gone."""
    if fault is not None:
        things.faults.add(fault)
    assert [each["id"] for each in listed(api, "/things", deadline, paging)] == IDS


def told(at: str, value: object) -> Rule:
    return SetValue(path="/things", times=0, at=at, value=value)


SENSELESS: list[Rule] = [
    told("things.0.id", "thing-1"),
    told("things.1", "thing-1"),
    told("things", {}),
    FakeAnswer(path="/things", nth=2, times=0, status=404),
    *(FakeAnswer(path="/things", times=0, status=200, body=one(odd)) for odd in (None, ["x"])),
]


@pytest.mark.parametrize(
    ("paging", "fault", "words"),
    [
        *((way, fault, ".") for way in (COUNTED, UNCOUNTED, LINKED, CURSOR, SKIPPED, PLACED) for fault in SENSELESS),
        (COUNTED, told("total", "5"), "the total total is '5'"),
        (COUNTED, told("total", 6), "5 entries were listed"),
        (PLACED, told("meta.current", 7), "the answer is page 7 instead of page 1"),
        (LINKED, told("next", "https://["), "the link to the next page is no URL"),
    ],
)
def test_a_listing_that_contradicts_itself_is_invalid(
    paging: Paging, fault: Rule, words: str, things: Things, api: HttpApi, deadline: Deadline
) -> None:
    """Twice in a row it is no change that came in between; a ValueError would end the loop with a traceback."""
    things.faults.add(fault)
    with pytest.raises((ListingInvalid, ProviderRefused), match=words):
        listed(api, "/things", deadline, paging)


def test_a_listing_without_end_is_invalid(api: HttpApi, deadline: Deadline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kit_paging, "MOST_ENTRIES", 4)
    with pytest.raises(ListingInvalid, match="more than 4 entries"):
        listed(api, "/things", deadline, UNCOUNTED)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"errors": [{"code": "taken", "status": "422", "title": "No", "detail": "x"}]}, "taken: No: x"),
        ({"message": "invalid argument(s)", "type": "invalid_arguments"}, "invalid_arguments: invalid argument(s)"),
        ({"message": "no", "validationErrors": ["a", "b"]}, "no: a; b"),
        ({"error": "invalid_client", "error_description": "who?"}, "invalid_client: who?"),
        ({"error_message": json.dumps({"faultcode": "Client", "faultstring": "locked"})}, "locked"),
        ({"error": "{not JSON"}, "{not JSON"),
        ({"error": {"code": "X", "missing": ["a"]}}, "X: missing a"),
        ({"error": [[[[[["deep"]]]]]]}, ""),
        (None, ""),
    ],
)
def test_an_errors_message_is_found_where_apis_put_it(body: object, expected: str) -> None:
    assert said(body) == expected
