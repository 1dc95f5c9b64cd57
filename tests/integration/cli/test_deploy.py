"""shepherdctl deploy: against moto, with a template that moto understands, and the real BMDB."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import boto3
import botocore.client
import botocore.exceptions
import pytest
from shepherd_core.settings.functions.specs import LOOPS

from tests.support.bmdb.fleet import Fleet
from tests.support.command_line import CommandLine
from tests.support.deployment.deployments import BUCKET, PSEUDO, ROOT, SMALL, build_small, write_small

ACCOUNT, REGION = PSEUDO["AWS::AccountId"], PSEUDO["AWS::Region"]

pytestmark = pytest.mark.usefixtures("aws")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_small(tmp_path)


def deploy(folder: Path, *options: str, command: str = "deploy", status: int = 0) -> tuple[list[str], str]:
    """Return the exports that are printed, and the messages."""
    built = ("--build", str(folder / "build")) if command == "deploy" else ()
    result = CommandLine(None)(command, str(folder / "shepherd.toml"), *built, *options)
    assert result.exit_code == status, result.output
    return result.stdout.splitlines(), result.stderr


def stopped(folder: Path, endpoint: str, *replies: tuple[str, str]) -> str:
    """Return what a terminal shows of a deployment up to its change set, for which moto finds no template there."""
    arguments = ("deploy", str(folder / "shepherd.toml"), "--build", str(folder / "build"))
    command_line = CommandLine(None, {"AWS_ENDPOINT_URL": endpoint})
    shown = command_line.on_terminal(100, *arguments, typed=replies, status=1, everything=True)
    assert "making a change set" in shown
    return shown


def only_stack() -> Any:
    """Return moto's object of the one stack."""
    from moto.cloudformation.models import cloudformation_backends  # noqa: PLC0415 - it takes a second to import

    (stack,) = cloudformation_backends[ACCOUNT][REGION].stacks.values()
    return stack


def there() -> dict[str, Any]:
    """Return all that a deployment makes, as AWS has it."""
    s3, ssm = boto3.client("s3"), boto3.client("ssm")
    buckets = [each["Name"] for each in s3.list_buckets()["Buckets"]]
    stacks = boto3.client("cloudformation").describe_stacks()["Stacks"]
    return {
        "buckets": buckets,
        "objects": [each["Key"] for name in buckets for each in s3.list_objects_v2(Bucket=name).get("Contents", [])],
        "parameters": [each["Name"] for each in ssm.describe_parameters()["Parameters"]],
        "stacks": {each["StackName"]: each["StackStatus"] for each in stacks},
    }


Instead = dict[str, Callable[[Callable[[], Any], dict[str, Any]], Any]]


@pytest.fixture
def instead(monkeypatch: pytest.MonkeyPatch) -> Instead:
    """Return what answers in place of AWS, by operation: it gets AWS's own answer to call for, and the arguments."""
    ask = botocore.client.BaseClient._make_api_call
    answers: Instead = {}

    def asked(client: Any, operation: str, arguments: dict[str, Any]) -> Any:
        of_aws = partial(ask, client, operation, arguments)
        return answers[operation](of_aws, arguments) if operation in answers else of_aws()

    monkeypatch.setattr(botocore.client.BaseClient, "_make_api_call", asked)
    return answers


def denied(*_: object) -> None:
    error = {"Error": {"Code": "AccessDenied", "Message": "not authorized"}}
    raise botocore.exceptions.ClientError(error, "Any")


PASSWORD = "/shepherd/bmdb-password"


def stored_password() -> Any:
    found = boto3.client("ssm").get_parameter(Name=PASSWORD, WithDecryption=True)["Parameter"]
    assert found["Type"] == "SecureString"
    return found["Value"]


NOTHING: dict[str, Any] = {"buckets": [], "objects": [], "parameters": [], "stacks": {}}
PLANNED = ("bucket", "public access", "versions", "bmdb-password", "SSH key", "machines.json", "settings", "stack")


