"""Who is believed at the agents' endpoint, and what is recorded of what they say."""

import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import Any, get_args
from uuid import UUID, uuid4

import pytest
from shepherd_core.agent.endpoint import AgentApi, AgentRequest
from shepherd_core.agent.judgement import Limits
from shepherd_core.bmdb.connection import Connection
from shepherd_core.bmdb.schema.migrate import migrate
from shepherd_core.bmdb.wire.driver import TimeLimits
from shepherd_core.bmdb.work import work
from shepherd_core.domain.machine import Process
from shepherd_core.domain.pb.agent_pb2 import CPU, BlockDevice, Node
from shepherd_core.domain.pb.callback_pb2 import (
    AgentHardwareReport,
    HeartbeatRequest,
    HeartbeatResponse,
    OSInstallationReport,
)

from simulator.environment.postgres import Postgres
from tests.conftest import ManualClock, log_lines
from tests.support.agents.signed_agent import ADDRESS, MAX_BODY_BYTES, RECEIVED_AT, SignedAgent, database_time, endpoint
from tests.support.bmdb import warm
from tests.support.bmdb.breaking_connection import BreakingConnection, Lost
from tests.support.bmdb.fleet import HOUR, Fleet, claimed
from tests.support.bmdb.listings import Watched

WIRE = Path(__file__).parents[2] / "data" / "wire"
OK, BAD_REQUEST, UNAUTHORIZED = HTTPStatus.OK, HTTPStatus.BAD_REQUEST, HTTPStatus.UNAUTHORIZED
TOO_OFTEN = HTTPStatus.TOO_MANY_REQUESTS
HARDWARE = HeartbeatRequest(hardware_report=AgentHardwareReport(warning=["a fan"]))

REPORTS = ("machine_agent_heartbeat", "machine_hardware_report", "machine_os_installation_report")


@pytest.fixture
def api(connection: Connection) -> AgentApi:
    return endpoint(connection)


@pytest.fixture
def agent(fleet: Fleet) -> SignedAgent:
    return SignedAgent(fleet)


def recorded(fleet: Fleet) -> list[list[list[Any]]]:
    return [fleet.sql(f"SELECT * FROM {table} ORDER BY machine_id") for table in REPORTS]


def why(capsys: pytest.CaptureFixture[str]) -> str:
    (line,) = log_lines(capsys)
    assert line["level"] == "WARNING"
    return str(line["why"])


def test_a_heartbeat_of_the_right_agent_is_recorded(
    fleet: Fleet, api: AgentApi, agent: SignedAgent, capsys: pytest.CaptureFixture[str]
) -> None:
    """Clocks may differ by five minutes, the endpoint lies anywhere; a hundred thousand a minute write no log."""
    now = database_time(fleet)
    for request in (
        agent.request(at=now - 295_000),
        *(agent.request(path=f"{prefix}/heartbeat") for prefix in ("", "/prod", "/a%20b", "/")),
        with_headers(agent.request(), machine=str(agent.machine_id).upper()),
        agent.request(at=now + 295_000),
    ):
        before = database_time(fleet)
        answer = api.handle(request)
        assert (answer.status, answer.body) == (OK, b"")
        assert answer.headers == {"content-type": "application/x-protobuf"}
        assert before <= answer.time <= database_time(fleet)
    assert fleet.facts(agent.machine_id) == {"agent_started", "agent_heartbeat"}
    assert log_lines(capsys) == []


TAMPERED: dict[str, Callable[[AgentRequest], AgentRequest]] = {
    "path": lambda request: replace(request, path="/prod/heartbeat"),
    "a path that is no text": lambda request: replace(request, path="/\ud800/heartbeat"),
    "time": lambda request: with_headers(request, time=str(int(request.headers["shepherd-time"]) + 1)),
    "text of the time": lambda request: with_headers(request, time="0" + request.headers["shepherd-time"]),
    "body": lambda request: replace(request, body=request.body + b"\x12\x00"),
    "signature": lambda request: with_headers(request, signature=request.headers["shepherd-signature"].swapcase()),
    "no signature": lambda request: with_headers(request, signature=None),
    "short signature": lambda request: with_headers(request, signature=request.headers["shepherd-signature"][4:]),
    "two signatures": lambda request: with_headers(request, signature=request.headers["shepherd-signature"] * 2),
    "no base64": lambda request: with_headers(request, signature="\u00e4\ud800"),
    "no time": lambda request: with_headers(request, time=None),
}


