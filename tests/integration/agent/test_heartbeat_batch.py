"""Many heartbeats in one request: each is judged as if it had come alone."""

import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from shepherd_core.agent.endpoint import AgentApi, AgentRequest
from shepherd_core.agent.received_request import AgentResponse
from shepherd_core.bmdb.connection import Connection
from shepherd_core.bmdb.wire.driver import TimeLimits
from shepherd_core.domain.pb.callback_pb2 import (
    AgentHardwareReport,
    HeartbeatAnswer,
    HeartbeatBatch,
    HeartbeatBatchResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    OSInstallationReport,
    SignedHeartbeat,
)

from tests.conftest import ManualClock, log_lines
from tests.integration.agent.test_agent_api import REPORTS, recorded, strangers, trips
from tests.support.agents.signed_agent import (
    ADDRESS,
    MAX_BATCH_BYTES,
    MAX_BODY_BYTES,
    RECEIVED_AT,
    SignedAgent,
    database_time,
    endpoint,
    passed_on,
)
from tests.support.bmdb.breaking_connection import BreakingConnection
from tests.support.bmdb.fleet import Fleet

OK, BAD, UNAUTHORIZED = HTTPStatus.OK, HTTPStatus.BAD_REQUEST, HTTPStatus.UNAUTHORIZED
TOO_LARGE, TOO_OFTEN = HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.TOO_MANY_REQUESTS
HARDWARE = HeartbeatRequest(hardware_report=AgentHardwareReport(warning=["a fan"]))


@pytest.fixture
def api(connection: Connection) -> AgentApi:
    """Return the endpoint."""
    return endpoint(connection)


@pytest.fixture
def agents(fleet: Fleet) -> list[SignedAgent]:
    """Return agents that were just started."""
    return [SignedAgent(fleet) for _ in range(4)]


def sent(body: bytes, **headers: str) -> AgentRequest:
    """Return a request with any body to the method for batches."""
    return AgentRequest("POST", "/heartbeats", headers, body, RECEIVED_AT, ADDRESS)


def answers(response: AgentResponse) -> list[HeartbeatAnswer]:
    """Return the answers to the heartbeats of a batch."""
    assert response.headers["content-type"] == "application/x-protobuf", response.body
    return list(HeartbeatBatchResponse.FromString(response.body).answer)


def statuses(api: AgentApi, *requests: AgentRequest) -> list[int]:
    """Return the status of each heartbeat in one batch."""
    return [answer.status for answer in answers(api.handle(passed_on(*requests)))]


def sendable(requests: Iterable[AgentRequest]) -> list[AgentRequest]:
    """Return those that can be in a batch: a header may be any text, the time in a batch is a number."""
    times = ((each, each.headers.get("shepherd-time", "0")) for each in requests)
    return [each for each, time in times if time.isdigit() and len(time) < 16]


# --- each as if it had come alone ---


def test_all_heartbeats_of_a_batch_are_recorded(fleet: Fleet, api: AgentApi, agents: list[SignedAgent]) -> None:
    """Each answer tells the database's time, and the order is that of the batch."""
    fleet.request_installation(agents[2].machine_id, 7)
    before = database_time(fleet)
    found = answers(api.handle(passed_on(*(agent.request() for agent in agents))))
    assert [answer.status for answer in found] == [OK] * 4
    assert all(before <= answer.time <= database_time(fleet) for answer in found)
    assert all(fleet.facts(agent.machine_id) >= {"agent_heartbeat"} for agent in agents)


@pytest.mark.parametrize("known", [False, True])
def test_a_bad_heartbeat_in_a_batch_leaves_the_good_ones(
    fleet: Fleet, api: AgentApi, agents: list[SignedAgent], known: bool
) -> None:
    """A relay passes on what its neighbours send, and one of them may be in wrong hands."""
    if known:
        assert statuses(api, *(agent.request() for agent in agents)) == [OK] * 4
    good, *others = agents
    assert endpoint(fleet.connect()).handle(others[0].request()).status == OK
    bad = sendable(strangers(fleet, others[0]).values())
    *found, last = statuses(api, *bad[:3], good.request(), *bad[3:], others[1].request())
    assert (found.pop(3), last) == (OK, OK)
    assert set(found) <= {UNAUTHORIZED, TOO_OFTEN}  # some are of the same machine