def test_one_command_makes_everything(folder: Path) -> None:
    exports, messages = deploy(folder, "--dry-run")
    assert (there(), exports, [what for what in PLANNED if what not in messages]) == (NOTHING, [], [])
    exports, messages = deploy(folder, "--yes")
    made, s3 = there(), boto3.client("s3")
    (code,) = {each for each in made["objects"] if each.startswith("code/")}
    assert made == {
        "buckets": [BUCKET],
        "objects": [code, "documents/machines.json", "settings.toml"],
        "parameters": ["/shepherd/bmdb-password", "/shepherd/ssh-key", "/shepherd/ssh-key.pub"],
        "stacks": {"shepherd": "CREATE_COMPLETE"},
    }
    assert exports == [
        f"export AWS_DEFAULT_REGION={REGION}",
        f"export SHEPHERD_SETTINGS=s3://{BUCKET}/settings.toml",
        "export SHEPHERD_BMDB_HOST=db.example.com",
        "export SHEPHERD_BMDB_ROLES=shepherd",
        "export SHEPHERD_BMDB_PASSWORD_PARAMETER=/shepherd/bmdb-password",
        "export SHEPHERD_SSH_KEY_PARAMETER=/shepherd/ssh-key",
        "export SHEPHERD_LOOP_MINUTES=0,0,0,0",
    ]
    # The bucket keeps versions and nothing public; secrets are encrypted and shown nowhere.
    assert s3.get_bucket_versioning(Bucket=BUCKET)["Status"] == "Enabled"
    assert set(s3.get_public_access_block(Bucket=BUCKET)["PublicAccessBlockConfiguration"].values()) == {True}
    assert s3.get_object(Bucket=BUCKET, Key="settings.toml")["Body"].read() == SMALL.encode()
    assert stored_password() == "geheim"
    assert "geheim" not in "".join(exports) + messages
    again, messages = deploy(folder, "--yes")
    assert "nothing to change" in messages
    assert (there(), again) == (made, exports)
    (folder / "shepherd.toml").write_text(SMALL.replace("db.example.com", "other.example.com"))
    _, messages = deploy(folder, "--yes")
    assert "BmdbHost is 'other.example.com' instead of 'db.example.com'" in messages
    assert there()["stacks"] == {"shepherd": "UPDATE_COMPLETE"}
    # The exports of another stack name what is its own.
    (folder / "shepherd.toml").write_text(SMALL.replace("region", 'stack = "blue"\nregion'))
    exports, _ = deploy(folder, "--yes")
    assert {line.partition("=")[2] for line in exports} >= {"/blue/ssh-key", "blue", "ssm:/blue/installation-key"}


@pytest.mark.parametrize("before", [None, "# of this morning"])
def test_two_operators_do_not_overwrite_each_other(folder: Path, before: str | None, instead: Instead) -> None:
    """The other one writes between this one's plan and its change; the next plan says what it takes back."""
    s3, other = boto3.client("s3"), f"{SMALL}[provisioner]\nmax_machines = 7\n".encode()
    if before is not None:
        deploy(folder, "--yes")
        (folder / "shepherd.toml").write_text(f"{SMALL}{before}")

    def meanwhile(answer: Callable[[], Any], arguments: dict[str, Any]) -> Any:
        if arguments["Key"] == "settings.toml":
            instead.clear()
            s3.put_object(Bucket=BUCKET, Key="settings.toml", Body=other)
        return answer()

    instead["PutObject"] = meanwhile
    _, messages = deploy(folder, "--yes", status=1)
    assert f"'s3://{BUCKET}/settings.toml' was changed by somebody else meanwhile, and is left as it is" in messages
    assert s3.get_object(Bucket=BUCKET, Key="settings.toml")["Body"].read() == other
    _, messages = deploy(folder, "--dry-run")
    assert "provisioner.max_machines is unset instead of 7\n" in messages


CHANGES = (
    "CreateBucket PutPublicAccessBlock PutBucketVersioning PutParameter PutObject CreateChangeSet ExecuteChangeSet"
)


@pytest.mark.parametrize("action", CHANGES.split())
def test_a_deployment_is_completed_from_wherever_it_stopped(folder: Path, action: str, instead: Instead) -> None:
    instead[action] = denied
    deploy(folder, "--yes", status=1)
    instead.clear()
    deploy(folder, "--yes")
    made = there()
    assert made["stacks"] == {"shepherd": "CREATE_COMPLETE"}
    assert len(made["parameters"]) == 3


