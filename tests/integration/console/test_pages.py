import csv
import io
import re
from datetime import timedelta
from html import unescape
from uuid import UUID, uuid4

import pytest
from shepherd_core.bmdb.machines import overview, pauses
from shepherd_core.domain.errors.provider import ProviderUnavailable
from shepherd_core.domain.machine import Process
from shepherd_core.domain.states import State

from shepherdctl.console.pages import fleet as fleet_page
from shepherdctl.console.pages import machines as machines_page
from shepherdctl.descriptions.cures import CURES
from tests.support.bmdb.fleet import HOUR, Fleet
from tests.support.bmdb.listings import Watched, name_of
from tests.support.bmdb.work_ends import failed, ticked
from tests.support.command_line import CommandLine
from tests.support.console import Visitor, plant_hostile_text, said

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>{{ 7*7 }}\u202e&lt;"
ESCAPED = (
    "&lt;script&gt;alert(1)&lt;/script&gt;&#34;&#39;&gt;&lt;img src=x onerror=alert(2)&gt;{{ 7*7 }}\\u202e&amp;lt;"
)


@pytest.fixture
def mixed(fleet: Fleet) -> dict[State, UUID]:
    creating = fleet.bare_machine()
    fleet.sql("INSERT INTO machine_creation_intent VALUES (:id, 'static', 'rack-7', now())", id=creating)
    return {
        State.CREATING: creating,
        State.NEEDS_AGENT: fleet.provided_machine(),
        State.STARTING: fleet.started_machine(60),
        State.RUNNING: fleet.reporting_machine(60),
        State.UNHEALTHY: fleet.unhealthy_machine(2 * HOUR),
        State.INSTALLED: fleet.install(fleet.started_machine(HOUR)),
        State.FAILED: fleet.fail(fleet.provided_machine(), "deploy failed"),
        State.QUARANTINED: fleet.quarantine(fleet.unhealthy_machine(), "PolicyExhausted: x"),
    }


def test_the_fleet_page_takes_four_statements(fleet: Fleet, mixed: dict[State, UUID]) -> None:
    """Every open page asks every few seconds; what it counts adds up."""
    connection = Watched(fleet)
    shown = fleet_page.fleet(connection)
    assert len(connection.ran) == 4
    assert shown["machines"] == len(mixed) == sum(place["machines"] for place in shown["places"])
    assert {state for state, number in shown["by_state"].items() if number} == set(mixed)
    assert sum(part.width for part in shown["bar"]) == pytest.approx(1000, abs=0.1)
    fleet.empty()
    for age in (5, 90, 90, 400, 100_000):
        fleet.unhealthy_machine(age, started_ago=200_000)
    shown = fleet_page.fleet(fleet.connection)["heartbeats"]
    bars = {row["name"]: (row["machines"], row["width"]) for row in shown if row["machines"]}
    assert bars == {"under 1 min": (1, 500), "1 to 2 min": (2, 1000), "5 to 10 min": (1, 500), "older": (1, 500)}