def test_a_heartbeat_of_a_batch_gets_the_answer_that_it_gets_alone(
    fleet: Fleet, agents: list[SignedAgent], capsys: pytest.CaptureFixture[str]
) -> None:
    """Status, text, and the reason in the log: two ways of judging would differ one day."""
    agent = agents[0]
    fleet.request_installation(agent.machine_id, 2)
    requests = [
        *strangers(fleet, agent).values(),
        agents[1].request(b"\xff"),
        agents[2].request(HeartbeatRequest(installation_report=OSInstallationReport(generation=1))),
        agents[3].outcome(1),
        replace(agents[3].request(), headers={"shepherd-machine": "7"}),
        agents[1].request(b"x" * (MAX_BODY_BYTES + 1)),
        agent.request(),
    ]
    log_lines(capsys)
    for request in sendable(requests):
        alone = endpoint(fleet.connect()).handle(replace(request, path="/heartbeat"))
        logged = log_lines(capsys)
        fleet.sql("UPDATE machine_agent_heartbeat SET agent_signed_at = 0 WHERE machine_id = :id", id=agent.machine_id)
        (answer,) = answers(endpoint(fleet.connect()).handle(passed_on(request)))
        if logged and logged[0]["why"] == "it is not later than the last one":
            continue  # the replay of a moment ago is none any more
        assert answer.status == alone.status
        assert (answer.status == OK) or answer.body == alone.body
        again = log_lines(capsys)
        assert [line.get("status") for line in again] == [line.get("status") for line in logged]


def test_agents_behind_a_relay_are_told_a_new_endpoint_wherever_the_relay_reports(
    connection: Connection, agents: list[SignedAgent], caplog: pytest.LogCaptureFixture
) -> None:
    """The host of the request is the relay's: the agents may still send to the old one, which is about to go."""
    api = endpoint(connection, new_endpoint="https://new.example.com")
    batch = passed_on(*(agent.request() for agent in agents))
    found = answers(api.handle(replace(batch, headers={**batch.headers, "host": "new.example.com"})))
    assert {HeartbeatResponse.FromString(each.body).endpoint for each in found} == {"https://new.example.com"}
    assert "told of the new endpoint" not in caplog.text


def test_the_path_that_is_signed_is_that_of_a_single_heartbeat(api: AgentApi, agents: list[SignedAgent]) -> None:
    """An agent does not know which way its heartbeat will go."""
    request = passed_on(agents[0].request(path="/prod/heartbeat"), path="/prod/heartbeats")
    assert [answer.status for answer in answers(api.handle(request))] == [OK]
    request = passed_on(agents[0].request(path="/prod/heartbeats"), path="/prod/heartbeats")
    assert [answer.status for answer in answers(api.handle(request))] == [UNAUTHORIZED]


@pytest.mark.parametrize("known", [False, True])
def test_a_batch_that_is_sent_again_is_a_replay(
    fleet: Fleet, api: AgentApi, agents: list[SignedAgent], known: bool
) -> None:
    """Nor can a heartbeat come both ways: alone and in a batch it is the same one."""
    if known:
        statuses(api, *(agent.request() for agent in agents))
    requests = [agent.request() for agent in agents]
    assert statuses(api, *requests) == [OK] * 4
    before = recorded(fleet)
    assert statuses(api, *requests) == [UNAUTHORIZED] * 4
    assert api.handle(requests[0]).status == UNAUTHORIZED
    assert recorded(fleet) == before


# --- what the agent can check ---


@pytest.mark.parametrize("known", [False, True])
def test_an_agent_recognizes_the_answer_to_its_heartbeat(
    fleet: Fleet, api: AgentApi, agents: list[SignedAgent], known: bool
) -> None:
    """Whatever the answer is: a relay that lies has another one, or that to another heartbeat."""
    if known:
        statuses(api, *(agent.request() for agent in agents))
    good, stale, bad, reporting = agents
    requests = (
        good.request(),
        stale.request(at=database_time(fleet) - 400_000),
        bad.request(b"\xff"),
        reporting.outcome(1),
    )
    found = answers(api.handle(passed_on(*requests)))
    assert [answer.status for answer in found] == [OK, UNAUTHORIZED, BAD, BAD]
    assert all(map(SignedAgent.believes, agents, requests, found))
    assert not good.believes(good.request(), found[0])
    for change in ({"status": 401}, {"time": found[0].time + 1}, {"body": b"\x08\x01"}, {"mac": b""}):
        lie = type(found[0])(status=OK, time=found[0].time, body=found[0].body, mac=found[0].mac)
        lie.MergeFrom(type(lie)(**change))
        if change == {"mac": b""}:
            lie.ClearField("mac")
        assert not good.believes(requests[0], lie)