def with_headers(request: AgentRequest, **changed: str | None) -> AgentRequest:
    headers = {**request.headers, **{f"shepherd-{name}": value for name, value in changed.items()}}
    return replace(request, headers={name: value for name, value in headers.items() if value is not None})


def strangers(fleet: Fleet, agent: SignedAgent) -> dict[str, tuple[AgentRequest, str, int]]:
    """Return requests that must not be believed, each with the reason and its round trips; *agent* was heard before."""
    unstarted = fleet.provided_machine()
    broken = SignedAgent(fleet)
    no_key = "UPDATE machine_agent_started SET agent_public_key = decode(repeat('5e', 32), 'hex')"
    fleet.change(f"{no_key} WHERE machine_id = '{broken.machine_id}'")

    def of(machine_id: UUID) -> AgentRequest:
        return agent.request(machine_id=machine_id)

    now = database_time(fleet)
    heard = agent.request(HARDWARE)
    assert endpoint(fleet.connection).handle(heard).status == OK
    no_agent, no_time = ("it has no agent", 1), ("it has no signing time", 2)
    not_its_own, not_later = ("the signature is not by its agent", 1), "it is not later than the last one"
    return {
        **{f"tampered: {part}": (tamper(agent.request()), *not_its_own) for part, tamper in TAMPERED.items()},
        "no such machine": (of(uuid4()), *no_agent),
        "no agent": (of(unstarted), *no_agent),
        "another's machine": (of(SignedAgent(fleet).machine_id), *not_its_own),
        "a key that is none": (broken.request(), *not_its_own),
        # A megabyte of empty disks cost 160 ms before its signature was looked at.
        "no message of another's": (SignedAgent(fleet).request(b"\xff", machine_id=agent.machine_id), *not_its_own),
        "no message": (SignedAgent(fleet).request(b"\xff", machine_id=broken.machine_id), *not_its_own),
        "for another purpose": (agent.request(domain=b"shepherd-agent-v2"), *not_its_own),
        "stale": (agent.request(at=now - 305_000), r"it was signed 3(0[5-9]|1\d) s ago", 2),
        "ahead": (agent.request(at=now + 305_000), r"it was signed (29\d|30[0-5]) s ahead", 2),
        "no time": (agent.request(at="now"), *no_time),
        "a time without end": (agent.request(at="9" * 4000), *no_time),
        # It could make a failed machine look healthy, or bring back an old report, which takes a transaction.
        "the last again": (heard, not_later, 4),
        "older than the last": (agent.request(at=int(heard.headers["shepherd-time"]) - 60_000), not_later, 2),
    }


