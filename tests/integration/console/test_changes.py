"""What the console changes, with ``--allow-changes`` and without."""

from uuid import UUID, uuid4

import pytest
import requests
from shepherd_core.bmdb.machines import pauses
from shepherd_core.bmdb.work.history import read_history

from tests.support.bmdb.fleet import Fleet
from tests.support.command_line import CommandLine
from tests.support.console import Visitor, said, serving


@pytest.fixture(scope="module")
def operator() -> str:
    """Return who may change something."""
    return "ana"


@pytest.fixture
def quarantined(fleet: Fleet) -> UUID:
    """Return a machine in quarantine, with a backoff and a pause."""
    machine_id = fleet.unhealthy_machine()
    quarantine(fleet, machine_id, "PolicyExhausted: the first time")
    fleet.sql(
        "INSERT INTO work_backoff (machine_id, process, until, cause, last_interval_seconds) "
        "VALUES (:id, 'ShepherdRecovery', now() + interval '1 hour', 'ProviderUnavailable: it rains', 60)",
        id=machine_id,
    )
    return machine_id


def quarantine(fleet: Fleet, machine_id: UUID, cause: str) -> None:
    """Put a machine into quarantine."""
    fleet.change(machine_id, f"INSERT INTO machine_quarantine VALUES ('{machine_id}', now(), '{cause}', '')")


def history(fleet: Fleet, machine_id: UUID) -> list[tuple[str, str]]:
    """Return the events of a machine with their causes, newest first."""
    return [(each["event"], each["failed_cause"]) for each in read_history(fleet.connection, machine_id)]


def test_a_console_that_only_reads_has_no_page_that_changes_something(fleet: Fleet, quarantined: UUID) -> None:
    """Without --allow-changes there is nothing that a mistake in another check could open."""
    pauses.pause(fleet.connection, owner="bob", reason="maintenance", machine_id=quarantined)
    with serving(fleet.settings) as access:
        reader = Visitor(access)
        for path in ("/change", "/change/x"):
            assert reader.get(path).status_code == 404
            assert reader.post(path, form_token=access.form_token, kind="pause-fleet", reason="x").status_code == 404
        for path in ("/", "/machines", f"/machines/{quarantined}", "/work", "/differences"):
            page = reader.read(path)
            assert "/change" not in page
            assert "read-only" in page


def test_a_machine_is_taken_out_of_quarantine_after_its_dry_run(
    visitor: Visitor, fleet: Fleet, quarantined: UUID
) -> None:
    """The dry run changes nothing; the operator is in the machine's history; a second submission does nothing."""
    page = visitor.read(f"/machines/{quarantined}")
    assert f"/change?kind=unquarantine&amp;machine={quarantined}" in page
    assert "machine-1: quarantined" in visitor.text(f"/change?kind=unquarantine&machine={quarantined}")
    planned = visitor.plan("unquarantine", machine=str(quarantined), reason="it's repaired")
    assert "PolicyExhausted: the first time" in said(planned.text)
    assert history(fleet, quarantined) == []
    for _ in range(2):
        assert "Done by ana" in said(visitor.confirm(planned).text)
    assert history(fleet, quarantined) == [("Unquarantined", "ana: it's repaired")]
    again = visitor.plan("unquarantine", machine=str(quarantined), reason="twice")
    assert again.status_code == 409
    assert "is not in quarantine: nothing was changed" in said(again.text)


def test_a_quarantine_that_began_after_the_dry_run_is_not_ended(
    visitor: Visitor, fleet: Fleet, quarantined: UUID
) -> None:
    """The operator knows nothing of its cause."""
    planned = visitor.plan("unquarantine", machine=str(quarantined), reason="repaired")
    fleet.change(quarantined, f"DELETE FROM machine_quarantine WHERE machine_id = '{quarantined}'")
    quarantine(fleet, quarantined, "PolicyExhausted: the second time")
    assert "It would now do something else" in said(visitor.confirm(planned).text)
    assert history(fleet, quarantined) == []
    assert len(fleet.sql("SELECT * FROM machine_quarantine")) == 1


def test_backoffs_are_ended_of_the_loop_that_was_chosen(visitor: Visitor, fleet: Fleet, quarantined: UUID) -> None:
    """In a second tab nothing is left to do."""
    machine = str(quarantined)
    tabs = [visitor.plan("retry", machine=machine, loop="recoverer", reason="it is dry") for _ in range(2)]
    assert "Recoverer in 60 min ProviderUnavailable: it rains" in said(tabs[0].text)
    other = said(visitor.plan("retry", machine=machine, loop="initializer", reason="it is dry").text)
    assert "There is nothing to do." in other
    assert "Done by ana" in said(visitor.confirm(tabs[0]).text)
    assert "Nothing was changed." in said(visitor.confirm(tabs[1]).text)
    assert history(fleet, quarantined) == [("Retried", "ana: it is dry")]


