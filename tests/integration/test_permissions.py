"""What each function asks of AWS is what its role may do, and the other way round."""

from __future__ import annotations

import ast
import gc
import importlib
import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from shepherd_core import edges, runtime
from shepherd_core.bmdb.connection import Connection

from simulator.equinix_api import EquinixApi
from simulator.equinix_hardware import NoHardware
from simulator.lambda_environment import Context
from tests.cloudformation import PSEUDO, Stack
from tests.deployments import EQUINIX, IAM, KEY, ROOT, STATIC, VPC, logical_id, transformed
from tests.integration.tls_postgres import ADDRESS, Authority, Door

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    from tests.integration.fleet import Fleet

# What the platform does with a function's role, for the function and not by its code.
BY_THE_PLATFORM = {
    "Log": {"logs:CreateLogStream", "logs:PutLogEvents"},
    "ReportFailures": {"sqs:SendMessage"},
    "DecryptWhatIsRead": {"kms:Decrypt"},
    "JoinVpc": {
        "ec2:AssignPrivateIpAddresses",
        "ec2:CreateNetworkInterface",
        "ec2:DeleteNetworkInterface",
        "ec2:DescribeNetworkInterfaces",
        "ec2:DescribeSubnets",
        "ec2:UnassignPrivateIpAddresses",
    },
}

# Every method of a boto3 client that the code calls, and the action that it takes. A new one belongs here, into the
# cases below, and into template.yaml.
METHODS = {
    "get_object": "s3:GetObject",
    "put_parameter": "ssm:PutParameter",
    "generate_db_auth_token": "rds-db:connect",
}
# The same of what Powertools does with boto3 for us.
POWERTOOLS = {"aws_lambda_powertools.utilities.parameters.SSMProvider": "ssm:GetParameter"}
# Methods that clients have and that call nothing, or that are also methods of plain objects.
NO_CALLS = {"close", "can_paginate", "copy"}


def parameter(name: str) -> str:
    """Return the ARN of an SSM parameter."""
    return f"arn:aws:ssm:{PSEUDO['AWS::Region']}:{PSEUDO['AWS::AccountId']}:parameter{name}"


def reads(*names: str) -> set[tuple[str, str]]:
    """Return the permissions to read SSM parameters, and objects as ``BUCKET/KEY``."""
    return {
        ("ssm:GetParameter", parameter(name)) if name.startswith("/") else ("s3:GetObject", f"arn:aws:s3:::{name}")
        for name in names
    }


PASSWORD, LIST, SSH_KEY, API_KEY = (
    f"/shepherd/{name}" for name in ("bmdb-password", "machines", "ssh-key", "equinix-api-key")
)
MAKES_SSH_KEY = {("ssm:PutParameter", parameter(SSH_KEY))}
USER = "postgres"
TOKEN = {
    (
        "rds-db:connect",
        f"arn:aws:rds-db:{PSEUDO['AWS::Region']}:{PSEUDO['AWS::AccountId']}:dbuser:{IAM['BmdbResourceId']}/{USER}",
    )
}
LIST_IN_S3 = {**STATIC, "StaticList": "s3://lists/machines.json"}
CA_IN_SSM, CA_IN_S3 = {"BmdbCaSource": "ssm:/ca"}, {"BmdbCaSource": "s3://authorities/ca.pem"}
AGENT_CA = {"AgentCaSource": "s3://agents/ca.pem"}
# Left over from other choices: no reason to read them.
LEFT_OVER = {
    **{name: value for name, value in EQUINIX.items() if name.startswith("Equinix")},
    "BmdbResourceId": "db-OTHER",
}


@dataclass(frozen=True)
class Case:
    """A function in a deployment, and what it asks of AWS on the way through everything that it can do."""

    function: str
    deployment: dict[str, str]
    asks: set[tuple[str, str]]


