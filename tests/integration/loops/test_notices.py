"""Notices: what operators are told at the topic of the alarms."""

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import boto3
import pytest
from shepherd_core.bmdb.connection import Connection
from shepherd_core.bmdb.listings import provisioning
from shepherd_core.bmdb.recovery import remediation, suspension
from shepherd_core.bmdb.work import notices
from shepherd_core.domain.clock import Deadline, SystemClock
from shepherd_core.domain.machine import Process
from shepherd_core.wiring.notices import publish as publish_notices

from tests.support.bmdb.fleet import HOUR, PROVIDER, Fleet, claimed
from tests.support.waiting import WAIT_SECONDS

LATER, CLAIMERS = 601, 4
NOBODY = "arn:aws:sns:eu-central-1:123456789012:nobody"


@pytest.fixture
def told(aws: None, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[tuple[str, str]]]:
    """Return a function that returns subject and text of the messages at the topic since it was called last."""
    topic = boto3.client("sns").create_topic(Name="alarms")["TopicArn"]
    sqs = boto3.client("sqs")
    queue = sqs.create_queue(QueueName="inbox")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    boto3.client("sns").subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn)
    monkeypatch.setenv("SHEPHERD_ALARM_TOPIC", topic)

    def read() -> list[tuple[str, str]]:
        found: list[dict[str, Any]] = sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10).get("Messages", [])
        for each in found:
            sqs.delete_message(QueueUrl=queue, ReceiptHandle=each["ReceiptHandle"])
        bodies = [json.loads(each["Body"]) for each in found]
        return [(body["Subject"], body["Message"]) for body in bodies]

    return read


def publish(fleet: Fleet, seconds: float = 60) -> None:
    """Do what each invocation does at its end."""
    publish_notices(fleet.connection, PROVIDER, Deadline(SystemClock(), seconds))


def suspend(fleet: Fleet, record: Callable[..., object] = suspension.set_suspensions, **reasons: str) -> None:
    """Suspend recovery in these locations, and resume it elsewhere; or *record* SSH outages."""
    session = fleet.open_session()
    record(session, PROVIDER, reasons)
    session.close()


def quarantine(fleet: Fleet, machines: int, cause: str) -> list[str]:
    """Let recovery give up on so many machines, and return their ids."""
    planted = [str(fleet.locate(fleet.unhealthy_machine(), "fra")) for _ in range(machines)]
    session = fleet.open_session()
    assert len(remediation.quarantine(session, dict.fromkeys(claimed(session, Process.RECOVERY), cause))) == machines
    session.close()
    return planted


@pytest.mark.parametrize(
    ("record", "subjects", "begin", "end"),
    [
        (
            suspension.set_suspensions,
            ("recovery suspended", "recovery resumed"),
            "recovery is suspended",
            "recovery has resumed",
        ),
        (
            suspension.set_ssh_outages,
            ("SSH outage begun", "SSH outage over"),
            "an SSH outage began",
            "the SSH outage is over",
        ),
    ],
    ids=["suspension", "SSH outage"],
)
def test_a_suspension_is_told_at_its_begin_and_at_its_end(
    fleet: Fleet,
    told: Callable[[], list[tuple[str, str]]],
    record: Callable[..., object],
    subjects: tuple[str, str],
    begin: str,
    end: str,
) -> None:
    """With its reason and its length; not again each minute, when the figures change."""
    for reason in ("8 of 10", "9 of 10"):
        suspend(fleet, record, fra=reason)
        publish(fleet)
    ((subject, text),) = told()
    assert subject == f"Shepherd, static: {subjects[0]}"
    assert f"UTC: {begin} at static, location fra: 8 of 10\n" in text
    fleet.pass_time(2 * 24 * HOUR)
    suspend(fleet, record)
    publish(fleet)
    publish(fleet)
    ((subject, text),) = told()
    assert subject == f"Shepherd, static: {subjects[1]}"
    assert f"UTC: {end} at static, location fra, after 2880 min: 9 of 10\n" in text