@pytest.mark.parametrize(
    ("kind", "fields", "scope"),
    [
        ("pause", {"for": "2h"}, "machine {id} for 2 h"),
        ("pause", {"loop": "recoverer"}, "machine {id}, loop Recoverer until resumed"),
        (
            "pause-fleet",
            {"provider": "static", "loop": "initializer"},
            "loop Initializer, provider static until resumed",
        ),
        ("pause-fleet", {}, "everything until resumed"),
    ],
)
def test_a_pause_is_made_and_ended(
    visitor: Visitor, fleet: Fleet, quarantined: UUID, kind: str, fields: dict[str, str], scope: str
) -> None:
    """Also sent twice it is one pause; both pages say what it covers."""
    if kind == "pause":
        fields = {**fields, "machine": str(quarantined)}
    planned = visitor.plan(kind, reason="a new mainboard", **fields)
    assert scope.format(id=quarantined) in said(planned.text)
    assert pauses.pauses_in_force(fleet.connection) == []
    for _ in range(2):
        assert "Done by ana" in said(visitor.confirm(planned).text)
    (pause,) = pauses.pauses_in_force(fleet.connection)
    assert (pause["owner"], pause["reason"]) == ("ana", "a new mainboard")
    assert (pause["machine_id"] or "", pause["provider"] or "") == (
        quarantined if kind == "pause" else "",
        fields.get("provider", ""),
    )
    address = f"/change?kind=resume&amp;pause={pause['pause_id']}"
    assert address in visitor.read("/work")
    resumed = visitor.plan("resume", pause=str(pause["pause_id"]))
    assert "ana" in said(resumed.text)
    assert "Done by ana" in said(visitor.confirm(resumed).text)
    assert pauses.pauses_in_force(fleet.connection) == []
    ended = [("Resumed", "ana: paused by ana: a new mainboard")]
    assert history(fleet, quarantined) == (ended if kind == "pause" else [])


@pytest.mark.parametrize(
    ("form", "status", "expected"),
    [
        ({"kind": "reboot"}, 400, "kind must be one of pause, "),
        ({"kind": "pause", "reason": "x", "machine": "machine-1"}, 400, "machine: 'machine-1' is not an id"),
        ({"kind": "pause", "reason": "x", "machine": str(uuid4())}, 404, "There is no such machine."),
        ({"kind": "pause-fleet", "reason": " "}, 400, "reason is missing"),
        ({"kind": "pause-fleet", "reason": "x" * 501}, 400, "reason must be one line of at most 500 characters"),
        ({"kind": "pause-fleet", "reason": "a\0b"}, 400, "reason must be one line of at most 500 characters"),
        ({"kind": "pause-fleet", "reason": "x", "for": "soon"}, 400, "for: 'soon' is not a duration"),
        ({"kind": "pause-fleet", "reason": "x", "provider": "none"}, 400, "provider: 'none' is not one of"),
        ({"kind": "retry", "reason": "x"}, 400, "machine is missing"),
        ({"kind": "retry", "reason": "x", "machine": str(uuid4()), "loop": "all"}, 400, "loop: 'all' is not one of"),
        ({"kind": "adopt", "provider_id": "x", "class": "mine"}, 400, "class: 'mine' is not one of"),
    ],
)
def test_a_wrong_form_is_refused_with_the_field(
    visitor: Visitor, form: dict[str, str], status: int, expected: str
) -> None:
    """Browsers check the same, but not everything comes from our pages."""
    response = visitor.plan(**form)
    assert response.status_code == status
    assert expected.replace("'", "&#39;") in response.text


def test_only_the_consoles_own_pages_change_something(visitor: Visitor, fleet: Fleet) -> None:
    """A page of another site can send a form to this computer; a page of another name too (DNS rebinding)."""
    token, form = visitor.access.form_token, {"kind": "pause-fleet", "reason": "x"}
    planned = visitor.plan(**form)
    path = "/change/" + planned.url.rpartition("/")[2]
    for address, given in (("/change", form), (path, {})):
        assert visitor.post(address, **given).status_code == 403
        assert visitor.post(address, form_token="0" * 64, **given).status_code == 403
        for name, value, status in (("Origin", "http://evil.example", 403), ("Host", "evil.example", 421)):
            visitor.session.headers[name] = value
            assert visitor.post(address, form_token=token, **given).status_code == status
            del visitor.session.headers[name]
        stranger = Visitor(visitor.access, enters=False)
        assert stranger.post(address, form_token=token, **given).status_code == 401
    assert visitor.get("/change?kind=pause-fleet&reason=theirs").text.count("theirs") == 0
    assert pauses.pauses_in_force(fleet.connection) == []


def test_a_change_of_a_console_that_ended_is_not_known(visitor: Visitor) -> None:
    """What was shown went with it, and so did its token."""
    response = visitor.post("/change/of-another", form_token=visitor.access.form_token)
    assert response.status_code == 404
    assert "the console was started again" in said(response.text)


@pytest.mark.parametrize(
    ("options", "said_to_be"), [((), "read-only"), (("--allow-changes", "--owner", "ana"), "changes as ana")]
)
def test_the_command_allows_changes_only_when_asked(fleet: Fleet, options: tuple[str, ...], said_to_be: str) -> None:
    """It serves until it is interrupted."""
    shepherdctl = CommandLine(fleet.settings)
    with shepherdctl.interrupted(200, "console", "--no-browser", *options) as until, requests.Session() as browser:
        browser.trust_env = False
        address = until(b"\n").decode().split()[-1]
        browser.get(address, timeout=60)
        assert said_to_be in browser.get(address.partition("?")[0], timeout=60).text