CASES = [
    Case("migrator", {**STATIC, **CA_IN_SSM}, reads(PASSWORD, "/ca")),
    Case("migrator", {**EQUINIX, **CA_IN_S3, **IAM}, TOKEN | reads("authorities/ca.pem")),
    Case("provisioner", {**STATIC, **CA_IN_SSM}, reads(PASSWORD, LIST, "/ca")),
    Case("provisioner", {**LIST_IN_S3, **CA_IN_SSM, **LEFT_OVER, **IAM}, TOKEN | reads("lists/machines.json", "/ca")),
    Case("provisioner", {**EQUINIX, **CA_IN_SSM}, MAKES_SSH_KEY | reads(PASSWORD, API_KEY, SSH_KEY, "/ca")),
    Case(
        "provisioner",
        {**EQUINIX, **CA_IN_S3, "StaticList": STATIC["StaticList"]},
        MAKES_SSH_KEY | reads(PASSWORD, API_KEY, SSH_KEY, "authorities/ca.pem"),
    ),
    Case("initializer", {**STATIC, **CA_IN_SSM}, MAKES_SSH_KEY | reads(PASSWORD, LIST, SSH_KEY, "/ca", "bucket/agent")),
    Case(
        "initializer",
        {**LIST_IN_S3, **CA_IN_S3, **AGENT_CA, **IAM},
        TOKEN
        | MAKES_SSH_KEY
        | reads("lists/machines.json", SSH_KEY, "authorities/ca.pem", "agents/ca.pem", "bucket/agent"),
    ),
    Case(
        "initializer",
        {**EQUINIX, **CA_IN_SSM, "AgentSource": str(ROOT / "template.yaml")},  # any file
        MAKES_SSH_KEY | reads(PASSWORD, API_KEY, SSH_KEY, "/ca"),
    ),
    Case("recoverer", {**EQUINIX, **CA_IN_SSM}, reads(PASSWORD, API_KEY, "/ca")),
    Case("recoverer", {**EQUINIX, **CA_IN_S3, **IAM}, TOKEN | reads(API_KEY, "authorities/ca.pem")),
    Case("updater", {**STATIC, **CA_IN_SSM}, reads(PASSWORD, LIST, "/ca")),
    Case("updater", {**LIST_IN_S3, **CA_IN_S3, **IAM}, TOKEN | reads("lists/machines.json", "authorities/ca.pem")),
    Case("updater", {**EQUINIX, **CA_IN_SSM}, reads(PASSWORD, API_KEY, "/ca")),
    Case("agent_api", {**STATIC, **CA_IN_SSM}, reads(PASSWORD, "/ca")),
    Case("agent_api", {**EQUINIX, **CA_IN_S3, **IAM}, TOKEN | reads("authorities/ca.pem")),
]


@pytest.fixture
def asked(aws: None) -> Iterator[set[tuple[str, str]]]:
    """Return what grows by the action and the resource of every call that a function makes to AWS."""
    found: set[tuple[str, str]] = set()

    def called(params: dict[str, Any], model: Any, **_: object) -> None:
        action = f"{model.service_model.service_name}:{model.name}"
        resource = parameter(params["Name"]) if "Name" in params else f"arn:aws:s3:::{params['Bucket']}/{params['Key']}"
        found.add((action, resource))

    def signed(**_: object) -> None:
        found.update(TOKEN)

    boto3.setup_default_session()
    events = boto3._get_default_session().events
    events.register("provide-client-params.*", called)
    events.register("choose-signer.rds.connect", signed)
    yield found
    # What the process of a function keeps between invocations ends here.
    for thing in gc.get_objects():
        if type(thing) is Connection:
            thing.close()
    modules: tuple[ModuleType, ...] = (runtime, edges)
    for value in [value for module in modules for value in vars(module).values()]:
        if hasattr(value, "cache_clear"):
            value.cache_clear()


@pytest.fixture
def deployed(
    fleet: Fleet, aws: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Case], dict[str, str]]]:
    """Return what puts a function's environment in place, as deployed; everything that it may read is there."""
    assert fleet.settings.bmdb_user == USER
    authority = Authority(tmp_path)
    ca = authority.path.read_text()
    others = boto3.Session()  # whose calls nobody notes
    ssm, s3 = others.client("ssm"), others.client("s3")
    for name, value in {PASSWORD: "a-password", API_KEY: "a-key", LIST: "[]", "/ca": ca}.items():
        ssm.put_parameter(Name=name, Value=value, Type="SecureString")
    for bucket, key, content in (
        ("bucket", "agent", "an agent"),
        ("lists", "machines.json", "[]"),
        ("authorities", "ca.pem", ca),
        ("agents", "ca.pem", ca),
    ):
        place = {"LocationConstraint": others.region_name}
        s3.create_bucket(Bucket=bucket, CreateBucketConfiguration=place)
        s3.put_object(Bucket=bucket, Key=key, Body=content.encode())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    server = Path(fleet.settings.bmdb_host) / f".s.PGSQL.{fleet.settings.bmdb_port}"
    project = EquinixApi(NoHardware(), project_id=EQUINIX["EquinixProjectId"], api_key="a-key", reservations=1)
    with Door(server, authority.context()) as door, project as api:

        def deploy(case: Case) -> dict[str, str]:
            database = {"BmdbHost": ADDRESS, "BmdbPort": str(door.port), "BmdbName": fleet.settings.bmdb_name}
            stack = Stack(transformed(), {**case.deployment, **database, "BmdbUser": USER})
            function = stack.resources[logical_id(case.function)]["Properties"]
            environment: dict[str, str] = function["Environment"]["Variables"]
            for name, value in {**environment, "SHEPHERD_EQUINIX_API_URL": api.url}.items():
                monkeypatch.setenv(name, value)
            return environment

        yield deploy