def test_the_fleet_page_draws_the_last_ticks_and_the_day(visitor: Visitor, fleet: Fleet) -> None:
    for loop, minutes, seconds, outcome, counts in (
        ("provisioner", 2, 4, "Succeeded", '{"created": 2, "backlog": 7}'),
        ("provisioner", 62, 2, "Failed", '{"created": 3}'),
        ("initializer", 3, 6, "Expired", '{"finished": 4, "failed": 5}'),
        ("recoverer", 4, 1, "Succeeded", "{}"),
        ("recoverer", 1430, 1, "Succeeded", '{"finished": 6, "failed": 8}'),
    ):
        times = {"began_at": timedelta(minutes=-minutes, seconds=-seconds), "ended_at": timedelta(minutes=-minutes)}
        told = {"loop": loop, "provider": "static", "outcome": outcome, "counts": counts, "runtime_info": "1"}
        fleet.plant("ticks", session_id=uuid4(), **times, **told)
    ticked(fleet, "updater", ProviderUnavailable("it rains"), claimed=1)
    shown = fleet_page.fleet(fleet.connection)
    assert {
        one["loop"]: (one["took"], one["did"], one["backlog"], one["series"].heights, one["outcomes"], one["failed"])
        for one in shown["loops"]
        if one["loop"] != "Updater"
    } == {
        "Provisioner": ("4 s", "7 backlog, 2 created", 7, [0.5, 1], ["Failed", "Succeeded"], 1),
        "Initializer": (None, "4 finished, 5 failed", 0, [1], ["Expired"], 1),
        "Recoverer": ("1 s", "nothing to do", 0, [1, 1], ["Succeeded"] * 2, 0),
    }
    day = {each.name: (each.kind, each.total, each.highest) for each in shown["day"]}
    assert day == {
        "machines created": ("good", 5, 3),
        "agents started": ("good", 4, 4),
        "agent starts failed": ("bad", 5, 5),
        "recovery steps taken": ("step", 6, 6),
        "recovery steps failed": ("bad", 8, 8),
    }
    text = visitor.text("/")
    for words in ("Updater ▲ Failed static", "provider-unavailable: it rains", "agents started 4 4", "▲ Expired"):
        assert words in text


def test_the_fleet_page_has_what_holds_machines_back(visitor: Visitor, fleet: Fleet) -> None:
    """What limits the fleet comes first, then the oldest; the answer is in the words of the loops."""
    given_up = {"cause": "?", "kind": "steps-used-up", "quarantined_at": timedelta(minutes=-10)}
    fleet.plant("machine_quarantine", machine_id=fleet.unhealthy_machine(), **given_up)
    for name, location, per_hour, minutes in (("static", "ams", 1, -30), ("redfish", "", 0, -20)):
        budget = {"brake": "share", "reason": "8 of 10 are dead", "began_at": timedelta(minutes=minutes)}
        fleet.plant("recovery_budgets", provider=name, location=location, per_hour=per_hour, **budget)
    for minutes, owner, about in (
        (-110, "provisioner", {"machine_id": fleet.provided_machine(), "reason": "not listed"}),
        (-100, "bob", {"provider": "ec2", "reason": "maintenance"}),
        (-90, "ana", {"machine_id": fleet.reporting_machine(), "reason": "new mainboard"}),
        (-80, "ana", {"machine_id": fleet.provided_machine(), "reason": "new mainboard"}),
    ):
        fleet.plant("pauses", owner=owner, created_at=timedelta(minutes=minutes), **about)
    waiting = {"waiting": 12, "max_machines": 50, "waiting_seen_at": timedelta(minutes=-70)}
    fleet.plant("provisioner_lock", provider="static", **waiting)
    notices = visitor.read("/").partition('<section id="notices"')[2].partition("</section>")[0]
    assert said(notices).partition("Reason ")[2] == (
        "▲ Recovery takes at most 1 step an hour static, location ams 30 min ago 8 of 10 are dead "
        "▲ Recovery takes no step redfish, the whole provider 20 min ago 8 of 10 are dead "
        "▲ 1 machine quarantined 10 min ago steps-used-up "
        "1 machine set aside 110 min ago provisioner not listed "
        "Provider ec2 paused ec2 100 min ago bob maintenance "
        "2 machines paused 90 min ago ana new mainboard "
        "12 places unused static 70 min ago the limit of 50 machines is reached"
    )
    assert re.findall(r'href="/machines\?(.*?)"', unescape(notices)) == [
        "state=unhealthy&state=needs_agent&provider=static&location=ams",
        "state=unhealthy&state=needs_agent&provider=redfish",
        "state=quarantined",
        "paused=yes",
        "paused=yes&provider=ec2",
        "paused=yes",
    ]


