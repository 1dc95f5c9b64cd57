import json
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from shepherd_core.adapters.aws.secrets import SsmSecretStore
from shepherd_core.bmdb.connection import Connection
from shepherd_core.bmdb.schema.migrate import Migration, migrate, migrations, schema_version
from shepherd_core.domain.clock import ANSWER_SECONDS, Deadline
from shepherd_core.domain.errors import AnswerUndelivered, ConfigError, EventInvalid
from shepherd_core.domain.errors.bmdb import RolesRefused, StatementFailed
from shepherd_core.operator.cloudformation import ANSWERED
from shepherd_core.operator.migrator import RESOURCE_ID, Deployment, handle
from shepherd_core.settings.functions.bmdb import BmdbSettings

from functions.migrator.app import lambda_handler
from simulator.lambda_.environment import Context
from tests.conftest import ManualClock, log_lines
from tests.support.bmdb.fleet import administrator
from tests.support.deployment import function_process
from tests.support.providers.scripted_http import DROPPED, Answer, Script, in_turn
from tests.support.waiting import eventually

LATEST = migrations()[-1].version
SIGNATURE = "X-Amz-Signature=0123456789abcdef"
ASKED = {
    "StackId": "arn:aws:cloudformation:eu-central-1:1:stack/shepherd/1",
    "RequestId": "7",
    "LogicalResourceId": "Schema",
}

pytestmark = pytest.mark.usefixtures("aws")


@pytest.fixture
def bmdb(empty_database: BmdbSettings, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Connection]:
    for name in ("host", "name", "user"):
        monkeypatch.setenv(f"SHEPHERD_BMDB_{name.upper()}", getattr(empty_database, f"bmdb_{name}"))
    with closing(Connection(empty_database, None, clock)) as connection:
        yield connection


def asked(server: Script, kind: str, version: object = LATEST, before: object = None) -> dict[str, Any]:
    event: dict[str, Any] = {
        **ASKED,
        "RequestType": kind,
        "ResponseURL": f"{server.url}/answer?{SIGNATURE}",
        "ResourceType": "Custom::BmdbSchema",
        "ResourceProperties": {
            "ServiceToken": "arn:aws:lambda:eu-central-1:1:function:m",
            "SchemaVersion": str(version),
        },
    }
    if kind != "Create":
        event["PhysicalResourceId"] = RESOURCE_ID
    if kind == "Update":
        event["OldResourceProperties"] = {"SchemaVersion": str(before)}
    return event


def invoke(event: Mapping[str, Any], seconds: float = 60) -> dict[str, Any]:
    context: Any = Context("7", "migrator", time.monotonic() + seconds)
    return lambda_handler(dict(event), context)


def answered(server: Script) -> dict[str, Any]:
    (request,) = server.requests
    answer: dict[str, Any] = json.loads(request.body)
    assert len(request.body) <= 4096
    assert request.path == f"/answer?{SIGNATURE}"
    assert request.headers["Content-Type"] == ""  # the URL is signed for that
    assert answer.items() >= {**ASKED, "PhysicalResourceId": RESOURCE_ID}.items()
    assert answer["Status"] == "SUCCESS" or answer["Reason"]
    return answer


def unreachable(error: Exception | None = None) -> Connection:
    raise error or AssertionError("asked for the database")


def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHEPHERD_BMDB_HOST", raising=False)


@pytest.mark.parametrize("kind", ["Create", "Update"])
def test_a_deployment_applies_the_migrations_that_are_missing(
    cloudformation: Script, bmdb: Connection, document: Path, kind: str
) -> None:
    """The loops, which are deployed after it, find what they need; it needs no settings of single functions."""
    if kind == "Update":
        migrate(bmdb, known=())
    invoke(asked(cloudformation, kind, before=LATEST - 1))
    answer = answered(cloudformation)
    assert (answer["Status"], answer["Data"]) == ("SUCCESS", {"SchemaVersion": LATEST})
    assert schema_version(bmdb) == LATEST


FORGOTTEN = f"the template has schema version {LATEST + 1}, but the code deployed with it has version {LATEST}"


