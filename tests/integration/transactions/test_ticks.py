import json
from typing import get_args

import pytest
from shepherd_core.bmdb.connection import Connection
from shepherd_core.bmdb.session import Session
from shepherd_core.bmdb.work.ticks import TickEnd, TickHead, TickTotals, last_ticks, tick_totals
from shepherd_core.domain.clock import SystemClock
from shepherd_core.domain.errors.provider import ProviderUnavailable
from shepherd_core.domain.machine import Process

from tests.support.bmdb.breaking_connection import BreakingConnection, Lost
from tests.support.bmdb.fleet import PROVIDER, Fleet, claimed

HEAD = TickHead("recoverer", PROVIDER, "5e771465", "c0de")
END = TickEnd({"claimed": 3, "finished": 2})
FAILED = TickEnd({}, ProviderUnavailable("it rains"))
DAY = 86_400


def tick(fleet: Fleet, head: TickHead = HEAD, seconds: float = 60, connection: Connection | None = None) -> Session:
    return Session.open(connection or fleet.connection, SystemClock(), head, "request 1", seconds)


@pytest.mark.parametrize("lost", [None, *get_args(Lost)])
def test_a_tick_is_recorded_once_whatever_was_lost(
    fleet: Fleet, breaking: BreakingConnection, lost: Lost | None
) -> None:
    session = tick(fleet, connection=fleet.connect(breaking.settings))
    fleet.pass_time(5)
    if lost is not None:
        breaking.lose(lost)
    session.close(END)
    (found,) = last_ticks(fleet.connection)
    assert found.counts.items() >= {"claimed": 3, "finished": 2}.items()
    assert (found.loop, found.provider, found.outcome) == ("recoverer", PROVIDER, "Succeeded")
    assert (found.kind, found.cause) == (None, None)
    assert (found.settings_hash, found.code_version, found.runtime_info) == ("5e771465", "c0de", "request 1")
    assert 5 <= found.seconds < 60
    assert (found.ended_at - found.began_at).total_seconds() == pytest.approx(found.seconds)


def test_a_tick_that_was_killed_is_recorded_as_expired(fleet: Fleet) -> None:
    """By the next session that closes, with the settings and the code that it ran with: they may be the reason."""
    fleet.provided_machine()
    killed = tick(fleet, seconds=60)
    claimed(killed, Process.AGENT_START)
    fleet.pass_time(180)
    fleet.open_session().close()
    killed.close(end=FAILED)  # too late
    (found,) = last_ticks(fleet.connection)
    assert (found.outcome, found.cause, found.counts) == ("Expired", None, {})
    assert (found.settings_hash, found.code_version) == ("5e771465", "c0de")
    assert found.seconds == pytest.approx(60, abs=5), "it ended by its deadline, and not when it was found"


def test_a_tick_that_closes_after_its_deadline_is_recorded(fleet: Fleet) -> None:
    """Its own end is better than none."""
    session = tick(fleet, seconds=60)
    fleet.pass_time(180)
    session.close(end=FAILED)
    assert [each.outcome for each in last_ticks(fleet.connection)] == ["Failed"]


def test_old_ticks_are_deleted_when_a_session_opens(fleet: Fleet) -> None:
    """After 14 days, at most 20 at a time: a session opens as fast after a long pause as always."""
    fleet.sql(
        "INSERT INTO ticks SELECT gen_random_uuid(), 'updater', 'static', '', now() - n * interval '1 day', now(),"
        " 'Succeeded', NULL, '{}' FROM generate_series(10, 40) AS n"
    )
    left = []
    for _ in range(3):
        fleet.open_session()
        left.append(len(fleet.sql("SELECT FROM ticks")))
    assert left == [11, 4, 4]
    assert fleet.sql("SELECT bool_and(began_at > now() - interval '14 days') FROM ticks") == [[True]]


