"""Every command, run as each kind of person: AWS has their policies, and PostgreSQL their users."""

import threading
import webbrowser
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import boto3
import botocore.client
import botocore.exceptions
import pytest
import requests
import uvicorn
from shepherd_core.adapters import ssh_keys
from shepherd_core.domain.errors import ShepherdError
from shepherd_core.domain.errors.bmdb import StatementFailed
from shepherd_core.settings.functions.specs import ROLES
from shepherd_core.wiring import adapters
from shepherd_core.wiring import settings as wiring_settings
from typer.testing import Result

from shepherdctl.deployment.function_logs import FUNCTIONS
from shepherdctl.people import Person
from simulator.environment import environment
from tests.integration.cli.conftest import Ec2Fleet
from tests.support.bmdb.fleet import Fleet
from tests.support.command_line import CommandLine, every_command
from tests.support.deployment.deployments import BUCKET, PSEUDO, build_small, write_small
from tests.support.deployment.iam import allows
from tests.support.deployment.people import PEOPLE, statements

ACCOUNT, REGION = PSEUDO["AWS::AccountId"], PSEUDO["AWS::Region"]
WHY = "--reason test"
PAUSE = "5c000000-0000-4000-8000-000000000000"
HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"

# How each command is run, with --yes if it asks before it changes more than one thing, or what somebody else did.
# FIRST, ENDED and QUARANTINED are machines, NEW is one that the BMDB does not know; FOLDER has files.
ARGUMENTS = {
    **dict.fromkeys(("db migrate", "db status", "settings show", "machine list", "ssh-key create", "ssh-key show"), ""),
    **dict.fromkeys(("status", "causes", "reconcile", "inventory", "pauses", "console", "demo", "simulate"), ""),
    **dict.fromkeys(("history", "logs", "machine history", "machine logs"), "FIRST"),
    **dict.fromkeys(("machine show", "machine why", "machine describe"), "FIRST"),
    **dict.fromkeys(("machine retry", "machine unquarantine"), f"--provider ec2 {WHY} --yes"),
    **dict.fromkeys(("machine reboot", "machine power-cycle"), f"FIRST QUARANTINED {WHY} --yes"),
    **dict.fromkeys(("machine forget-host-key", "machine release", "machine retire"), f"FIRST {WHY} --yes"),
    **dict.fromkeys(("pause", "machine pause"), f"--state quarantined {WHY} --yes"),
    **dict.fromkeys(("ssh-key rotate", "ssh-key retire"), "--yes"),
    "settings init": "--provider static",
    "settings check": "FOLDER/shepherd.toml",
    "settings set": "recoverer.max_steps_per_hour 30 --yes",
    "settings import-machines": "FOLDER/machines.csv --provider static",
    "machine wait": "FIRST --for needs_agent --timeout 9s",
    "machine install": f"FIRST --image https://images.example.com/x --sha256 {64 * '0'} --yes",
    "machine label": "--provider ec2 role=db --yes",
    "machine pin-host-key": f"FIRST {HOST_KEY} {WHY} --replace --yes",
    "machine adopt": "NEW --class foreign --yes",
    "machine rebind": "ENDED NEW --yes",
    "machine forget": f"ENDED {WHY} --yes",
    "provider new": "acme",
    "deploy": "FOLDER/shepherd.toml --build FOLDER/build --yes",
    "destroy": "FOLDER/shepherd.toml --yes",
    "resume": f"{PAUSE} --yes",
    "run": "updater",
}
STOPPED = {"demo", "simulate"}
"""They end where their own world would begin, which nobody needs a right for."""

# All that a refusal names, by the kind of person whose command it is, for somebody who has nothing of it.
RIGHTS = {
    Person.READER: {
        f"s3:GetObject on s3://{BUCKET}/settings.toml",
        "ssm:GetParameter on /shepherd/bmdb-password-reader",
        "ssm:GetParameter on /shepherd/ssh-key.pub",
        *(f"logs:FilterLogEvents on /aws/lambda/shepherd-{function}" for function in FUNCTIONS),
    },
    Person.OPERATOR: {
        "ssm:GetParameter on /shepherd/bmdb-password-operator",
        "ssm:GetParameter on /shepherd/installation-key",
        "ec2:DescribeInstances",
    },
    Person.ADMINISTRATOR: {
        "ssm:GetParameter on /shepherd/bmdb-password",
        "ssm:GetParameter on /shepherd/ssh-key",
        "ssm:DescribeParameters",
        "cloudformation:DescribeStacks on shepherd",
    },
}

ACTIONS = {
    "HeadBucket": "ListBucket",
    "ListObjectsV2": "ListBucket",
    "ListObjectVersions": "ListBucketVersions",
    "DeleteObject": "DeleteObjectVersion",
    "GetPublicAccessBlock": "GetBucketPublicAccessBlock",
    "PutPublicAccessBlock": "PutBucketPublicAccessBlock",
}
"""Where S3 calls the right otherwise than the request; an object is deleted by its version alone."""