def test_code_goes_when_no_rollback_needs_it(folder: Path) -> None:
    """With all its versions in the bucket, which would be paid for. Here that is the template, which was read once."""
    kept: list[set[str]] = []
    for number in range(3):
        build_small(folder / "build", **{f"Other{number}": {"Type": "AWS::SQS::Queue"}})
        _, messages = deploy(folder, "--dry-run")
        if number > 0:
            assert "update the stack shepherd: the code or the template is another" in messages
            assert "secret" not in messages
        assert (f"delete 1 of s3://{BUCKET}/code/" in messages) is (number > 0)
        deploy(folder, "--yes")
        versions = boto3.client("s3").list_object_versions(Bucket=BUCKET, Prefix="code/")
        assert "DeleteMarkers" not in versions
        kept.append({each["Key"] for each in versions["Versions"]})
    assert [len(each) for each in kept] == [1, 1, 1]
    assert set.intersection(*kept) == set()


def test_a_bucket_of_another_account_or_region_is_refused(folder: Path, instead: Instead) -> None:
    """Else settings of ours would be read from what somebody else writes."""
    instead["HeadBucket"] = denied
    _, messages = deploy(folder, "--yes", status=1)
    assert f"the bucket {BUCKET} is not of the account {ACCOUNT}" in messages
    assert there() == NOTHING
    instead.clear()
    elsewhere: Any = {"LocationConstraint": "us-west-2"}
    boto3.client("s3", region_name="us-west-2").create_bucket(Bucket=BUCKET, CreateBucketConfiguration=elsewhere)
    _, messages = deploy(folder, "--yes", status=1)
    assert f"the bucket {BUCKET} is in us-west-2" in messages
    assert there() == NOTHING | {"buckets": [BUCKET]}


def test_a_stored_secret_follows_its_source(folder: Path) -> None:
    """It is compared where the source is; who deploys from elsewhere changes nothing."""
    deploy(folder, "--yes")
    (folder / "password").write_text("neu")
    _, messages = deploy(folder, "--dry-run")
    assert f"- replace the secret {PASSWORD} in SSM, from its source\n" in messages
    assert "neu" not in messages
    assert stored_password() == "geheim"
    deploy(folder, "--yes")
    assert stored_password() == "neu"
    (folder / "password").unlink()
    _, messages = deploy(folder, "--yes")
    assert f"the secret {PASSWORD} cannot be read from where [deployment.secrets] says, and stays" in messages
    assert stored_password() == "neu"


def test_a_typed_secret_is_stored_and_not_shown(folder: Path, endpoint: str) -> None:
    """It is asked for until it can be one."""
    (folder / "shepherd.toml").write_text(SMALL.replace('bmdb-password = "password"', ""))
    secret = "bmdb-password (not shown): "
    shown = stopped(folder, endpoint, ("to stop:", "shepherd\n"), (secret, "\n"), (secret, "hunter2\n"))
    assert "store the secret /shepherd/bmdb-password in SSM, as you type it" in shown
    assert "it must be printable text on one line" in shown
    assert "hunter2" not in shown
    assert stored_password() == "hunter2"


@pytest.mark.parametrize(
    ("answer", "content", "told"),
    [
        # The answers are uploaded, with whatever they hold.
        ('"hunter2"', b"", "the secret /shepherd/bmdb-password cannot be read"),
        ('"password"', b"hunter2\xff\n", "the secret /shepherd/bmdb-password: it must be printable text"),
        (None, b"hunter2", "/shepherd/bmdb-password is not in SSM"),
    ],
    ids=["in place of its source", "no text", "without a source"],
)
def test_a_secret_that_is_none_is_shown_nowhere(folder: Path, answer: str | None, content: bytes, told: str) -> None:
    given = "" if answer is None else f"bmdb-password = {answer}"
    (folder / "shepherd.toml").write_text(SMALL.replace('bmdb-password = "password"', given))
    (folder / "password").write_bytes(content)
    exports, messages = deploy(folder, "--yes", status=1)
    assert told in messages
    assert "hunter2" not in messages + str(exports)
    found = there()
    assert (found["stacks"], PASSWORD in found["parameters"]) == ({}, False)