def test_an_answer_to_a_stranger_is_not_authenticated(fleet: Fleet, api: AgentApi, agents: list[SignedAgent]) -> None:
    """Or any stranger could have answers made in the name of an agent whose signature it does not have."""
    agent, other, old, _ = agents
    unable = SignedAgent(fleet, old.machine_id)
    fleet.sql("UPDATE machine_agent_started SET agent_response_key = NULL WHERE machine_id = :id", id=old.machine_id)
    requests = (
        other.request(machine_id=agent.machine_id),
        agent.request(machine_id=uuid4()),
        replace(agent.request(), body=b"x" * (MAX_BODY_BYTES + 1)),
        unable.request(),
    )
    found = answers(api.handle(passed_on(*requests)))
    assert [(answer.status, answer.mac) for answer in found] == [
        (UNAUTHORIZED, b""),
        (UNAUTHORIZED, b""),
        (TOO_LARGE, b""),
        (OK, b""),
    ]


# --- the same machine twice ---


def test_heartbeats_of_one_machine_are_judged_one_after_the_other(
    fleet: Fleet, api: AgentApi, agents: list[SignedAgent]
) -> None:
    """As if they had come alone: the later one counts, and an older one after it is a replay."""
    agent = agents[0]
    first, second = agent.request(), agent.request()
    assert statuses(api, first, second, agents[1].request()) == [OK] * 3
    third, fourth = agent.request(), agent.request()
    assert statuses(api, fourth, third) == [OK, UNAUTHORIZED]
    ((signed_at,),) = fleet.sql(
        "SELECT agent_signed_at FROM machine_agent_heartbeat WHERE machine_id = :id", id=agent.machine_id
    )
    assert signed_at == int(fourth.headers["shepherd-time"])
    assert statuses(api, *[agent.request()] * 2) == [OK, UNAUTHORIZED]


def test_the_second_heartbeat_of_a_machine_comes_too_soon_in_a_batch(fleet: Fleet, agents: list[SignedAgent]) -> None:
    """The least time between two reports holds as well: no agent gains anything from a batch."""
    api = endpoint(fleet.connect(), report_seconds=5)
    statuses(api, *(agent.request() for agent in agents))
    later = [replace(agents[0].request(), received_at=RECEIVED_AT + 10_000) for _ in range(2)]
    assert [each.status for each in answers(api.handle(passed_on(*later)))] == [OK, TOO_OFTEN]


def test_garbage_in_the_name_of_a_machine_does_not_shut_it_out(api: AgentApi, agents: list[SignedAgent]) -> None:
    """A client of the relay could otherwise stop the heartbeats of another machine."""
    agent = agents[0]
    garbage = [replace(agent.request(), body=b"garbage") for _ in range(2)]
    assert statuses(api, *garbage, agent.request()) == [UNAUTHORIZED, UNAUTHORIZED, OK]


def test_a_machine_may_be_in_a_batch_three_times(
    fleet: Fleet, agents: list[SignedAgent], counting: BreakingConnection
) -> None:
    """Each time costs round trips of its own: a batch of one machine's heartbeats must not cost five hundred."""
    api = endpoint(fleet.connect(counting.settings))
    api.handle(agents[0].request())
    garbage = [replace(agents[0].request(), body=b"garbage") for _ in range(500)]
    before = counting.requests
    assert statuses(api, *garbage) == [UNAUTHORIZED] * 3 + [TOO_OFTEN] * 497
    assert counting.requests - before == 3


# --- what it costs ---


def test_a_batch_takes_one_round_trip_for_any_number_of_machines(
    fleet: Fleet, agents: list[SignedAgent], counting: BreakingConnection
) -> None:
    """Two, where keys are not remembered; hardware and installation reports take one transaction together."""
    api = endpoint(fleet.connect(counting.settings))
    api.handle(passed_on(SignedAgent(fleet).request()))  # connects, and prepares the statements
    api.handle(passed_on(SignedAgent(fleet).request(HARDWARE)))
    fleet.sql("SELECT 1")

    def cost(*requests: AgentRequest) -> tuple[HTTPStatus, int]:
        return trips(counting, api, passed_on(*requests))

    assert cost(*(agent.request() for agent in agents)) == (OK, 2)
    assert cost(*(agent.request() for agent in agents)) == (OK, 1)
    assert cost(*(agent.request() for agent in agents), SignedAgent(fleet).request()) == (OK, 3)
    # BEGIN, the heartbeats, the hardware, COMMIT
    assert cost(*(agent.request(HARDWARE) for agent in agents)) == (OK, 4)
    assert cost(*(agent.request(HARDWARE) for agent in agents[:2]), *(a.request() for a in agents[2:])) == (OK, 5)