def needed(service: str, operation: str, arguments: dict[str, Any]) -> tuple[str, str]:
    """Return the action and the resource that AWS asks its policies for."""
    resource = "*"
    if service == "ssm" and operation != "DescribeParameters":
        resource = f"arn:aws:ssm:{REGION}:{ACCOUNT}:parameter{arguments.get('Name', arguments.get('Path'))}"
    elif service == "s3":
        resource = "/".join([f"arn:aws:s3:::{arguments['Bucket']}", *filter(None, [arguments.get("Key")])])
    elif service == "logs":
        resource = f"arn:aws:logs:{REGION}:{ACCOUNT}:log-group:{arguments['logGroupName']}"
    elif service == "cloudformation":
        named = str(arguments.get("StackName") or arguments["ChangeSetName"])
        resource = named if named.startswith("arn:") else f"arn:aws:cloudformation:{REGION}:{ACCOUNT}:stack/{named}/1"
        resource = resource.replace(":changeSet/", ":stack/shepherd/")
    elif service == "ec2" and operation != "DescribeInstances":
        resource = f"arn:aws:ec2:{REGION}:{ACCOUNT}:instance/{arguments['InstanceIds'][0]}"
    return f"{service}:{ACTIONS.get(operation, operation)}", resource


def as_aws_enforces(allowed: list[dict[str, Any]]) -> Callable[[Any, str, Any], Any]:
    """Return how a client asks AWS as somebody who has these policies and no others."""
    ask = botocore.client.BaseClient._make_api_call
    context: dict[str, Any] = {"aws_RequestedRegion": REGION, "aws_ResourceTag/shepherd-fleet": "shepherd"}

    def asked(client: Any, operation: str, arguments: Any) -> Any:
        service = client.meta.service_model.service_name
        action, resource = needed(service, operation, arguments)
        if service != "sts" and not allows(allowed, action, resource, **context):
            who = f"User: arn:aws:iam::{ACCOUNT}:user/ana"
            message = f"{who} is not authorized to perform: {action} on resource: {resource}"
            code = "UnauthorizedOperation" if service == "ec2" else "AccessDeniedException"
            answer = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": 403}}
            raise botocore.exceptions.ClientError(answer, operation)
        return ask(client, operation, arguments)

    return asked


Deployed = Callable[..., Result]
"""A deployment: it runs a command with these policies, and without the option *but*."""


@pytest.fixture
def deployment(
    aws: None, shepherdctl: CommandLine, ec2: Ec2Fleet, fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Deployed]:
    ssm, s3, logs = boto3.client("ssm"), boto3.client("s3"), boto3.client("logs")
    private = ssh_keys.generate()
    for name, value in {
        **dict.fromkeys(("bmdb-password", *(f"bmdb-password-{role}" for role in ROLES)), "a-password"),
        "ssh-key": private,
        "ssh-key.pub": ssh_keys.public_line(private),
        "installation-key": ssh_keys.generate(),
    }.items():
        ssm.put_parameter(Name=f"/shepherd/{name}", Value=value, Type="SecureString")
    for function in FUNCTIONS:
        logs.create_log_group(logGroupName=f"/aws/lambda/shepherd-{function}")
    s3.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
    s3.put_object(Bucket=BUCKET, Key="settings.toml", Body=b"version = 1\n")
    (write_small(tmp_path) / "machines.csv").write_text("ID,Addr\nrack1-07,203.0.113.7\n")
    first, ended, quarantined = ec2.machines
    ec2.end(ended)
    stand_for = {"FIRST": first, "ENDED": ended, "QUARANTINED": quarantined, "FOLDER": str(tmp_path)}
    stand_for["NEW"] = ec2.create(uuid4())
    fleet.quarantine(ec2.machines[quarantined])
    paused = f"'{PAUSE}', '{ec2.machines[first]}', 'bob', 'a test'"
    fleet.sql(f"INSERT INTO pauses (pause_id, machine_id, owner, reason) VALUES ({paused})")
    shepherdctl.environment |= {
        "SHEPHERD_SETTINGS": f"s3://{BUCKET}/settings.toml",
        "SHEPHERD_BMDB_PASSWORD_PARAMETER": "/shepherd/bmdb-password",
        "SHEPHERD_INSTALLATION_KEY_SOURCE": "ssm:/shepherd/installation-key",
        "SHEPHERD_PROVIDER_SECURITY_GROUPS": "sg-0123456789abcdef0",
        "LOGNAME": "ana",
    }

    def begin(*_: object) -> None:
        message = "its own world begins here"
        raise ShepherdError(message)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(environment.Environment, "__init__", begin)
    visit_console(monkeypatch)
    adapters.secrets.cache_clear()
    wiring_settings.in_force.cache_clear()

    def run(name: str, allowed: list[dict[str, Any]], but: str = "") -> Result:
        words = ARGUMENTS[name].replace(but, "")
        for each, meaning in stand_for.items():
            words = words.replace(each, meaning)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(botocore.client.BaseClient, "_make_api_call", as_aws_enforces(allowed))
            return shepherdctl(*name.split(), *words.split())

    yield run
    adapters.secrets.cache_clear()
    wiring_settings.in_force.cache_clear()