@pytest.mark.parametrize(
    ("change", "version", "reason"),
    [
        ("UPDATE schema_migrations SET checksum = 'another'", LATEST, "MigrationRefused: migration 1 "),
        ("INSERT INTO schema_migrations VALUES (99, 'of the future', '', 99)", LATEST, "deploy newer code"),
        ("DELETE FROM schema_migrations", LATEST + 1, FORGOTTEN),
        ("", LATEST, "SHEPHERD_BMDB_HOST is not set"),
    ],
    ids=["edited", "a newer database", "a build forgotten", "no settings"],
)
def test_a_deployment_without_its_schema_fails_with_the_reason(
    cloudformation: Script, bmdb: Connection, monkeypatch: pytest.MonkeyPatch, change: str, version: int, reason: str
) -> None:
    """CloudFormation shows it to the operator, and does not deploy the loops that need the schema."""
    migrate(bmdb)
    if change:
        bmdb.script(change)
    else:
        nowhere(monkeypatch)
    before = schema_version(bmdb)
    invoke(asked(cloudformation, "Update", version, before=LATEST - 1))
    answer = answered(cloudformation)
    assert answer["Status"] == "FAILED"
    assert reason in answer["Reason"]
    assert "this code needs" not in answer["Reason"]
    assert schema_version(bmdb) == before


@pytest.mark.parametrize(
    ("newer", "reached", "told"),
    [
        ("SELECT 1;", True, ["the loops stop until code for this schema is deployed"]),
        ("SELECT 1;", False, ["roles not granted in a rollback"]),
        (f"-- Code from version {LATEST} can use this.\nSELECT 1;", True, []),
    ],
)
def test_a_rollback_to_an_older_schema_is_let_pass(
    cloudformation: Script,
    bmdb: Connection,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    newer: str,
    *,
    reached: bool,
    told: list[str],
) -> None:
    """A failed rollback leaves a stack that cannot be deployed to, so it must succeed; the log has the consequences."""
    if not reached:
        nowhere(monkeypatch)
    migrate(bmdb, known=(*migrations(), Migration(LATEST + 1, "newer", newer)))
    invoke(asked(cloudformation, "Update", version=LATEST, before=LATEST + 1))
    answer = answered(cloudformation)
    assert (answer["Status"], answer["Data"]) == ("SUCCESS", {"SchemaVersion": LATEST})
    assert [line["message"] for line in log_lines(capsys) if line["level"] != "INFO"] == told


@pytest.mark.parametrize("version", [LATEST, "nonsense"])
def test_a_deletion_touches_nothing(cloudformation: Script, monkeypatch: pytest.MonkeyPatch, version: object) -> None:
    """The fleet's history outlives the deployment; and what never worked can still be deleted."""
    nowhere(monkeypatch)
    invoke(asked(cloudformation, "Delete", version))
    assert answered(cloudformation)["Status"] == "SUCCESS"


@pytest.mark.parametrize(
    ("error", "end"),
    [(KeyError("password=hunter2"), "KeyError: unexpected; see the log"), (ConfigError(["𝄞" * 10_000]), "𝄞…")],
    ids=["unexpected", "long"],
)
def test_a_reason_is_short_and_harmless(cloudformation: Script, clock: ManualClock, error: Exception, end: str) -> None:
    """An error that is not ours may hold anything; an answer that is too long counts as none."""
    handle(asked(cloudformation, "Create"), partial(unreachable, error), clock, 60)
    assert answered(cloudformation)["Reason"].endswith(end)
    assert "hunter2" not in answered(cloudformation)["Reason"]


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        ([Answer(500), Answer(200, b"x", missing=5), Answer()], None),
        ([Answer(403)], "status 403"),
        ([Answer(307, b"", {"Location": "/elsewhere"})], "status 307"),
        ([DROPPED], "ConnectionError"),
    ],
)
def test_an_answer_that_is_not_accepted_fails_the_function(
    cloudformation: Script,
    clock: ManualClock,
    bmdb: Connection,
    capsys: pytest.CaptureFixture[str],
    answers: list[Answer],
    told: str | None,
) -> None:
    """It may be invoked again. The URL allows answering in its place: it is not logged, and no other is followed."""
    cloudformation.answer = in_turn(*answers)
    with ExitStack() as stack:
        caught = stack.enter_context(pytest.raises(AnswerUndelivered)) if told else None
        handle(asked(cloudformation, "Create"), lambda: bmdb, clock, 60)
    assert [request.path for request in cloudformation.requests] == [f"/answer?{SIGNATURE}"] * 3
    assert len({request.body for request in cloudformation.requests}) == 1
    assert clock.slept == [1, 2]
    if caught:
        assert str(caught.value).endswith(f"3 attempts: {told}")
        assert caught.value.retryable
        assert SIGNATURE not in capsys.readouterr().out + repr(caught.value)


OURS = "cloudformation-custom-resource-response-euwest1.s3"