def test_five_hundred_heartbeats_are_one_statement(fleet: Fleet, counting: BreakingConnection) -> None:
    """As many as a batch may have."""
    agents = [SignedAgent(fleet, machine_id) for machine_id in fleet.machines(500, started_ago=0)]
    api, now = endpoint(fleet.connect(counting.settings)), database_time(fleet)
    assert statuses(api, *(agent.request(at=now) for agent in agents)) == [OK] * 500
    assert trips(counting, api, passed_on(*(agent.request(at=now + 1) for agent in agents))) == (OK, 1)
    assert fleet.sql("SELECT count(*) FROM machine_agent_heartbeat") == [[500]]


def test_a_batch_writes_few_lines_into_the_log(
    fleet: Fleet, api: AgentApi, agents: list[SignedAgent], capsys: pytest.CaptureFixture[str]
) -> None:
    """None for heartbeats that are recorded; for refused ones one, which counts them and names a few."""
    requests = [agents[0].request(machine_id=uuid4()) for _ in range(100)]
    statuses(api, *(agent.request() for agent in agents))
    assert log_lines(capsys) == []
    assert statuses(api, *requests, agents[1].request()) == [UNAUTHORIZED] * 100 + [OK]
    logged = log_lines(capsys)
    assert [line["message"] for line in logged] == ["request refused"]
    assert (logged[0]["count"], logged[0]["address"], len(logged[0]["others"])) == (100, ADDRESS, 9)
    assert all(line["status"] == UNAUTHORIZED and line["why"] for line in (logged[0], *logged[0]["others"]))
    assert len(json.dumps(logged)) < 3000


def test_a_batch_with_nothing_that_is_taken_counts_as_refused(api: AgentApi, agents: list[SignedAgent]) -> None:
    """AWS counts by status, and an alarm by that: a fleet that reports in vain must not look as if it reported."""
    good, bad = agents[0].request(), agents[1].request(machine_id=uuid4())
    refused = api.handle(passed_on(bad, bad))
    assert (refused.status, refused.headers) == (UNAUTHORIZED, {"content-type": "application/x-protobuf"})
    assert [answer.status for answer in answers(refused)] == [UNAUTHORIZED] * 2
    assert api.handle(passed_on(bad, good)).status == OK


# --- rows that others hold ---


@pytest.mark.parametrize("table", ["machine_agent_heartbeat", "machine_agent_started", "machine_due"])
def test_a_locked_machine_does_not_hold_up_the_others_of_a_batch(
    fleet: Fleet, clock: ManualClock, agents: list[SignedAgent], capsys: pytest.CaptureFixture[str], table: str
) -> None:
    """Whatever holds its rows, and whatever the heartbeats bring; the locked one is sent again."""
    machine_ids = [agent.machine_id for agent in agents]
    known = agents[: 0 if table == "machine_agent_started" else 4]
    api = endpoint(Connection(fleet.settings, None, clock, limits=TimeLimits(lock=0.2)))
    if known:
        assert statuses(api, *(agent.request() for agent in known)) == [OK] * 4
    for machine_id in machine_ids[:2]:
        fleet.request_installation(machine_id, 1)

    def batch() -> list[AgentRequest]:
        brought = (agents[0].outcome(1), agents[1].outcome(1), agents[2].request(HARDWARE), agents[3].request())
        return list(brought)

    holder = fleet.connect()

    def while_locked() -> list[int]:
        holder.script(f"SELECT 1 FROM {table} WHERE machine_id = '{machine_ids[0]}' FOR UPDATE")
        log_lines(capsys)
        return statuses(api, *batch())

    assert holder.transact(while_locked) == [503, OK, OK, OK]
    assert [(line["message"], line["machines"]) for line in log_lines(capsys)] == [
        ("heartbeats not recorded: rows are locked", 1)
    ]
    assert statuses(api, agents[0].outcome(1)) == [OK]
    assert fleet.sql("SELECT count(*) FROM machine_os_installation_report") == [[2]]
    api.close()


# --- what comes with them ---