def visit_console(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the console run until somebody has seen its first page."""
    serve, opened = uvicorn.Server.run, list[str]()
    monkeypatch.setattr(webbrowser, "open", opened.append)

    def run(server: uvicorn.Server, sockets: Any = None) -> None:
        thread = threading.Thread(target=serve, args=(server, sockets))
        thread.start()
        try:
            answer = requests.Session().get(opened[-1], timeout=30)
        finally:
            server.should_exit = True
            thread.join()
        if "not authorized" in answer.text or not answer.ok:
            raise ShepherdError(answer.text)

    monkeypatch.setattr(uvicorn.Server, "run", run)


def test_every_command_is_run_and_dry_runs_mean_asking() -> None:
    """But for those that do what the functions do by themselves."""

    def having(option: str) -> set[str]:
        all_commands = every_command().items()
        return {" ".join(words) for words, one in all_commands if any(option in each.opts for each in one.params)}

    assert {" ".join(words) for words in every_command()} == set(ARGUMENTS)
    assert having("--yes") == {name for name, arguments in ARGUMENTS.items() if "--yes" in arguments}
    assert having("--dry-run") - having("--yes") == {"db migrate", "run"}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_command_is_for_its_person_and_those_above(name: str, deployment: Deployed, fleet: Fleet) -> None:
    """
    Each of the three, the least first: what is refused changes nothing, and names all that is missing.

    Those above the first who may have the policies of that one, too. Without a terminal to ask on, nothing changes.
    """
    kinds, whose = list(Person), every_command()[tuple(name.split())].person
    for person in PEOPLE:
        before = fleet.content()
        if "--yes" in ARGUMENTS[name] and kinds.index(person) >= kinds.index(whose):
            unasked = deployment(name, statements(person), but="--yes")
            assert (unasked.exit_code, "confirm with --yes" in " ".join(unasked.stderr.split())) == (2, True)
            assert fleet.content() == before
        result = deployment(name, statements(person))
        said = " ".join(result.output.split())
        if kinds.index(person) < kinds.index(whose):
            lacking = kinds[kinds.index(person) + 1 : kinds.index(whose) + 1]
            assert result.exit_code == 1, said
            assert set(missing(result)) == set().union(*(RIGHTS[each] for each in lacking))
            assert fleet.content() == before
        elif name in STOPPED:
            assert "its own world begins here" in said
        else:
            assert result.exit_code in {0, 3}, said
            return


def test_an_administrator_upgrades_the_deployment(deployment: Deployed, tmp_path: Path) -> None:
    """Which also deletes code from before."""
    for number in range(2):
        build_small(tmp_path / "build", **{f"Other{number}": {"Type": "AWS::SQS::Queue"}})
        result = deployment("deploy", statements(Person.ADMINISTRATOR))
        assert result.exit_code == 0, result.output
    assert f"delete 1 of s3://{BUCKET}/code/" in result.output


def test_somebody_without_any_right_is_told_a_readers(deployment: Deployed) -> None:
    assert set(missing(deployment("status", []))) == RIGHTS[Person.READER]


def test_a_login_that_iam_refuses_is_told_with_its_action(
    deployment: Deployed, shepherdctl: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL tells only that authentication failed."""

    def refuse(*_: object, **__: object) -> None:
        message = 'PAM authentication failed for user "shepherd-reader"'
        raise StatementFailed(message, "28000")

    monkeypatch.setattr(adapters, "bmdb", refuse)
    iam = {"BMDB_AUTH": "iam", "BMDB_HOST": "db.example", "BMDB_ROLES": "shepherd"}
    shepherdctl.environment |= {f"SHEPHERD_{name}": value for name, value in iam.items()}
    assert missing(deployment("pauses", statements(Person.READER))) == ["rds-db:connect as shepherd-reader"]


def test_a_statement_that_the_database_refuses_says_for_whom(
    deployment: Deployed, shepherdctl: CommandLine, fleet: Fleet
) -> None:
    """Somebody may have set a database user of their own."""
    own = fleet.settings.of_role("reader").bmdb_user
    changed = {"SHEPHERD_BMDB_ROLES": "", "SHEPHERD_BMDB_USER": own, "SHEPHERD_BMDB_PASSWORD_PARAMETER": ""}
    shepherdctl.environment |= changed
    refused = deployment("pause", statements(Person.OPERATOR))
    assert "permission denied for table pauses" in refused.stderr
    assert "This command is for operators" in refused.stderr
    assert fleet.sql("SELECT count(*) FROM pauses") == [[1]]


def missing(result: Result) -> list[str]:
    return [line.removeprefix("  - ") for line in result.stderr.splitlines() if line.startswith("  - ")]