def test_the_page_of_what_fails_says_what_the_commands_say(visitor: Visitor, fleet: Fleet) -> None:
    """What is limited links to its machines."""
    fleet.quarantine(fleet.locate(fleet.unhealthy_machine(), "ams 1"))
    dead = fleet.locate(fleet.unhealthy_machine(), "ams 1")
    fleet.locate(fleet.unhealthy_machine(), "muc")
    fleet.sql("INSERT INTO recovery_budgets VALUES ('static', 'ams 1', 1, 'share', '8 of 10 are dead')")
    query = "state=unhealthy&state=needs_agent&provider=static&location=ams+1"
    for path in ("/", "/fails", "/work"):
        assert f'href="/machines?{query.replace("&", "&amp;")}"' in visitor.read(path), path
    assert [each["machine_id"] for each in visitor.get(f"/machines.json?{query}").json()["machines"]] == [str(dead)]
    page = visitor.read("/fails")
    text = unescape(said(page))
    told = CommandLine(fleet.settings).load("causes")
    assert len(told["conditions"]) > 2
    for one in (*told["conditions"], *told["causes"]):
        assert one.get("text", one.get("cause")) in text
        assert all(part.strip() in text for part in one["cure"].split("`"))
    assert f"<title>({len(told['conditions'])}) What fails" in page
    command = "shepherdctl machine list --provider static --state quarantined"
    assert f'<code class="command">{command}</code> <button class="copy"' in page
    assert "`" not in page


def test_only_locations_with_something_wrong_are_shown(visitor: Visitor, fleet: Fleet) -> None:
    """A fleet with thousands of racks had a page of megabytes every five seconds."""
    fleet.locate(fleet.reporting_machine(60), "fra")
    fleet.locate(fleet.started_machine(60), "vie")
    text = visitor.text("/")
    assert "2 healthy locations." in text
    assert [name for name in ("fra", "vie") if name in text] == []
    fleet.locate(fleet.unhealthy_machine(), "muc")
    fleet.sql("INSERT INTO machines SELECT gen_random_uuid(), now() FROM generate_series(1, 200)")
    for number in range(40):
        fleet.locate(fleet.fail(fleet.provided_machine(), "deploy failed"), f"rack{number:02}")
    fleet.locate(fleet.unhealthy_machine(), "muc")
    for _ in range(3):
        fleet.locate(fleet.provided_machine(), "new")
    assert len(overview.locations(fleet.connection)) == 44
    shown = fleet_page.fleet(fleet.connection)
    assert [each["location"] for each in shown["places"]] == ["muc", *(f"rack{number:02}" for number in range(29))]
    text = visitor.text("/")
    assert "And 12 more with something wrong. And 2 healthy locations." in text
    first = "Location Failed Unhealthy Machines Provider muc 0 2 2"
    assert f"Locations with something wrong, the worst first {first}" in text


LARGE = 150  # of everything that can be many: hundreds of racks at once are a bad day, and the page was an error


def test_many_of_a_kind_hide_no_other_on_short_pages(visitor: Visitor, fleet: Fleet) -> None:
    """A lost site limits the recovery of hundreds of racks; the loop that stands still is on the page nonetheless."""
    fleet.machines(LARGE)
    fleet.sql("UPDATE machine_provided SET provider_location = 'rack-' || machine_id")
    for name, row in {
        "recovery_budgets": "'static', machine_id::text, 1, 'share', 'much of it is dead'",
        "machine_release": "machine_id, now(), 'ana', 'too slow'",
        "pauses (machine_id, owner, reason)": "machine_id, 'ana', 'ticket ' || machine_id",
        "capacity_penalties": "'static', machine_id::text, now() + interval '1 day', 'sold out', 'capacity-taken'",
    }.items():
        fleet.change(f"INSERT INTO {name} SELECT {row} FROM machines")
    dire = fleet.unhealthy_machine()
    fleet.sql(
        "INSERT INTO work_history SELECT :id, 'ShepherdRecovery', event, now() - n * interval '1 minute', cause "
        "FROM generate_series(1, 500) AS n, "
        "(VALUES ('Started', NULL), ('Failed', repeat('no route to host ', 10))) AS x (event, cause)",
        id=dire,
    )
    fleet.quarantine(fleet.unhealthy_machine())
    pages = {path: visitor.read(path) for path in ("/", "/fails", "/machines", f"/machines/{dire}", "/work")}
    assert {path: len(page) for path, page in pages.items() if len(page.encode()) > 100_000} == {}
    for path, shown in (
        ("/fails", f"And {LARGE - 20} more: recovery-limited"),
        ("/fails", "1 machine of static in quarantine"),
        ("/", "1 machine quarantined"),
        ("/", "Only 49 are shown."),
    ):
        assert shown in said(pages[path])