def test_reports_travel_in_a_batch(fleet: Fleet, api: AgentApi, agents: list[SignedAgent]) -> None:
    """Hardware and installations are recorded as if they had come alone."""
    plain, sized, installed, failed = agents
    for agent in (installed, failed):
        fleet.request_installation(agent.machine_id, 1)
    hardware = HeartbeatRequest()
    hardware.hardware_report.report.memory_installed_bytes = 2**40
    requests = (plain.request(), sized.request(hardware), installed.outcome(1), failed.outcome(1, "no disk"))
    assert statuses(api, *requests) == [OK] * 4
    assert fleet.sql("SELECT machine_id, memory_bytes FROM machine_hardware_report") == [[sized.machine_id, 2**40]]
    found = fleet.sql("SELECT machine_id, os_installation_result FROM machine_os_installation_report")
    assert dict(found) == {
        installed.machine_id: "Success",
        failed.machine_id: "Error",
    }
    due = fleet.sql("SELECT machine_id FROM machine_due WHERE process = 'ShepherdRecovery' AND not_before IS NULL")
    assert due == [[installed.machine_id]]


def test_an_installation_report_that_is_refused_leaves_the_others(
    fleet: Fleet, api: AgentApi, agents: list[SignedAgent]
) -> None:
    """Nothing of the refused one is recorded, not even the heartbeat; the transaction of the others is not lost."""
    refused, installed, sized, plain = agents
    fleet.request_installation(installed.machine_id, 1)
    requests = (refused.outcome(1), installed.outcome(1), sized.request(HARDWARE), plain.request())
    found = answers(api.handle(passed_on(*requests)))
    assert [answer.status for answer in found] == [BAD, OK, OK, OK]
    assert b"generation" in found[0].body
    assert [len(rows) for rows in recorded(fleet)] == [3, 1, 1]
    assert "agent_heartbeat" not in fleet.facts(refused.machine_id)


# --- batches that are none ---


def encoded(request: AgentRequest) -> bytes:
    """Return the batch with one heartbeat."""
    return passed_on(request).body


BAD_BATCHES: dict[str, tuple[Any, int, str]] = {
    "none": (lambda one: b"", BAD, "the batch has no heartbeat"),
    "501": (lambda one: one * 501, TOO_LARGE, "the batch has more than 500 heartbeats"),
    "half a million empty ones": (lambda one: b"\x0a\x00" * 499_999, TOO_LARGE, "more than 500 heartbeats"),
    "oversized": (lambda one: one * 10_000, TOO_LARGE, f"the body is longer than {MAX_BATCH_BYTES} bytes"),
    "truncated": (lambda one: one * 2 + one[:-1], BAD, "the body is not a HeartbeatBatch"),
    "truncated in a length": (lambda one: one + b"\x0a\xff", BAD, "the body is not a HeartbeatBatch"),
    "an endless length": (lambda one: one + b"\x0a" + b"\xff" * 10, BAD, "the body is not a HeartbeatBatch"),
    "another field": (lambda one: one + b"\x12\x00", BAD, "the body is not a HeartbeatBatch"),
    "a page": (lambda one: b"<html>", BAD, "the body is not a HeartbeatBatch"),
}


@pytest.mark.parametrize("name", BAD_BATCHES)
def test_a_body_that_is_no_batch_is_refused_as_a_whole(
    fleet: Fleet, api: AgentApi, agents: list[SignedAgent], name: str
) -> None:
    """Nothing of it is recorded: who sends such a thing is no relay of ours, or one with a fault."""
    make, status, text = BAD_BATCHES[name]
    refused = api.handle(sent(make(encoded(agents[0].request()))))
    assert refused.status == status
    assert text in refused.body.decode()
    assert recorded(fleet) == [[] for _ in REPORTS]


@pytest.mark.parametrize("path", ["/heartbeat", "/heartbeats"])
def test_a_compressed_body_is_refused(api: AgentApi, agents: list[SignedAgent], path: str) -> None:
    """A few bytes could become gigabytes, and the signature is over what was sent."""
    request = replace(agents[0].request(), path=path, headers={"content-encoding": "gzip"})
    refused = api.handle(request)
    assert (refused.status, refused.body) == (HTTPStatus.UNSUPPORTED_MEDIA_TYPE, b"the body must not be compressed\n")