def test_deleting_old_ticks_waits_for_no_lock(fleet: Fleet) -> None:
    """Every loop opens a session each minute; a row that another one is deleting is left to it."""
    tick(fleet).close(end=END)
    fleet.pass_time(15 * DAY)
    fleet.sql("BEGIN")
    fleet.sql("SELECT 1 FROM ticks FOR UPDATE")
    fleet.open_session()
    fleet.sql("COMMIT")
    assert len(fleet.sql("SELECT FROM ticks")) == 1
    fleet.open_session()
    assert fleet.sql("SELECT FROM ticks") == []


def test_the_last_tick_of_each_loop_and_provider_is_found(fleet: Fleet) -> None:
    """A loop that was switched off a week ago is among them: operators must see that it is off."""
    assert last_ticks(fleet.connection) == []
    heads = [TickHead(loop, provider) for loop in ("updater", "recoverer") for provider in ("ec2", "static")]
    for number in range(3):
        for head in heads if number < 2 else heads[:1]:
            tick(fleet, head).close(end=TickEnd({"updated": number}))
        fleet.pass_time(DAY)
    found = [(each.provider, each.loop, each.counts["updated"]) for each in last_ticks(fleet.connection)]
    assert found == [
        ("ec2", "recoverer", 1),
        ("ec2", "updater", 2),
        ("static", "recoverer", 1),
        ("static", "updater", 1),
    ]


def test_a_loop_fails_since_the_tick_after_its_last_success(fleet: Fleet) -> None:
    """A tick that left the work to another invocation is neither."""
    left = TickEnd({"left": 1})
    for end, first in ((FAILED, 0), (END, None), (FAILED, 2), (left, 2), (FAILED, 2), (left, 2)):
        tick(fleet).close(end=end)
        found = last_ticks(fleet.connection, 9)
        began = [each.began_at for each in reversed(found)]
        assert found[0].failing_since == (None if first is None else began[first])
        assert {each.failing_since for each in found[1:]} <= {None}


def test_a_count_lasts_since_the_tick_after_one_without_it(fleet: Fleet) -> None:
    """A tick that failed counted nothing, and left it open."""
    drift, none = TickEnd({"drifted": 2}), TickEnd({"drifted": 0})
    for end, first in ((drift, 0), (FAILED, None), (drift, 0), (none, None), (drift, 4), (TickEnd({"left": 1}), 4)):
        tick(fleet).close(end=end)
        found = last_ticks(fleet.connection, 9)
        began = [each.began_at for each in reversed(found)]
        lasted = None if first is None else (found[0].ended_at - began[first]).total_seconds()
        assert (found[0].lasting or {}).get("drifted") == lasted


def test_ticks_are_added_up_for_each_half_hour(fleet: Fleet) -> None:
    half_hour, tomorrow = 1800, DAY + 3600  # a tick may have begun by a clock that was ahead
    ticks = [
        ("updater", -10, "Succeeded", {"created": 9}),
        ("updater", 60, "Succeeded", {"created": 1, "finished": 4}),
        ("updater", half_hour - 60, "Expired", {"created": 2, "failed": 8}),
        ("recoverer", 46 * half_hour + 1790, "Failed", {}),
        ("recoverer", 47 * half_hour + 20, "Succeeded", {"finished": 1}),
        ("recoverer", tomorrow, "Succeeded", {"finished": 2}),
    ]
    for loop, second, outcome, counts in ticks:
        fleet.sql(
            "INSERT INTO ticks (session_id, loop, provider, runtime_info, began_at, ended_at, outcome, counts) "
            "SELECT gen_random_uuid(), :loop, 'static', '', at, at, :outcome, :counts::jsonb "
            "FROM (SELECT now() - interval '1 day' + :second * interval '1 second' AS at) AS x",
            loop=loop,
            second=second,
            outcome=outcome,
            counts=json.dumps(counts),
        )
    assert tick_totals(fleet.connection) == [
        TickTotals("updater", 0, created=3, finished=4, failed=8, lost=1),
        TickTotals("recoverer", 46, created=0, finished=0, failed=0, lost=1),
        TickTotals("recoverer", 47, created=0, finished=3, failed=0, lost=0),
    ]