def plant_work(fleet: Fleet, case: Case) -> None:
    """Let there be a machine that the function has to do something with."""
    provider = case.deployment.get("Provider", "static")
    if case.function in {"initializer", "updater"}:
        fleet.provided_machine(provider)
    elif case.function == "recoverer":
        fleet.change(fleet.silent_machine(), f"UPDATE machine_provided SET provider = '{provider}'")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.function)
def test_a_function_asks_for_what_the_table_says(
    case: Case, fleet: Fleet, deployed: Callable[[Case], dict[str, str]], asked: set[tuple[str, str]]
) -> None:
    """It runs as deployed: with the variables that the template gives it, against all that they name."""
    deployed(case)
    plant_work(fleet, case)
    event = json.loads((ROOT / "events" / f"{case.function}.json").read_text())
    handler = importlib.import_module(f"functions.{case.function}.app").lambda_handler
    handler(event, Context("a-request", case.function, time.monotonic() + 300))
    assert asked == case.asks


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.function)
def test_a_role_may_do_what_the_table_says_and_nothing_else(case: Case) -> None:
    """Neither less, which fails at night, nor more, which somebody may use who should not."""
    stack = Stack(transformed(), {**case.deployment, **VPC, "KmsKeyArn": KEY, "BmdbUser": USER})
    allowed: set[tuple[str, str]] = set()
    for statement in stack.statements(logical_id(case.function)):
        assert statement["Effect"] == "Allow"
        action = statement["Action"]
        actions = {action} if isinstance(action, str) else set(action)
        if statement["Sid"] in BY_THE_PLATFORM:
            assert actions == BY_THE_PLATFORM[statement["Sid"]]
        else:
            allowed |= {(each, statement["Resource"]) for each in actions}
    assert allowed == case.asks


def _calls(tree: ast.AST) -> Iterator[str]:
    """Yield the names of all methods that a module calls."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node.func.attr


def _services(tree: ast.AST) -> Iterator[str]:
    """Yield the services that a module makes clients for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "aws.client":
            yield ast.literal_eval(node.args[0])  # nothing but a literal is understood here


def _powertools(tree: ast.AST) -> Iterator[str]:
    """Yield what a module imports of those parts of Powertools that talk to AWS."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("aws_lambda_powertools.utilities"):
            yield from (f"{node.module}.{each.name}" for each in node.names)


def test_the_cases_know_every_call_that_the_code_can_make(aws: None) -> None:
    """A call that is added to the code, and to none of the cases, would fail in AWS for want of a permission."""
    package = ROOT / "layers" / "shepherd_core" / "shepherd_core"
    trees = [
        ast.parse(path.read_text(encoding="utf-8")) for path in [*package.rglob("*.py"), *ROOT.glob("functions/*/*.py")]
    ]
    services = {service for tree in trees for service in _services(tree)}
    of_clients = {name for service in services for name in dir(boto3.client(service)) if name[0] != "_"} - NO_CALLS
    assert {name for tree in trees for name in _calls(tree)} & of_clients == METHODS.keys()
    talking = {
        name for tree in trees for name in _powertools(tree) if "typing" not in name and "exceptions" not in name
    }
    assert talking == POWERTOOLS.keys()
    assert {action for case in CASES for action, _ in case.asks} == {*METHODS.values(), *POWERTOOLS.values()}


def test_only_joining_a_network_has_no_narrower_resource_and_no_code_may_do_it() -> None:
    """EC2 knows no resource for it; so the condition keeps the function itself from it."""
    stack = Stack(transformed(), {**STATIC, **VPC})
    wide = [each for each in stack.statements("InitializerFunction") if "*" in str(each["Resource"])]
    assert [each["Sid"] for each in wide] == ["JoinVpc"]
    assert wide[0]["Condition"] == {"Null": {"lambda:SourceFunctionArn": "true"}}


def test_decryption_is_for_what_is_read_alone() -> None:
    """The key may protect other things, too."""
    stack = Stack(transformed(), {**STATIC, "KmsKeyArn": KEY})
    (statement,) = [each for each in stack.statements("InitializerFunction") if each["Sid"] == "DecryptWhatIsRead"]
    assert statement["Resource"] == KEY
    region, suffix = PSEUDO["AWS::Region"], PSEUDO["AWS::URLSuffix"]
    assert statement["Condition"] == {
        "StringEquals": {"kms:ViaService": [f"ssm.{region}.{suffix}", f"s3.{region}.{suffix}"]}
    }