def test_an_entry_that_is_no_heartbeat_is_refused_alone(fleet: Fleet, api: AgentApi, agents: list[SignedAgent]) -> None:
    """An entry is parsed by itself, after its length was looked at."""
    good = encoded(agents[0].request())
    long = SignedHeartbeat(machine_id=str(agents[1].machine_id), body=b"x" * (MAX_BODY_BYTES + 1))
    broken = b"\x0a\x02\x0a\x7f"
    empty = b"\x0a\x00"
    longest = HeartbeatBatch(heartbeat=[long]).SerializeToString()
    padded = b"\x0a\x80\x80\x02" + b"\x7a" + b"\xfc\xff\x01" + b"x" * (2**15 - 4)
    found = answers(api.handle(sent(broken + longest + empty + padded + good)))
    assert [answer.status for answer in found] == [BAD, TOO_LARGE, BAD, TOO_LARGE, OK]
    assert [len(rows) for rows in recorded(fleet)] == [1, 0, 0]


@pytest.mark.parametrize("time", [-1, 0, 2**63 - 1, -(2**63)])
def test_a_time_that_is_none_is_refused(api: AgentApi, agents: list[SignedAgent], time: int) -> None:
    """It is a number of 64 bits in a batch, and any text in a header."""
    assert statuses(api, agents[0].request(at=time)) == [UNAUTHORIZED]


# --- when the BMDB is not well ---


def test_during_a_bmdb_outage_each_agent_of_a_batch_is_asked_to_retry(
    fleet: Fleet, agents: list[SignedAgent], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line in the log, however many there are."""
    nowhere = fleet.connect(fleet.settings.model_copy(update={"bmdb_host": str(tmp_path)}))
    requests = [agent.request() for agent in agents]
    found = answers(endpoint(nowhere).handle(passed_on(*requests)))
    assert {(answer.status, answer.body) for answer in found} == {(503, b"try again later\n")}
    (line,) = log_lines(capsys)
    assert (line["level"], line["machines"]) == ("ERROR", 4)
    assert len(json.dumps(line)) < 600


@pytest.mark.parametrize("commit", [False, True], ids=["plain", "report"])
def test_a_batch_whose_answer_was_lost_is_no_replay_of_itself(
    fleet: Fleet, agents: list[SignedAgent], counting: BreakingConnection, commit: bool
) -> None:
    """It is sent again over a new connection; what is on record by then was accepted."""
    api = endpoint(fleet.connect(counting.settings))
    assert statuses(api, *(agent.request() for agent in agents)) == [OK] * 4
    requests = [agents[0].request(HARDWARE if commit else None), *(agent.request() for agent in agents[1:])]
    counting.lose("answer", commit=commit)
    assert statuses(api, *requests) == [OK] * 4
    assert counting.armed == 0
    assert statuses(api, *requests) == [UNAUTHORIZED] * 4


def test_concurrent_batches_of_the_same_machines_do_not_deadlock(
    fleet: Fleet, agents: list[SignedAgent], clock: ManualClock
) -> None:
    """Rows are locked in the order of the machine ids, whatever the order of the batch."""
    ordered = sorted(agents, key=lambda agent: agent.machine_id)
    apis = [endpoint(Connection(fleet.settings, None, clock, attempts=1)) for _ in range(2)]  # a deadlock is no answer
    for api in apis:
        assert statuses(api, *(agent.request() for agent in ordered)) == [OK] * 4
    batches = [passed_on(*(agent.request() for agent in order)) for order in (ordered, ordered[::-1])]
    held = f"machine_id = '{ordered[1].machine_id}'"
    fleet.connection.script(f"BEGIN; SELECT 1 FROM machine_agent_heartbeat WHERE {held} FOR UPDATE")
    with ThreadPoolExecutor(2) as pool:
        found = [pool.submit(api.handle, batch) for api, batch in zip(apis, batches, strict=True)]
        fleet.wait_until(
            "2 = (SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND wait_event_type = 'Lock')"
        )
        fleet.connection.roll_back()
        given = {answer.status for future in found for answer in answers(future.result(timeout=20))}
    assert given <= {OK, UNAUTHORIZED}
    for api in apis:
        api.close()


def test_the_ids_of_a_batch_may_be_written_in_any_way(api: AgentApi, agents: list[SignedAgent]) -> None:
    """As in the header: the same machine is the same machine."""
    request = agents[0].request()
    shouted = replace(request, headers={**request.headers, "shepherd-machine": str(agents[0].machine_id).upper()})
    assert statuses(api, shouted) == [OK]
    assert UUID(shouted.headers["shepherd-machine"]) == agents[0].machine_id