def test_destroying_deletes_the_stack_and_nothing_else(folder: Path) -> None:
    deploy(folder, "--yes")
    before = there()
    assert "goes: the stack shepherd" in deploy(folder, "--dry-run", command="destroy")[1]
    assert there() == before
    _, messages = deploy(folder, "--yes", command="destroy")
    assert there() == {**before, "stacks": {}}
    for stays in (*before["parameters"], BUCKET, "db.example.com"):
        assert f"{stays} " in messages
    assert "1 AWS::SQS::Queue: Queue" in messages
    assert "there is no stack" in deploy(folder, "--yes", command="destroy")[1]
    _, messages = deploy(folder, "--yes")
    assert "secret" not in messages
    assert there() == before


@pytest.mark.parametrize("command", ["deploy", "destroy"])
def test_the_stack_of_something_else_is_left_alone(folder: Path, command: str) -> None:
    template = {"Resources": {"Topic": {"Type": "AWS::SNS::Topic"}}}
    boto3.client("cloudformation").create_stack(StackName="shepherd", TemplateBody=json.dumps(template))
    before = there()
    assert "the stack shepherd is not Shepherd's" in deploy(folder, "--yes", command=command, status=1)[1]
    assert there() == before


def test_a_deletion_that_ends_meanwhile_is_waited_for(folder: Path, instead: Instead) -> None:
    """By its name, a stack that is gone has no events."""
    deploy(folder, "--yes")
    only_stack().status = "DELETE_IN_PROGRESS"

    def ending(answer: Callable[[], Any], _: object) -> Any:
        found = answer()
        instead.clear()
        boto3.client("cloudformation").delete_stack(StackName="shepherd")
        return found

    instead["DescribeStackEvents"] = ending
    deploy(folder, "--yes")
    assert there()["stacks"] == {"shepherd": "CREATE_COMPLETE"}


@pytest.mark.parametrize("status", ["ROLLBACK_COMPLETE", "CREATE_FAILED", "DELETE_FAILED"])
def test_a_stack_whose_creation_failed_is_deleted_when_confirmed(folder: Path, status: str, endpoint: str) -> None:
    """It can neither be updated nor made again; moto calls it whatever it is told."""
    deploy(folder, "--yes")
    only_stack().status = status
    _, messages = deploy(folder, "--yes", status=1)
    assert f"delete what is left of the stack shepherd: it is {status}" in messages
    assert "which --yes does not confirm" in messages
    assert there()["stacks"] == {"shepherd": status}
    assert "DELETE_COMPLETE" in stopped(folder, endpoint, ("to stop:", "shepherd\n"))
    assert there()["stacks"] == {}


@pytest.mark.parametrize(
    ("status", "remedy"),
    [("UPDATE_FAILED", "rollback-stack"), ("UPDATE_ROLLBACK_FAILED", "continue-update-rollback")],
)
def test_a_stack_that_stopped_halfway_is_for_a_person(folder: Path, status: str, remedy: str) -> None:
    """Template and answers are those that were wanted; what was made of them is not."""
    deploy(folder, "--yes")
    only_stack().status = status
    if status == "UPDATE_FAILED":
        assert "update the stack shepherd: it is UPDATE_FAILED" in deploy(folder, "--dry-run")[1]
    assert f"aws cloudformation {remedy} --stack-name shepherd" in deploy(folder, "--yes", status=1)[1]


@pytest.fixture
def endpoint() -> Iterator[str]:
    """Return the URL of a server that imitates AWS, for processes of their own."""
    from moto.server import ThreadedMotoServer  # noqa: PLC0415 - as above

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


def test_on_a_terminal_it_asks_and_keeps_the_answers(folder: Path, endpoint: str) -> None:
    """A dry run shows them; else the file is kept also if nothing is deployed in the end."""
    file, typed = folder / "new.toml", ["static", "", "", "db.example.com", "", "", "", "machines.json", "stop"]
    optional = 'loop_minutes = "0,0,0,0"\n\n[deployment.secrets]\nbmdb-password = "password"\n'
    answers = SMALL.replace(optional, "").replace(BUCKET, f"shepherd-{ACCOUNT}-{REGION}")
    command_line = CommandLine(None, {"AWS_ENDPOINT_URL": endpoint})
    for status, options in ((0, ["--dry-run"]), (1, [])):
        arguments = ("deploy", str(file), "--build", str(folder / "build"), *options)
        lines = "\n".join([*typed, ""])
        shown = command_line.on_terminal(100, *arguments, typed=lines, status=status, everything=True)
        assert "create the stack shepherd" in shown
        assert answers in (shown.replace("\r\n", "\n") if options else file.read_text())
        assert file.exists() is not bool(options)
        assert there() == NOTHING