@pytest.mark.parametrize(
    "url",
    [
        f"https://evil.example/{OURS}.amazonaws.com/",
        f"https://{OURS}.amazonaws.com.evil.example/answer",
        f"https://{OURS}.amazonaws.com@evil.example/answer",
        f"https://{OURS}.amazonaws.com\\@evil.example/answer",
        f"https://{OURS}.amazonaws.com:8443/answer",
        f"https://evil.example#{OURS}.amazonaws.com/answer",
        "https://bucket.s3.amazonaws.com/answer",
        f"http://{OURS}.amazonaws.com/answer",
        "https://cloudformation-custom-resource-response-evil.s3.amazonaws.com/answer",
        "https://cloudformation-custom-resource-response-euwest1-evil.s3.eu-west-1.amazonaws.com/answer",
        f"https://{OURS}.s3.amazonaws.com/answer",  # the bucket …-euwest1.s3
        f"https://{OURS}.evil.s3.amazonaws.com/answer",
        "http://127.0.0.1.evil.example/answer",
        "http://169.254.169.254/latest",
        f"https://{OURS}.amazonaws.com/\ud800",
        "",
        None,
        7,
    ],
)
def test_answers_go_to_cloudformation_alone(url: object, clock: ManualClock) -> None:
    """Anyone who may invoke the Migrator could have it send requests from inside the network."""
    with pytest.raises(EventInvalid, match="it must be at one of CloudFormation's own hosts") as caught:
        handle({**ASKED, "RequestType": "Create", "ResponseURL": url}, unreachable, clock, 60)
    assert "answer" not in str(caught.value)
    assert ("evil.example" in str(url)) == ("evil.example" in str(caught.value)), "the host is named"


@pytest.mark.parametrize(
    ("region", "suffix"),
    [
        ("eu-west-1", "amazonaws.com"),
        ("us-gov-west-1", "amazonaws.com"),
        ("cn-north-1", "amazonaws.com.cn"),
        ("eusc-de-east-1", "amazonaws.eu"),
        ("us-iso-east-1", "c2s.ic.gov"),
        ("us-isob-east-1", "sc2s.sgov.gov"),
        ("eu-isoe-west-1", "cloud.adc-e.uk"),
        ("us-isof-south-1", "csp.hci.ic.gov"),
    ],
)
def test_every_host_of_cloudformation_is_answered(region: str, suffix: str) -> None:
    """Nothing here listens for it. A partition that is left out would wait six minutes, and be told no reason."""
    bucket = f"cloudformation-custom-resource-response-{region.replace('-', '')}"
    for place in ("s3", f"s3.{region}", f"s3-{region}", f"s3.dualstack.{region}"):
        assert ANSWERED.fullmatch(f"https://{bucket}.{place}.{suffix}/arn%3Aaws?X-Amz-Algorithm=AWS4&{SIGNATURE}")


@pytest.mark.parametrize(
    "change",
    [
        {"RequestType": "Frobnicate"},
        {"ResourceProperties": {"SchemaVersion": "new"}},
        # JSON has lone surrogates and UTF-8 does not.
        {"LogicalResourceId": "\ud800", "RequestType": "\udfff" * 20},
    ],
)
def test_a_request_that_is_not_understood_is_answered_too(cloudformation: Script, change: dict[str, Any]) -> None:
    """Silence would hold the deployment for an hour."""
    event = {**asked(cloudformation, "Create"), **change}
    invoke(event)
    (request,) = cloudformation.requests
    answer = json.loads(request.body)
    assert (answer["Status"], answer["LogicalResourceId"]) == ("FAILED", event["LogicalResourceId"])
    assert answer["Reason"].startswith("EventInvalid: ")


SLOW = """
    CREATE FUNCTION slow() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(1); END';
    CREATE EVENT TRIGGER slow ON ddl_command_start WHEN TAG IN ('CREATE DOMAIN') EXECUTE FUNCTION slow();
"""


def test_an_answer_in_time_ends_the_migration(
    cloudformation: Script, bmdb: Connection, empty_database: BmdbSettings
) -> None:
    """A deployment that was told that it failed, and rolled back, must not be overtaken by its own migration."""
    with administrator(empty_database) as other:
        other.run(SLOW)
        invoke(asked(cloudformation, "Update", before=LATEST - 1), seconds=ANSWER_SECONDS + 0.3)
        answer = answered(cloudformation)
        assert answer["Reason"].startswith("TimeLimitExceeded: the migrations did not end within the time")
        bmdb.close()
        mine = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'shepherd' AND datname = current_database()"
        eventually(lambda: not other.run(mine))  # the migration that went on has ended
    assert schema_version(bmdb) == 0