def test_titles_count_what_their_tab_shows(visitor: Visitor, fleet: Fleet, mixed: dict[State, UUID]) -> None:
    fleet.sql("INSERT INTO recovery_budgets VALUES ('static', 'ams', 1, 'share', '8 of 10 are dead')")
    pauses.pause(fleet.connection, owner="bob", reason="maintenance", provider="static")
    conditions = len(CommandLine(fleet.settings).load("causes")["conditions"])
    for path, title in {
        "/": "(3) Fleet",
        "/fails": f"({conditions}) What fails",
        "/machines": f"({len(mixed)}) Machines",
        "/machines?state=running": "(1) Machines",
        "/work": "(2) Work",
        **{f"/machines/{each}?days=7": f"{state.replace('_', ' ')}: " for state, each in mixed.items()},
    }.items():
        assert f"<title>{title}" in visitor.read(path), path
    response = visitor.get(f"/machines/{str(mixed[State.RUNNING])[:13]}")
    assert (response.status_code, response.headers["Location"]) == (303, f"/machines/{mixed[State.RUNNING]}")


def test_machines_are_found_by_id_address_location_and_serial_number(visitor: Visitor, fleet: Fleet) -> None:
    machine_id = fleet.locate(fleet.provided_machine(), "rack 7")
    fleet.provided_machine()
    names = "provider_id = 'Node-77', provider_ip_address = '192.0.2.77'"
    fleet.sql(f"UPDATE machine_provided SET {names} WHERE machine_id = :id", id=machine_id)
    fleet.plant("machine_hardware_report", machine_id=machine_id, hardware_report_raw=b"\x0a\x06SN4711")
    for words in (machine_id, str(machine_id)[:9].upper(), "node-7", "192.0.2", "SN4711"):
        page = visitor.text(f"/machines?text={words}")
        assert ("Node-77" in page, "machine-2" in page) == (True, False), words
    assert "Node-77" in visitor.text("/machines?location=rack+7&provider=static&paused=no")
    assert "No machine matches" in visitor.text("/machines?paused=yes")
    assert "No machine matches" in visitor.text("/machines?text=%25_\u0000")


@pytest.mark.parametrize(
    ("query", "newest"),
    [("state=needs_agent", False), ("state=needs_agent&sort=created", True), ("sort=created", True)],
)
def test_pages_follow_each_other_without_loss(visitor: Visitor, fleet: Fleet, query: str, *, newest: bool) -> None:
    planted = [str(fleet.provided_machine()) for _ in range(machines_page.PAGE + 3)]
    planted = planted[::-1] if newest else sorted(planted)
    path, seen = f"/machines?{query}", []
    while path:
        page = visitor.read(path)
        seen += [part[:36] for part in page.split('href="/machines/')[1:]]
        path = page.partition('rel="next"')[0].rpartition('href="')[2].partition('"')[0] if 'rel="next"' in page else ""
        path = path.replace("&amp;", "&")
    assert seen == planted


def test_labels_are_shown_searched_and_downloaded(visitor: Visitor, fleet: Fleet) -> None:
    labeled, _ = fleet.machines(2)
    fleet.label("machine-1", {"role": "db", "gpu": ""})
    fleet.label("machine-2", {"role": "<b>"})
    assert "machine-1 gpu, role=db" in visitor.text("/machines?label=role%3Ddb&label=gpu")
    assert "machine-2" not in visitor.text("/machines?label=role%3Ddb")
    assert "shepherdctl machine list --label role=db" in visitor.text("/machines?label=role%3Ddb")
    assert "labels gpu, role=db" in visitor.text(f"/machines/{labeled}")
    assert "&lt;b&gt;" in visitor.read("/machines")
    (row,) = csv.DictReader(io.StringIO(visitor.read("/machines.csv?label=gpu")))
    assert row["labels"] == "gpu, role=db"
    assert visitor.get("/machines?label=%3Ddb").status_code == 400