@pytest.mark.parametrize(("recipe", "status"), [("cp -r ../build .aws-sam", 0), ("echo no compiler >&2; false", 1)])
def test_a_copy_of_the_repository_is_built_first(folder: Path, endpoint: str, recipe: str, status: int) -> None:
    """For the processor of the answers; here with a recipe of the test's own."""
    copy = folder / "copy"
    (copy / ".aws-sam").mkdir(parents=True)
    for name in ("shepherdctl", "template.yaml"):
        (copy / name).symlink_to(ROOT / name)
    (copy / "Makefile").write_text(f"build:\n\t@echo $(ARCHITECTURE) >built-for\n\t@{recipe}\n")
    command = [sys.executable, "-m", "shepherdctl", "deploy", str(folder / "shepherd.toml"), "--dry-run"]
    environment = {**os.environ, "AWS_ENDPOINT_URL": endpoint}
    ran = subprocess.run(command, cwd=copy, env=environment, check=False, capture_output=True, text=True)
    assert (ran.returncode, (copy / "built-for").read_text()) == (status, "arm64\n"), ran.stderr
    assert ("create the stack shepherd" in ran.stderr) is (status == 0)
    assert ("the build failed:\nno compiler" in ran.stderr) is (status == 1)


def test_without_a_terminal_nothing_is_asked(folder: Path) -> None:
    (folder / "shepherd.toml").unlink()
    _, messages = deploy(folder, "--yes", status=1)
    assert "shepherd.toml does not exist: shepherdctl deploy asks for the answers on a terminal" in messages


FAULTS = [f"fault {number}" for number in range(60)]
SHORT = "ConfigError: the settings are wrong:\n  - fault 0\n  - and 59 more, in the log of the Migrator"
WHOLE = "ConfigError: the settings are wrong:\n" + "\n".join(f"  - {each}" for each in FAULTS)
NESTED = "arn:aws:cloudformation:eu-central-1:123456789012:stack/shepherd-Observability/1"


def fail(instead: Instead, reason: str) -> None:
    """Let a deployment fail as if the Migrator had answered with *reason*, and an alarm of a nested stack failed."""
    told = f"Received response status [FAILED] from custom resource. Message returned: {reason} (RequestId: 6f1b-9d)"
    failures = (
        ("BmdbSchema", "", "Custom::Any", told),
        ("AgentUrl", "", "Custom::Any", "Resource creation cancelled"),
        ("Observability", NESTED, "AWS::CloudFormation::Stack", "Embedded stack was not created"),
    )

    def executed(answer: Callable[[], Any], _: object) -> Any:
        from moto.cloudformation.models import Event  # noqa: PLC0415 - as above

        found, stack = answer(), only_stack()
        for name, physical, kind, why in failures:
            event = Event(stack.stack_id, stack.name, name, physical, kind, "CREATE_FAILED", why, None)
            stack.events.append(event)
        stack.status = "ROLLBACK_COMPLETE"
        return found

    def events(answer: Callable[[], Any], arguments: dict[str, Any]) -> Any:
        inner = {"LogicalResourceId": "Alarm", "ResourceType": "AWS::CloudWatch::Alarm", "StackName": "shepherd-O"}
        failed = {"ResourceStatus": "CREATE_FAILED", "ResourceStatusReason": "no right", "Timestamp": datetime.now(UTC)}
        return {"StackEvents": [{"EventId": "1", **inner, **failed}]} if arguments["StackName"] == NESTED else answer()

    instead |= {"ExecuteChangeSet": executed, "DescribeStackEvents": events}