def test_by_hand_it_returns_or_raises_what_it_would_answer(bmdb: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """For `sam local invoke`, and for migrating with the deployed function."""
    event = json.loads((Path(__file__).parents[3] / "events" / "migrator.json").read_text())
    monkeypatch.setenv("SHEPHERD_LOOP_MINUTES", "1,1,31,1")  # which is about the settings, not the schema
    assert invoke(event) == {"SchemaVersion": LATEST}
    assert schema_version(bmdb) == LATEST
    with pytest.raises(EventInvalid, match="RequestType is None"):
        invoke({})
    monkeypatch.setenv("SHEPHERD_BMDB_NAME", "nothing_here")
    function_process.end()
    with pytest.raises(StatementFailed, match="nothing_here"):
        invoke({"RequestType": "Create"})


@pytest.fixture
def document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "settings.toml"
    path.write_text('version = 1\n[provider.static]\nmachines = "machines.json"\n')
    monkeypatch.setenv("SHEPHERD_SETTINGS", str(path))
    return path


@pytest.mark.parametrize("kind", ["Create", "Update"])
def test_a_deployment_with_wrong_settings_fails_with_every_fault(
    cloudformation: Script, bmdb: Connection, document: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    document.write_text("version = 1\n[recoverer]\nheartbeat_timeout_seconds = 200\n[provider.redfish]\nlist = 1\n")
    monkeypatch.setenv("SHEPHERD_LOOP_MINUTES", "1,1,31,1")
    invoke(asked(cloudformation, kind, before=LATEST))
    answer = answered(cloudformation)
    assert answer["Status"] == "FAILED"
    for fault in (
        "provider.redfish.list is unknown",
        "SHEPHERD_PROVIDER_MACHINES is not set",
        "SHEPHERD_LOOP_MINUTES is 1,1,31,1",
        "recoverer.heartbeat_timeout_seconds is 200 and recoverer.startup_timeout_seconds is 1800",
    ):
        assert fault in answer["Reason"]
    assert schema_version(bmdb) == 0


def test_without_a_document_the_environment_is_checked(
    cloudformation: Script, bmdb: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHEPHERD_LOOP_MINUTES", "1,1,31,1")
    invoke(asked(cloudformation, "Create"))
    assert "SHEPHERD_LOOP_MINUTES is 1,1,31,1" in answered(cloudformation)["Reason"]


def test_of_very_many_faults_cloudformation_gets_those_that_fit(
    cloudformation: Script, bmdb: Connection, document: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It takes 4,096 bytes in all; the log has the rest."""
    document.write_text("version = 1\n" + "\n".join(f'"ключ {number} \\" {"鑰匙" * 12}" = 1' for number in range(40)))
    invoke(asked(cloudformation, "Create"))
    reason = answered(cloudformation)["Reason"]
    *listed, last = reason.splitlines()[1:]
    assert len(listed) > 10
    assert last == f"  - and {40 - len(listed)} more, in the log of the Migrator"
    assert "39 " in capsys.readouterr().out


def rollback(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request by which CloudFormation takes back *event*."""
    before, after = (event[name] for name in ("OldResourceProperties", "ResourceProperties"))
    return {**event, "ResourceProperties": before, "OldResourceProperties": after}


@pytest.mark.parametrize("end", ["refused", "accepted", "no database"])
def test_a_rollback_fails_because_of_no_settings(
    cloudformation: Script, bmdb: Connection, document: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """It would leave the stack half done, and the document cannot be rolled back with it."""
    update = asked(cloudformation, "Update", before=LATEST)
    update["OldResourceProperties"]["Provider"] = "redfish"
    if end == "accepted":  # and something else of the stack failed after it
        invoke(update)
    if end == "no database":
        nowhere(monkeypatch)
    else:
        document.write_text("version = 2")
    if end != "accepted":
        invoke(update)
    for event in (rollback(update), rollback(update), update):
        invoke(event)
    first = "SUCCESS" if end == "accepted" else "FAILED"
    answers = [json.loads(request.body)["Status"] for request in cloudformation.requests]
    assert answers == [first, "SUCCESS", "SUCCESS", "FAILED"]


@pytest.mark.parametrize("refused", [False, True])
def test_a_rollback_grants_what_its_code_needs(
    cloudformation: Script, bmdb: Connection, clock: ManualClock, *, refused: bool
) -> None:
    """The newer code took away what only the older needs; a refusal must not leave the stack half done."""
    granted = []

    def check() -> None:
        raise ConfigError(["version is 2"])

    def make_roles(connection: Connection, _: Deadline) -> list[str]:
        granted.append(schema_version(connection))
        if refused:
            raise RolesRefused("?")
        return ["shepherd-updater"]

    update = asked(cloudformation, "Update", before=LATEST)
    update["OldResourceProperties"]["Provider"] = "redfish"
    deployment = Deployment(check, SsmSecretStore())
    for event in (update, rollback(update)):
        answer = handle(event, lambda: bmdb, clock, 60, deployment, make_roles)
    assert (answer["Status"], answer["Data"]) == ("SUCCESS", {"SchemaVersion": LATEST})
    assert granted == [0]  # and nothing was migrated