def test_downloads_have_all_that_match(visitor: Visitor, fleet: Fleet, mixed: dict[State, UUID]) -> None:
    fleet.locate(mixed[State.RUNNING], "=1+1")
    response = visitor.get("/machines.csv")
    assert response.headers["Content-Disposition"].startswith('attachment; filename="machines-')
    rows = list(csv.DictReader(io.StringIO(response.text)))
    assert {row["machine_id"]: row["state"] for row in rows} == {str(each): state for state, each in mixed.items()}
    assert [row["location"] for row in rows if row["state"] == "running"] == ["'=1+1"]
    expected = CommandLine(fleet.settings).load("machine", "list", "--state", "unhealthy")
    (found,) = visitor.get("/machines.json?state=unhealthy").json()["machines"]
    assert {name: found[name] for name in expected[0]} == expected[0]
    both = visitor.get("/machines.json?state=unhealthy&state=quarantined&state_younger=2h").json()["machines"]
    assert {each["state"] for each in both} == {"unhealthy", "quarantined"}
    assert visitor.get("/machines.json?text=none").json() == {"version": 1, "machines": []}
    assert visitor.read("/machines.csv?text=none").startswith("machine_id,provider,")


def test_the_machine_page_says_why_as_the_command_does(visitor: Visitor, fleet: Fleet) -> None:
    machine_id = failed(fleet, ProviderUnavailable("it rains"), process=Process.RECOVERY)
    pauses.pause(fleet.connection, owner="ana", reason="new mainboard", machine_id=machine_id)
    text = visitor.text(f"/machines/{machine_id}")
    for verdict in CommandLine(fleet.settings).load("machine", "why", str(machine_id))["loops"]:
        assert verdict["reason"] in text
    assert "Recoverer Failed provider-unavailable: it rains" in text
    assert f"provider-unavailable: {CURES['provider-unavailable']}" in text


def test_the_work_page_shows_what_is_under_way(visitor: Visitor, fleet: Fleet, mixed: dict[State, UUID]) -> None:
    session = fleet.open_session()
    machine_id = mixed[State.NEEDS_AGENT]
    fleet.plant("work", machine_id=machine_id, process="ShepherdAgentStart", session_id=session.session_id)
    penalty = "'static', 'rack-9', now() + interval '1 hour', 'it is sold out', 'capacity-taken'"
    fleet.sql(f"INSERT INTO capacity_penalties VALUES ({penalty})")
    fleet.sql("INSERT INTO machine_release VALUES (:id, now(), 'ana', 'too slow')", id=mixed[State.RUNNING])
    pauses.pause(fleet.connection, owner="bob", reason="maintenance", provider="static")
    text = visitor.text("/work")
    for expected in (str(session.session_id)[:8], "rack-7", "rack-9", "it is sold out", "too slow", "static bob"):
        assert expected in text
    for path, shown in (("/work", machine_id), ("/fails", mixed[State.QUARANTINED])):
        assert f'href="/machines/{shown}">{name_of(fleet, shown)}</a>' in visitor.read(path), "as people name it"


def test_hostile_text_is_shown_and_never_markup(visitor: Visitor, fleet: Fleet) -> None:
    """Machines and providers choose their names; a page with a script in it could do all that its reader may."""
    machine_id = plant_hostile_text(fleet, HOSTILE)
    for path in ("/", "/fails", "/machines", f"/machines/{machine_id}", "/work", "/machines?text=" + HOSTILE):
        page = visitor.read(path)
        assert ESCAPED in page, path
        assert page.count("<script") == page.count('<script src="/static/console.js" defer></script>') == 1, path
        assert [markup for markup in ("<img src=x", "<style", " style=") if markup in page] == [], path
    assert HOSTILE.replace("\u202e", "\\u202e") not in visitor.get("/machines?state=" + HOSTILE).text
    assert "alert(1)" in said(visitor.get("/machines/" + HOSTILE.replace("/", "")).text)