@pytest.mark.parametrize(
    ("reason", "logged", "told"),
    [
        ("SchemaMismatch: x", False, "SchemaMismatch: x"),
        # CloudFormation takes 4 KB of it, and the rollback deletes the log that has the rest.
        (SHORT, True, WHOLE),
        (SHORT, False, f"{SHORT} (and /aws/lambda/shepherd-migrator cannot be read: ResourceNotFoundException)"),
    ],
    ids=["alone", "whole", "without its log"],
)
def test_a_failure_is_told_whole_without_what_follows_from_it(
    folder: Path, instead: Instead, reason: str, told: str, *, logged: bool
) -> None:
    """Also that of a nested stack, whose events are its own; those of the stack around it only say that it failed."""
    logs, group = boto3.client("logs"), {"logGroupName": "/aws/lambda/shepherd-migrator"}
    if logged:
        logs.create_log_group(**group)
        logs.create_log_stream(**group, logStreamName="one")
        record = {"message": "deployment failed", "exception": f"Traceback:\n  x\nshepherd_core.domain.{WHOLE}"}
        lines = [{"timestamp": int(time.time() * 1000), "message": json.dumps(record)}]
        logs.put_log_events(**group, logStreamName="one", logEvents=lines)
    fail(instead, reason)
    _, messages = deploy(folder, "--yes", status=1)
    assert "CREATE_FAILED                Alarm\n" in messages
    found = messages.partition("the stack shepherd is ROLLBACK_COMPLETE:\n")[2]
    assert found == f"  - BmdbSchema: {told}\n  - Alarm: no right\n"


@pytest.fixture
def reachable(folder: Path, fleet: Fleet) -> str:
    """Return the answers of a deployment whose database is that of the fleet."""
    own = fleet.settings
    answers = (
        SMALL.replace("db.example.com", own.bmdb_host)
        .replace('"0,0,0,0"', '"1,2,1,10"\nbmdb_login = "one-password"')
        .replace("[provider", f'[bmdb]\nbmdb_name = "{own.bmdb_name}"\nbmdb_user = "{own.bmdb_user}"\n\n[provider')
    )
    (folder / "shepherd.toml").write_text(answers)
    return answers


@pytest.mark.parametrize(
    ("outcome", "cause", "told", "status"),
    [("Succeeded", None, "Succeeded", 0), ("Failed", "no route", "Failed, no route", 3)],
)
def test_it_ends_when_the_loops_have_run(
    folder: Path, reachable: str, fleet: Fleet, outcome: str, cause: str | None, told: str, status: int
) -> None:
    """
    Without the Recoverer, which is off for a list of machines, and what runs every ten minutes.

    A repeated run tells it too: the first one may have been interrupted while it waited. Ticks that end in a minute
    count as those that it waited for.
    """
    tick = {"outcome": outcome, "cause": cause, "provider": "static", "runtime_info": "", "counts": "{}"}
    for loop in LOOPS:
        times = {"began_at": timedelta(), "ended_at": timedelta(minutes=1)}
        fleet.plant("ticks", session_id=uuid4(), loop=loop, **tick, **times)
    for again in (False, True):
        exports, messages = deploy(folder, "--yes", status=status)
        ran = [line for line in messages.splitlines() if " ran: " in line]
        assert sorted(ran) == [f"initializer ran: {told}", f"provisioner ran: {told}"]
        assert ("nothing to change" in messages, exports[0]) == (again, f"export AWS_DEFAULT_REGION={REGION}")


def test_a_database_out_of_reach_is_said(folder: Path) -> None:
    (folder / "shepherd.toml").write_text(SMALL.replace("0,0,0,0", "1,1,1,1").replace("db.example.com", "127.0.0.1"))
    exports, messages = deploy(folder, "--yes", status=3)
    assert "the password was not tried" in messages
    assert "nothing is known of the loops" in messages
    assert exports


def test_a_password_that_the_database_refuses_is_not_stored(folder: Path, reachable: str, fleet: Fleet) -> None:
    (folder / "shepherd.toml").write_text(reachable.replace(str(fleet.settings.bmdb_name), "absent"))
    _, messages = deploy(folder, "--yes", status=1)
    assert "the secret /shepherd/bmdb-password: the database refuses its owner" in messages
    assert there()["parameters"] == []