@pytest.mark.parametrize("remembered", [False, True])
def test_every_failed_authentication_gets_the_same_answer(
    fleet: Fleet, agent: SignedAgent, breaking: BreakingConnection, remembered: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither it nor its time must reveal which machines exist. The log alone tells a wrong clock from an attack."""
    api = endpoint(fleet.connect(breaking.settings))
    api.handle((agent if remembered else SignedAgent(fleet)).request())
    requests = strangers(fleet, agent)
    before = recorded(fleet)
    for name, (request, reason, round_trips) in requests.items():
        asked_at, counted = database_time(fleet), breaking.requests
        api._told.clear()  # as if each came in another minute
        answer = api.handle(request)
        assert breaking.requests - counted == round_trips, name
        headers = dict(answer.headers)
        assert asked_at <= int(headers.pop("shepherd-time")) <= database_time(fleet), name
        assert (answer.status, answer.body) == (UNAUTHORIZED, b"not authorized\n"), name
        assert headers == {"content-type": "text/plain; charset=utf-8"}
        (line,) = log_lines(capsys)
        assert re.fullmatch(reason, line["why"]), name
        assert str(UUID(line["machine_id"])) == line["machine_id"]
        assert (line["level"], line["status"], line["address"]) == ("WARNING", 401, ADDRESS)
        assert len(json.dumps(line)) < 500
    assert recorded(fleet) == before
    assert api.handle(agent.request()).status == OK


def test_of_two_copies_at_once_one_is_taken(fleet: Fleet, agent: SignedAgent) -> None:
    assert endpoint(fleet.connect()).handle(agent.request()).status == OK
    request = agent.request(HARDWARE)
    fleet.connection.script("BEGIN; SELECT 1 FROM machine_agent_heartbeat FOR UPDATE")
    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(endpoint(fleet.connect()).handle, request) for _ in range(2)]
        fleet.wait_until_blocked(2)
        fleet.connection.roll_back()
        assert sorted(answer.result(timeout=20).status for answer in answers) == [OK, UNAUTHORIZED]


def test_a_new_agent_is_not_measured_by_the_olds_clock(fleet: Fleet, api: AgentApi) -> None:
    """The old one may have been five minutes ahead; the new one would be taken for a replay until then."""
    old = SignedAgent(fleet)
    assert api.handle(old.request(at=database_time(fleet) + 295_000)).status == OK
    new = SignedAgent(fleet, old.machine_id)
    # As it happens: the tag is dropped, while a last heartbeat is on its way; then the agent is started.
    fleet.change("DELETE FROM machine_agent_started")
    last = "INSERT INTO machine_agent_heartbeat VALUES (:id, clock_timestamp(), :at)"
    fleet.sql(last, id=old.machine_id, at=database_time(fleet) + 296_000)
    session = fleet.open_session()
    (held,) = claimed(session, Process.AGENT_START)
    assert work.finish_agent_start(session, {held: work.AgentStarted(new.key, None)}) == {old.machine_id}
    assert [api.handle(each.request()).status for each in (new, old, new)] == [OK, UNAUTHORIZED, OK]


@pytest.mark.parametrize("replaced", [False, True], ids=["given up", "replaced"])
def test_a_former_agent_is_not_believed_any_more(
    fleet: Fleet, api: AgentApi, agent: SignedAgent, replaced: bool
) -> None:
    """Its key is cached here, but its heartbeats must not hide that the machine is recovered."""
    assert api.handle(agent.request()).status == OK
    if replaced:
        SignedAgent(fleet, agent.machine_id)
    else:
        fleet.change("DELETE FROM machine_agent_started", "DELETE FROM machine_agent_heartbeat")
    before = recorded(fleet)
    for message in (HeartbeatRequest(), HARDWARE):
        assert api.handle(agent.request(message)).status == UNAUTHORIZED
    assert recorded(fleet) == before


@pytest.mark.parametrize("message", [HeartbeatRequest(), HARDWARE], ids=["plain", "report"])
def test_a_recovery_in_the_middle_of_a_request_wins(
    fleet: Fleet, agent: SignedAgent, message: HeartbeatRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    """The key was right when it was read; the statement that records the heartbeat looks again."""
    connection = Watched(fleet)
    connection.after = lambda name: name == "reporting_agent" and fleet.sql("DELETE FROM machine_agent_started")
    assert endpoint(connection).handle(agent.request(message)).status == UNAUTHORIZED
    assert why(capsys) == "its agent was replaced"
    assert recorded(fleet) == [[], [], []]


def trips(way: BreakingConnection, api: AgentApi, request: AgentRequest) -> tuple[HTTPStatus, int]:
    before = way.requests
    return api.handle(request).status, way.requests - before


def test_a_heartbeat_takes_one_round_trip(fleet: Fleet, agent: SignedAgent, breaking: BreakingConnection) -> None:
    """Two, where its key is not remembered: each is paid for a hundred thousand times a minute."""
    warm = endpoint(fleet.connect(breaking.settings))
    warm.handle(SignedAgent(fleet).request())  # connects, and prepares the statements
    assert [trips(breaking, warm, agent.request()) for _ in range(2)] == [(OK, 2), (OK, 1)]
    fleet.request_installation(agent.machine_id, 1)
    assert trips(breaking, warm, agent.request()) == (OK, 1)
    assert trips(breaking, warm, SignedAgent(fleet).request()) == (OK, 2)  # which makes it forget no other
    assert trips(breaking, warm, agent.request()) == (OK, 1)
    # A new agent's key replaces the one that is remembered.
    new = SignedAgent(fleet, agent.machine_id)
    assert [trips(breaking, warm, new.request()) for _ in range(2)] == [(OK, 2), (OK, 1)]


def test_more_agents_than_are_cached_displace_one(fleet: Fleet, breaking: BreakingConnection) -> None:
    """A fleet that is a little too large must not cost two round trips for each heartbeat."""
    api = AgentApi(fleet.connect(breaking.settings), Limits(0, 0, 0, cached_keys=5))
    agents = [SignedAgent(fleet) for _ in range(6)]
    for _ in range(2):
        for agent in agents:
            api.handle(agent.request())
    assert [trips(breaking, api, agent.request())[1] for agent in agents] == [1, 1, 1, 1, 2, 2]


def test_a_plan_for_an_empty_table_does_not_stay(own_fleet: Fleet, clock: ManualClock) -> None:
    """It reads the whole table, row by row, for as long as nothing analyzes it."""
    for table in ("machine_agent_started", "machine_agent_heartbeat"):
        own_fleet.sql(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
        own_fleet.sql(f"VACUUM ANALYZE {table}")
    connection = own_fleet.connect()
    api = endpoint(connection)
    agent = SignedAgent(own_fleet)
    assert api.handle(agent.request()).status == OK
    own_fleet.machines(5000, started_ago=HOUR, reported_ago=60)

    def rows_read() -> int:
        driver = connection._connected()
        driver.run("SELECT pg_stat_force_next_flush()")
        driver.run("SELECT 1")
        own_fleet.sql("SELECT pg_stat_clear_snapshot()")
        return int(own_fleet.sql("SELECT sum(seq_tup_read)::bigint FROM pg_stat_user_tables")[0][0])

    before = rows_read()
    assert api.handle(agent.request()).status == OK
    assert rows_read() - before > 5000, "or this test proves nothing"
    clock.now += 301
    before = rows_read()
    assert api.handle(agent.request()).status == OK
    assert rows_read() - before < 100


def test_a_heartbeat_writes_one_row_and_no_index_entry(own_fleet: Fleet) -> None:
    """The new version of the row stays in its page, where the index finds it by the old one (HOT)."""
    agents = [SignedAgent(own_fleet) for _ in range(20)]
    connection = own_fleet.connect()
    api = endpoint(connection)
    own_fleet.connection.close()

    def heartbeats(rounds: int) -> None:
        for _ in range(rounds):
            for agent in agents:
                assert api.handle(agent.request()).status == OK

    def written() -> list[Any]:
        # A server process that ends has told the statistics what it did.
        connection.close()
        warm.end_idle()
        own_fleet.wait_until(
            "NOT EXISTS (SELECT 1 FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name IN ('idle', 'shepherd'))"
        )
        own_fleet.sql("SELECT pg_stat_force_next_flush()")  # what the test itself planted; else it is told in a second
        own_fleet.sql("SELECT pg_stat_clear_snapshot()")
        totals = (
            "SELECT sum(n_tup_ins)::int, sum(n_tup_upd)::int, sum(n_tup_hot_upd)::int, sum(n_tup_del)::int"
            " FROM pg_stat_user_tables"
        )
        return own_fleet.sql(totals)[0]

    heartbeats(1)
    before = written()
    heartbeats(10)
    assert [after - known for after, known in zip(written(), before, strict=True)] == [0, 200, 200, 0]


def test_an_agent_reporting_too_often_is_refused_for_a_time(
    fleet: Fleet, agent: SignedAgent, breaking: BreakingConnection, capsys: pytest.CaptureFixture[str]
) -> None:
    """One key could write as fast as the database takes it; so a refusal costs no round trip."""
    api = endpoint(fleet.connect(breaking.settings), report_seconds=5)
    times = (100_000, 104_999, 105_000, 105_001)
    told = [trips(breaking, api, agent.request(received_at=at)) for at in times]
    assert [status for status, _ in told] == [OK, TOO_OFTEN, OK, TOO_OFTEN]
    assert told[1] == told[3] == (TOO_OFTEN, 0)
    assert why(capsys) == "reports come more often than every 5 s"  # once for both, in one minute
    assert api.handle(SignedAgent(fleet).request(received_at=105_001)).status == OK
    # A clock of the API that went back does not lock agents out.
    assert api.handle(agent.request(received_at=50_000)).status == OK
    api = endpoint(fleet.connect(), report_seconds=5, hardware_seconds=60)
    sent = ((0, HARDWARE), (10, HARDWARE), (11, None), (59, HARDWARE), (60, HARDWARE), (70, HARDWARE))
    statuses = [api.handle(agent.request(message, received_at=100_000 + at * 1000)).status for at, message in sent]
    assert statuses == [OK, TOO_OFTEN, OK, TOO_OFTEN, OK, TOO_OFTEN]


def hardware(**node: Any) -> HeartbeatRequest:
    return HeartbeatRequest(hardware_report=AgentHardwareReport(report=Node(**node)))


NO_MESSAGE = "the body is not a HeartbeatRequest"
NOT_ITS_ID = "the machine_id of the body is not that of the header Shepherd-Machine"
IMPOSSIBLE = f"it must be 0 to {2**63 - 1}"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", NOT_ITS_ID),
        (HeartbeatRequest(machine_id=str(UUID(int=7))).SerializeToString(), NOT_ITS_ID),
        (b"\xff", NO_MESSAGE),
        (b"\x0a\x02\xff\xfe", NO_MESSAGE),
        (
            HeartbeatRequest(installation_report=OSInstallationReport(generation=1)),
            "the installation report has no result",
        ),
        (hardware(memory_installed_bytes=-1), f"hardware report: memory_bytes is -1; {IMPOSSIBLE}"),
        (hardware(cpu=[CPU(hardware_threads=-1)]), f"hardware report: hardware_threads is -1; {IMPOSSIBLE}"),
        (
            hardware(block_device=[BlockDevice(capacity_bytes=2**63 - 1)] * 2),
            f"hardware report: disk_bytes is {2**64 - 2}; {IMPOSSIBLE}",
        ),
        (hardware(block_device=[BlockDevice()] * 513), "the hardware report has 513 parts, more than 512"),
        (
            HeartbeatRequest(hardware_report=AgentHardwareReport(warning=[""] * 513)),
            "the hardware report has 513 parts, more than 512",
        ),
    ],
)
def test_an_invalid_body_is_refused_with_the_reason(
    fleet: Fleet, api: AgentApi, agent: SignedAgent, body: HeartbeatRequest | bytes, reason: str
) -> None:
    """The agent then leaves the report out; after an outage it would repeat it without end."""
    fleet.request_installation(agent.machine_id, 1)
    for _ in range(2):  # its key is remembered the second time
        before = recorded(fleet)
        refused = api.handle(agent.request(body))
        assert (refused.status, refused.body.decode()) == (BAD_REQUEST, f"{reason}\n")
        assert recorded(fleet) == before
        assert api.handle(agent.request()).status == OK


def test_a_heartbeat_encoded_by_protoc_is_recorded(fleet: Fleet, api: AgentApi) -> None:
    """The wire contract holds for agents that are not ours; the sums are those of the text beside it."""
    body = (WIRE / "cloud.bmaas.server.api.HeartbeatRequest.bin").read_bytes()
    message = HeartbeatRequest.FromString(body)
    machine_id = UUID(message.machine_id)
    fleet.sql("INSERT INTO machines (machine_id) VALUES (:id)", id=machine_id)
    fleet.change(f"INSERT INTO machine_provided VALUES ('{machine_id}', 'static', 'recorded')")
    agent = SignedAgent(fleet, machine_id)
    fleet.request_installation(machine_id, message.installation_report.generation)
    assert api.handle(agent.request(body)).status == OK
    ((hardware, *sums),) = fleet.sql(
        "SELECT hardware_report_raw, hardware_threads, memory_bytes, disks, disk_bytes FROM machine_hardware_report"
    )
    ((installation, *outcome),) = fleet.sql(
        "SELECT os_installation_report_raw, generation, os_installation_result FROM machine_os_installation_report"
    )
    assert (sums, outcome) == ([65, 1099511627776, 1, 12000138625024], [9007199254740993, "Error"])
    assert hardware in body
    assert installation in body


def test_the_last_hardware_report_counts(fleet: Fleet, api: AgentApi, agent: SignedAgent) -> None:
    """It may be as large as the limits."""
    node = Node(memory_installed_bytes=2**40, cpu=[CPU(hardware_threads=4)] * 8, block_device=[BlockDevice()] * 500)
    parts = HeartbeatRequest(hardware_report=AgentHardwareReport(report=node, warning=["x"] * 4))
    assert api.handle(agent.request(parts)).status == OK
    padding = MAX_BODY_BYTES - len(agent.request(HeartbeatRequest(hardware_report={"warning": [""]})).body) - 4
    longest = agent.request(HeartbeatRequest(hardware_report=AgentHardwareReport(warning=["x" * padding])))
    assert MAX_BODY_BYTES - 4 <= len(longest.body) <= MAX_BODY_BYTES
    assert api.handle(longest).status == OK
    over = agent.request(longest.body + b"\x82\x01\x00" * 2)
    assert api.handle(over).status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    ((reported_at,),) = fleet.sql("SELECT reported_at FROM machine_hardware_report")
    assert api.handle(agent.request(HARDWARE)).status == OK
    ((raw, later, *sums),) = fleet.sql(
        "SELECT hardware_report_raw, reported_at, hardware_threads, memory_bytes, disks, disk_bytes"
        " FROM machine_hardware_report"
    )
    assert (raw, sums) == (HARDWARE.hardware_report.SerializeToString(), [0, 0, 0, 0])
    assert later > reported_at


RECORDED = "SELECT report_interval_seconds, failed_attempts FROM machine_agent_heartbeat"


@pytest.mark.parametrize(
    ("told", "in_use", "interval"),
    [(240, 60, 240), (60, 240, 240), (3600, 1, 3600), (60, 2**32 - 1, 3600), (0, 300, 300), (240, 0, 0)],
)
def test_the_longer_interval_of_told_and_in_use_is_recorded(
    fleet: Fleet, connection: Connection, agent: SignedAgent, told: int, in_use: int, interval: int
) -> None:
    """The answer may be lost. An agent without one (0) follows none, and none may claim more than an hour."""
    request = agent.request(HeartbeatRequest(report_interval_seconds=in_use))
    answer = HeartbeatResponse.FromString(endpoint(connection, interval=told).handle(request).body)
    assert answer.report_interval_seconds == told
    assert fleet.sql(RECORDED) == [[interval, 0]]
    for claim, counted in {1: 1, 1000: 1000, 1001: 1000, 2**32 - 1: 1000, 0: 0}.items():
        message = HeartbeatRequest(report_interval_seconds=7, failed_attempts=claim)
        endpoint(connection).handle(agent.request(message))
        assert fleet.sql(RECORDED) == [[7, counted]], claim


def test_the_answer_carries_an_installation_until_it_is_reported(
    fleet: Fleet, api: AgentApi, agent: SignedAgent
) -> None:
    """An agent that was restarted must hear of it too; one that has done it must not hear again."""
    wanted = HeartbeatResponse.FromString((WIRE / "cloud.bmaas.server.api.HeartbeatResponse.bin").read_bytes())
    wanted.ClearField("report_interval_seconds")
    generation = wanted.installation_request.generation
    fleet.request_installation(agent.machine_id, generation)
    raw = wanted.installation_request.SerializeToString()
    fleet.sql("UPDATE machine_os_installation_request SET os_installation_request_raw = :raw", raw=raw)
    for request in (agent.request(), agent.request(), agent.request(HARDWARE)):
        assert HeartbeatResponse.FromString(api.handle(request).body) == wanted
    assert [api.handle(each).body for each in (agent.outcome(generation), agent.request())] == [b"", b""]
    fleet.request_installation(agent.machine_id, generation + 1)
    again = HeartbeatResponse.FromString(api.handle(agent.request()).body)
    assert again.installation_request.generation == generation + 1


@pytest.mark.parametrize(
    ("wanted", "known", "reported", "kept"),
    [
        (None, None, (1, "Success"), None),
        (1, None, (1, "Success"), (1, "Success")),
        (1, None, (2, "Success"), None),
        (3, None, (2, "Success"), (2, "Success")),
        (3, (2, "Error"), (2, "Success"), (2, "Success")),
        (3, (2, "Error"), (3, "Success"), (3, "Success")),
        (3, (2, "Error"), (1, "Success"), None),
        (3, (3, "Error"), (2, "Success"), None),
        (3, (3, "Error"), (4, "Success"), None),
        # An agent that got no answer says it again; one that was restarted may fail where another succeeded.
        (1, (1, "Success"), (1, "Success"), (1, "Success")),
        (1, (1, "Success"), (1, "Error"), (1, "Success")),
        (2, (1, "Success"), (2, "Error"), (2, "Error")),
    ],
)
def test_generations_go_forward_and_a_success_stays_one(
    fleet: Fleet,
    api: AgentApi,
    agent: SignedAgent,
    wanted: int | None,
    known: tuple[int, str] | None,
    reported: tuple[int, str],
    kept: tuple[int, str] | None,
) -> None:
    if wanted is not None:
        fleet.request_installation(agent.machine_id, wanted)
    if known is not None:
        fleet.report_installation(agent.machine_id, *known)
    before = recorded(fleet)
    generation, result = reported
    answer = api.handle(agent.outcome(generation, "no disk" if result == "Error" else None))
    assert answer.status == (OK if kept else BAD_REQUEST)
    if kept:
        outcomes = fleet.sql("SELECT generation, os_installation_result FROM machine_os_installation_report")
        assert outcomes == [list(kept)]
    else:
        assert b"generation" in answer.body
        assert int(answer.headers["shepherd-time"]) != RECEIVED_AT
        assert recorded(fleet) == before
        assert api.handle(agent.request()).status == OK  # without the report it is a heartbeat like any other


def test_an_installation_report_does_not_wait_for_a_new_wish(fleet: Fleet, agent: SignedAgent, api: AgentApi) -> None:
    """A new wish and an old outcome at once: whichever commits first, the machine is not installed."""
    fleet.request_installation(agent.machine_id, 1)
    other = fleet.connect()

    def wish() -> None:
        other.script("UPDATE machine_os_installation_request SET generation = 2")
        assert api.handle(agent.outcome(1)).status == OK
        assert fleet.sql("SELECT process FROM machine_need") == [[None]]

    other.transact(wish)
    assert fleet.sql("SELECT process FROM machine_need") == [["ShepherdRecovery"]]


def test_an_agent_whose_row_stays_locked_is_asked_to_retry(
    fleet: Fleet, agent: SignedAgent, api: AgentApi, capsys: pytest.CaptureFixture[str]
) -> None:
    """It must wait neither for the holder nor for another machine's heartbeat."""
    assert api.handle(agent.request()).status == OK
    impatient = endpoint(fleet.connect(limits=TimeLimits(statement=0.2)))
    fleet.connection.script("BEGIN; SELECT 1 FROM machine_agent_heartbeat FOR UPDATE")
    assert impatient.handle(agent.request()).status == HTTPStatus.SERVICE_UNAVAILABLE
    fleet.connection.roll_back()
    assert log_lines(capsys)[0]["cause"].startswith("StatementFailed: ")
    assert impatient.handle(agent.request()).status == OK


def test_during_a_bmdb_outage_agents_are_asked_to_retry(
    fleet: Fleet, agent: SignedAgent, clock: ManualClock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An agent that is refused instead would drop its report."""
    request = agent.request()
    nowhere = fleet.connect(fleet.settings.model_copy(update={"bmdb_host": str(tmp_path)}))
    answer = endpoint(nowhere).handle(request)
    assert (answer.status, answer.body) == (HTTPStatus.SERVICE_UNAVAILABLE, b"try again later\n")
    assert answer.headers["shepherd-time"] == str(RECEIVED_AT)
    (line,) = log_lines(capsys)
    assert (line["level"], line["machine_id"]) == ("ERROR", str(agent.machine_id))
    assert line["cause"].startswith("BmdbUnavailable: cannot connect to the BMDB")
    assert len(json.dumps(line)) < 600


def test_a_frozen_endpoint_reconnects_and_continues(
    fleet: Fleet, api: AgentApi, agent: SignedAgent, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lambda stops a function between two requests for as long as it likes; the first agent after it loses nothing."""
    for message in (HeartbeatRequest(), HARDWARE):
        assert api.handle(agent.request()).status == OK
        for each in (agent, SignedAgent(fleet)):  # one that is not remembered is asked for first
            fleet.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'shepherd'")
            fleet.wait_until("NOT EXISTS (SELECT 1 FROM pg_stat_activity WHERE application_name = 'shepherd')")
            assert api.handle(each.request(message)).status == OK
    assert log_lines(capsys) == []


@pytest.mark.parametrize("commit", [False, True], ids=["plain", "report"])
@pytest.mark.parametrize("lost", get_args(Lost))
def test_a_heartbeat_with_a_lost_answer_is_no_replay(
    fleet: Fleet, agent: SignedAgent, breaking: BreakingConnection, lost: Lost, commit: bool
) -> None:
    """It is sent again, and is refused then if it is on record: which must not be taken for the answer."""
    api = endpoint(fleet.connect(breaking.settings))
    assert api.handle(agent.request()).status == OK
    fleet.request_installation(agent.machine_id, 1)
    before = recorded(fleet)
    breaking.lose(lost, commit=commit)
    request = agent.outcome(1) if commit else agent.request()
    assert api.handle(request).status == OK
    assert breaking.armed == 0
    after = recorded(fleet)
    assert after[0] != before[0]
    assert len(after[2]) == commit
    assert fleet.sql("SELECT process FROM machine_need") == [[None if commit else "ShepherdRecovery"]]
    # The agent gets the request with the next answer at the latest.
    answer = HeartbeatResponse.FromString(api.handle(agent.request()).body)
    assert answer.installation_request.generation == (0 if commit else 1)
    assert api.handle(request).status == UNAUTHORIZED


@pytest.mark.parametrize("remembered", [False, True])
def test_no_heartbeat_is_taken_in_an_unknown_schema(
    own_fleet: Fleet, remembered: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Between a migration and the deployment of its code, the effect of a statement is undefined."""
    agent = SignedAgent(own_fleet)
    api = endpoint(own_fleet.connection)
    if remembered:
        assert api.handle(agent.request()).status == OK
    before = recorded(own_fleet)
    own_fleet.sql("INSERT INTO schema_migrations VALUES (99, 'newer', '', 99)")
    assert api.handle(agent.request()).status == HTTPStatus.SERVICE_UNAVAILABLE
    assert recorded(own_fleet) == before
    (line,) = log_lines(capsys)
    assert line["cause"].startswith("SchemaMismatch: the BMDB's schema is version 99")


@pytest.mark.parametrize("begun", [False, True], ids=["empty", "older"])
def test_a_schema_without_what_is_needed_is_an_old_one(
    postgres: Postgres, clock: ManualClock, capsys: pytest.CaptureFixture[str], begun: bool
) -> None:
    """The database says that a column is missing; what is to be done about it is another line."""
    settings = postgres.new_database("template1")
    connection = Connection(settings, None, clock)
    if begun:
        migrate(connection, known=())
    request = AgentRequest("POST", "/heartbeat", {"shepherd-machine": str(uuid4())}, b"", RECEIVED_AT)
    assert endpoint(connection).handle(request).status == HTTPStatus.SERVICE_UNAVAILABLE
    (line,) = log_lines(capsys)
    assert line["cause"].startswith("SchemaMismatch: the BMDB's schema is version 0")
    connection.close()
    postgres.drop(settings)