def test_machines_put_into_quarantine_are_told_in_one_message(
    fleet: Fleet, told: Callable[[], list[tuple[str, str]]]
) -> None:
    """A rack that dies is no flood; what comes within ten minutes is in the next message."""
    first, second = quarantine(fleet, 2, "no step left\x1b[2J")
    publish(fleet)
    (third,) = quarantine(fleet, 1, "x" * 400)
    publish(fleet)
    ((subject, text),) = told()
    assert subject == "Shepherd, static: 2 machines put into quarantine"
    assert all(f"machine {each} (provider id machine-" in text for each in (first, second))
    assert text.count(", location fra) was put into quarantine: no step left [2J\n") == 2
    fleet.pass_time(LATER)
    publish(fleet)
    ((subject, text),) = told()
    assert (subject, third in text) == ("Shepherd, static: 1 machine put into quarantine", True)
    assert f": {'x' * 299}…\n" in text


def test_the_limit_is_told_once(fleet: Fleet, told: Callable[[], list[tuple[str, str]]]) -> None:
    """The kinds do not wait for each other, and another provider's loops tell what is theirs."""
    session = fleet.open_session()
    assert provisioning.take_lock(session, PROVIDER)
    for notice in ("20 places wait", "20 places wait", None):  # twice, because an answer was lost
        provisioning.record_waiting(session, PROVIDER, 20, 50, notice)
    quarantine(fleet, 1, "enough")
    fleet.sql("INSERT INTO notices (kind, provider, detail) VALUES ('limit', 'ec2', 'theirs')")
    publish(fleet)
    messages = dict(told())
    assert messages.keys() == {
        "Shepherd, static: limit of machines reached",
        "Shepherd, static: 1 machine put into quarantine",
    }
    assert messages["Shepherd, static: limit of machines reached"].count("20 places wait") == 1


def test_what_was_not_sent_is_told_later(
    fleet: Fleet, told: Callable[[], list[tuple[str, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a death in between, a refusal of SNS, or without time; but a concurrent invocation tells nothing twice."""
    suspend(fleet, fra="why")
    publish(fleet, seconds=5)
    assert len(notices.claim(fleet.connection, PROVIDER)) == 1
    publish(fleet)
    fleet.pass_time(LATER)
    with monkeypatch.context() as patch:
        patch.setenv("SHEPHERD_ALARM_TOPIC", NOBODY)
        publish(fleet)
    publish(fleet)
    assert told() == []
    fleet.pass_time(LATER)
    publish(fleet)
    assert [subject for subject, _ in told()] == ["Shepherd, static: recovery suspended"]


def test_no_message_is_begun_without_time_for_it(fleet: Fleet, told: Callable[[], list[tuple[str, str]]]) -> None:
    """A topic that does not answer would cut off an invocation whose work is done; the other message comes later."""

    class Hasty(SystemClock):
        """A clock on which 20 seconds pass between two looks."""

        now = 0.0

        def monotonic(self) -> float:
            """Return the time."""
            self.now += 20
            return self.now

    quarantine(fleet, 1, "enough")
    suspend(fleet, fra="why")
    publish_notices(fleet.connection, PROVIDER, Deadline(Hasty(), 60))
    assert [subject for subject, _ in told()] == ["Shepherd, static: 1 machine put into quarantine"]
    fleet.pass_time(LATER)
    publish(fleet)
    assert [subject for subject, _ in told()] == ["Shepherd, static: recovery suspended"]


def test_concurrent_invocations_share_no_notice(fleet: Fleet) -> None:
    """Each would publish it."""
    connections = [fleet.connect() for _ in range(CLAIMERS)]
    barrier = threading.Barrier(CLAIMERS)

    def claim(connection: Connection, provider: str) -> int:
        connection.run("now")
        barrier.wait(WAIT_SECONDS)
        return len(notices.claim(connection, provider))

    with ThreadPoolExecutor(CLAIMERS) as pool:
        for turn in range(20):
            provider = f"provider-{turn}"
            fleet.sql(
                "INSERT INTO notices (kind, provider, detail) VALUES ('limit', :provider, '?')", provider=provider
            )
            assert sum(pool.map(claim, connections, [provider] * CLAIMERS)) == 1


def test_notices_go_after_a_day(fleet: Fleet, told: Callable[[], list[tuple[str, str]]]) -> None:
    """Without a topic they are not read, and old notices are of no use."""
    suspend(fleet, fra="why")
    fleet.pass_time(25 * HOUR)
    publish(fleet)
    assert told() == []
    fleet.open_session().close()
    assert fleet.sql("SELECT 1 FROM notices") == []
