import ast
import hashlib
import json
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import boto3
import pytest
from shepherd_core.adapters import ssh_keys
from shepherd_core.bmdb.schema.make_roles import RoleLogin, make
from shepherd_core.domain.clock import Deadline, Permission
from shepherd_core.domain.errors.provider import ProviderError
from shepherd_core.domain.machine import ProviderId
from shepherd_core.domain.provider import Capability
from shepherd_core.providers.latitude import name_of
from shepherd_core.settings.base import Settings, variable
from shepherd_core.settings.functions.bmdb import BmdbSettings
from shepherd_core.settings.functions.loops import RecovererSettings
from shepherd_core.settings.functions.specs import FUNCTIONS, LOOPS, ROLES
from shepherd_core.settings.providers import BUILT_IN, find
from shepherd_core.wiring import providers
from shepherd_core.wiring.adapters import CLOCK

from simulator.environment.certificate import Authority
from simulator.providers.equinix.api import EquinixApi
from simulator.providers.hetzner.objects import RobotServer
from simulator.providers.hetzner.robot import HetznerRobot
from simulator.providers.ironic.fake import FakeIronic
from simulator.providers.kit.hardware import NoHardware
from simulator.providers.kit.machines import FakeMachine
from simulator.providers.latitude.api import LatitudeApi
from tests.conftest import read_models_once
from tests.integration.deployment.test_handlers import invoke
from tests.support.bmdb.fleet import Fleet
from tests.support.bmdb.recovery import EARLIER_TICK
from tests.support.bmdb.tls_postgres import ADDRESS, TlsProxy
from tests.support.deployment.deployments import (
    EC2_SETTINGS,
    IAM,
    KEY,
    ONE_PASSWORD,
    PSEUDO,
    REQUIRED,
    ROOT,
    SMALLEST,
    VPC,
    Stack,
    deployed_name,
    stack_of,
)
from tests.support.deployment.iam import allows, listed
from tests.support.providers.ec2_api import moto_ec2
from tests.support.providers.scripted_http import Answer, Script, scripted_server

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
    "create_replace_root_volume_task": "ec2:CreateReplaceRootVolumeTask",
    "describe_instances": "ec2:DescribeInstances",
    "reboot_instances": "ec2:RebootInstances",
    "run_instances": "ec2:RunInstances",
    "start_instances": "ec2:StartInstances",
    "stop_instances": "ec2:StopInstances",
}
# The same of what only people ask for, with permissions of their own: no function releases machines or writes secrets.
BY_PEOPLE = {"terminate_instances", "delete_parameter", "get_paginator"}
# The same of what Powertools does with boto3 for us.
POWERTOOLS = {"aws_lambda_powertools.utilities.parameters.SSMProvider": "ssm:GetParameter"}
# Methods that clients have and that call nothing, or that are also methods of plain objects.
NO_CALLS = {"close", "can_paginate", "copy"}

WHERE = f"{PSEUDO['AWS::Region']}:{PSEUDO['AWS::AccountId']}"
Permissions = set[tuple[str, str]]
"""Actions, and the ARNs of what they are taken on."""


def parameter(name: str) -> str:
    return f"arn:aws:ssm:{WHERE}:parameter/shepherd/{name}"


def reads(*names: str) -> Permissions:
    return {("ssm:GetParameter", parameter(name)) for name in names}


def objects(*keys: str) -> Permissions:
    return {("s3:GetObject", f"arn:aws:s3:::bucket/{key}") for key in keys}


def logs_in(user: str) -> Permissions:
    return {("rds-db:connect", f"arn:aws:rds-db:{WHERE}:dbuser:{WITH_IAM}/{user}")}


def of_ec2(*actions: str) -> Permissions:
    """Return the permissions for actions: on what, and under which conditions, test_template_ec2.py tries."""
    return {(f"ec2:{action}", "") for action in actions}


PASSWORDS, ONE_LOGIN, WITH_IAM = "passwords", ONE_PASSWORD["BmdbLogin"], IAM["BmdbLogin"]
PASSWORD, SSH_KEY, PUBLIC_KEY = "bmdb-password", "ssh-key", "ssh-key.pub"
ROLE_PASSWORDS = [f"{PASSWORD}-{role}" for role in ROLES]
LIST, CA, BMC_CA = (f"documents/{name}" for name in ("machines.json", "bmdb-ca.pem", "bmc-ca.pem"))
AGENT, AGENT_CA, SETTINGS = "documents/agent", "documents/agent-ca.pem", "settings.toml"
REMEMBERS = {(f"ssm:{action}Parameter", parameter("last-update")) for action in ("Get", "Put")}

# By provider, what its loops ask for where it is no credential by the provider's name, and what single ones do besides.
OF_LOOPS: dict[str, Permissions] = {"static": set(), "redfish": reads("bmc/*"), "ec2": of_ec2("DescribeInstances")}
PUTS_KEYS = {"provisioner": reads(PUBLIC_KEY), "recoverer": reads(PUBLIC_KEY)}
BESIDES: dict[str, dict[str, Permissions]] = {
    **dict.fromkeys(BUILT_IN, PUTS_KEYS),
    "static": {},
    "redfish": {},
    "ec2": {
        "provisioner": of_ec2("RunInstances", "CreateTags") | reads(PUBLIC_KEY),
        "recoverer": of_ec2("CreateReplaceRootVolumeTask", "RebootInstances", "StartInstances", "StopInstances"),
    },
    "equinix": {"provisioner": reads(PUBLIC_KEY)},
    "hetzner": {"recoverer": reads(PUBLIC_KEY)},
}


def login(function: str, how: str) -> Permissions:
    """Return the permissions to log in to the database, and for the Migrator to make the others' logins."""
    name = deployed_name(function)
    if how == WITH_IAM:
        return logs_in("shepherd" if function == "migrator" else f"shepherd-{name}")
    if how == ONE_LOGIN:
        return reads(PASSWORD)
    makes = {("ssm:PutParameter", parameter(each)) for each in ROLE_PASSWORDS} | reads(PASSWORD, *ROLE_PASSWORDS)
    return makes if function == "migrator" else reads(f"{PASSWORD}-{name}")


def enters_machines(function: str, provider: str) -> bool:
    """
    Return whether the function gets the key that is root on machines, and no other function may.

    The Recoverer looks at machines before it interrupts them; those of a static list it never does.
    """
    return function == "initializer" or (function == "recoverer" and provider != "static")


def always(function: str, provider: str, how: str) -> Permissions:
    found = login(function, how) | objects(SETTINGS)
    if enters_machines(function, provider):
        found |= reads(SSH_KEY)
    if function == "initializer":  # and nobody may change these keys, so as to have another image installed
        found |= reads("installation-key.pub")
    if function in LOOPS:
        found |= OF_LOOPS.get(provider, reads(f"{provider}-credential"))
    return found | BESIDES[provider].get(function, set())


def sometimes(function: str, provider: str) -> Permissions:
    """Return the permissions for what settings may name, in S3 or in SSM, and for what happens seldom."""
    documents = [CA, *({"static": [LIST], "redfish": [LIST, BMC_CA]}.get(provider, []) if function in LOOPS else [])]
    found = reads(*documents) | objects(*documents)
    if function == "initializer":
        found |= objects(AGENT_CA, AGENT)
    if enters_machines(function, provider):
        found |= reads("ssh-key.previous")  # asked for a machine that refuses the current key
    if function == "migrator":  # when CloudFormation updates the stack
        found |= REMEMBERS
    return found


CASES = [
    *((function, provider, PASSWORDS) for function in FUNCTIONS for provider in BUILT_IN),
    ("agent_api", "static", ONE_LOGIN),
    *((function, "static", WITH_IAM) for function in FUNCTIONS),
    ("updater", "redfish", WITH_IAM),
]
EACH_CASE = ("function", "provider", "how")


def whole(provider: str, how: str = PASSWORDS) -> Stack:
    return stack_of({**SMALLEST[provider], "BmdbLogin": how, **VPC, "KmsKeyArn": KEY})


@pytest.mark.parametrize(EACH_CASE, CASES)
def test_a_role_may_do_exactly_what_the_table_says(function: str, provider: str, how: str) -> None:
    allowed: Permissions = set()
    for statement in whole(provider, how).statements(function):
        assert statement["Effect"] == "Allow"
        actions, resources = set(listed(statement["Action"])), listed(statement["Resource"])
        if statement["Sid"] in BY_THE_PLATFORM:
            assert actions == BY_THE_PLATFORM[statement["Sid"]]
        else:
            allowed |= {
                (action, "" if action.startswith("ec2:") else resource)
                for action in actions
                for resource in resources
                if action.startswith("ec2:") or resource.split(":")[2] == action.partition(":")[0]
            }
    assert allowed == always(function, provider, how) | sometimes(function, provider)


@pytest.fixture
def asked(aws: None) -> Permissions:
    found: Permissions = set()

    def called(params: dict[str, Any], model: Any, **_: object) -> None:
        service = model.service_model.service_name
        if service == "ec2":
            found.update(of_ec2(model.name, *["CreateTags"] * ("TagSpecifications" in params)))
        elif service == "ssm":
            name = re.sub(r"^/shepherd/(bmc/.*)?", lambda path: "bmc/*" if path[1] else "", params["Name"])
            found.add((f"ssm:{model.name}", parameter(name)))
        elif service == "s3" and params.get("ExpectedBucketOwner") == PSEUDO["AWS::AccountId"]:
            found.add((f"s3:{model.name}", f"arn:aws:s3:::{params['Bucket']}/{params['Key']}"))
        else:
            found.add((f"{service}:{model.name}", str(params)))

    def signing(class_attributes: dict[str, Any], **_: object) -> None:
        sign = class_attributes["generate_db_auth_token"]

        def noted(client: object, **wanted: Any) -> str:
            found.update(logs_in(wanted["DBUsername"]))
            token: str = sign(client, **wanted)
            return token

        class_attributes["generate_db_auth_token"] = noted

    boto3.setup_default_session()
    events = boto3._get_default_session().events
    events.register("provide-client-params.*", called)
    events.register_last("creating-client-class.rds", signing)
    return found


# The machine that each provider knows.
SERVER, INSTANCE = "e443df78-9558-467f-9ba9-1faf7a024204", "0a4bc1a8-7c5f-4c0f-9a53-6b4b5b1f0001"
KNOWN = {"redfish": "one", "hetzner": "1", "ironic": INSTANCE, "latitude": SERVER}


def ironic_nodes() -> FakeIronic:
    settings = REQUIRED["ironic"]
    ironic = FakeIronic(NoHardware(), secret=SECRET)
    _, used = (ironic.add(settings["machine_type"], {"ipv4_address": "192.0.2.1"}) for _ in range(2))
    info = {"shepherd_fleet": settings["fleet"]}
    ironic.nodes[used].update(provision_state="active", instance_uuid=INSTANCE, instance_info=info)
    return ironic


def latitude_servers() -> LatitudeApi:
    cloud = LatitudeApi(NoHardware(), secret=SECRET)
    ours = FakeMachine(id=SERVER, name=name_of(UUID(int=1), "1"), address="192.0.2.1", fields={"project": "ours-"})
    cloud.machines.add_active(ours)
    return cloud


SECRET = "a-user:a-password"
APIS: dict[str, Callable[[], Any]] = {
    "equinix": lambda: EquinixApi(
        NoHardware(), project_id=REQUIRED["equinix"]["project"], secret=SECRET, reservations=1
    ),
    "hetzner": lambda: HetznerRobot(NoHardware(), secret=SECRET, servers=[RobotServer(id="1", name="ours-1")]),
    "ironic": ironic_nodes,
    "latitude": latitude_servers,
}


@pytest.fixture(scope="module")
def aws() -> Iterator[None]:
    """Let every boto3 call of this module end in one AWS account: all cases read the same from it."""
    from moto import mock_aws  # noqa: PLC0415 - as in tests/conftest.py

    read_models_once()
    with mock_aws():
        yield


@pytest.fixture(scope="module")
def outside(
    shared_database: BmdbSettings, aws: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[TlsProxy, Script]]:
    """
    Yield a database that speaks TLS and has its roles, and a BMC that knows no request; what may be read is there.

    The BMC answers, because a request without an answer would be tried again.
    """
    authority = Authority(tmp_path_factory.mktemp("authority"))
    ca = authority.path.read_text()
    ssm, s3 = map(boto3.Session().client, ("ssm", "s3"))  # whose calls are not noted
    private_key = ssh_keys.generate()
    secrets = dict.fromkeys([PASSWORD, "bmc/one", *(f"{name}-credential" for name in APIS)], SECRET)
    keys = {SSH_KEY: private_key, PUBLIC_KEY: ssh_keys.public_line(private_key)}
    for name, value in {**secrets, **keys, CA: ca, BMC_CA: ca}.items():
        ssm.put_parameter(Name=f"/shepherd/{name}", Value=value, Type="SecureString")
    s3.create_bucket(Bucket="bucket", CreateBucketConfiguration={"LocationConstraint": s3.meta.region_name})
    for key, content in {
        SETTINGS: "version = 1",
        AGENT: "an agent",
        **dict.fromkeys((CA, BMC_CA, AGENT_CA), ca),
    }.items():
        s3.put_object(Bucket="bucket", Key=key, Body=content.encode())
    fleet = Fleet(shared_database, CLOCK)
    fleet.sql("CREATE ROLE rds_iam")
    make(fleet.connection, {role: RoleLogin(f"shepherd-{role}") for role in ROLES})
    fleet.close()
    server = Path(shared_database.bmdb_host) / f".s.PGSQL.{shared_database.bmdb_port}"
    with (
        TlsProxy(server, authority.context(ADDRESS)) as database,
        scripted_server(lambda _: Answer(404), authority.context("127.0.0.1")) as bmc,
    ):
        yield database, bmc


def network() -> dict[str, str]:
    """Return what instances are launched with; moto takes a second to make it."""
    ec2 = boto3.Session().client("ec2")
    moto_ec2(ec2.meta.region_name).reset()
    return {
        "subnets": ec2.describe_subnets()["Subnets"][0]["SubnetId"],
        "security_groups": ec2.describe_security_groups()["SecurityGroups"][0]["GroupId"],
        "machine_type": "t3.small",  # whose root volume can be replaced
    }


@pytest.fixture
def deploy(
    fleet: Fleet, outside: tuple[TlsProxy, Script], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., dict[str, str]]]:
    """Return a function that sets a function's environment, as deployed; with IAM, documents are in S3."""
    ssm, s3 = map(boto3.Session().client, ("ssm", "s3"))
    database, bmc = outside
    rack = [{"ID": "one", "Addr": "192.0.2.1", "Bmc": bmc.url, "Credential": "/shepherd/bmc/one"}]
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with ExitStack() as apis:

        def deploy(function: str, provider: str, how: str, **settings: str) -> dict[str, str]:
            machines = json.dumps(rack if provider == "redfish" else [])
            ssm.put_parameter(Name=f"/shepherd/{LIST}", Value=machines, Type="SecureString", Overwrite=True)
            s3.put_object(Bucket="bucket", Key=LIST, Body=machines.encode())
            ssm.delete_parameters(Names=[f"/shepherd/{name}" for name in ROLE_PASSWORDS])
            for name in ROLE_PASSWORDS if function != "migrator" else ():  # which makes them
                ssm.put_parameter(Name=f"/shepherd/{name}", Value="a-password", Type="SecureString")
            place = "s3://bucket/" if how == WITH_IAM else "ssm:/shepherd/"
            settings = {
                "bmdb_port": str(database.port),
                "bmdb_name": fleet.settings.bmdb_name,
                "bmdb_user": "postgres",  # whom the database of the tests belongs to
                "bmdb_ca_source": f"{place}{CA}",
                "agent_endpoint": "https://agents.example.com",
                "creation_seconds": "0",
                **REQUIRED[provider],
                **(network() if provider == "ec2" else {}),
                **settings,
            }
            if provider in {"static", "redfish"}:
                settings |= {"machines": f"{place}{LIST}", "ca_source": f"{place}{BMC_CA}"}
            if how == WITH_IAM:
                settings |= {"agent_source": f"s3://bucket/{AGENT}", "agent_ca_source": f"s3://bucket/{AGENT_CA}"}
                settings["agent_sha256"] = hashlib.sha256(b"an agent").hexdigest()
            if provider in APIS:
                settings["api_url"] = apis.enter_context(APIS[provider]()).url
            of_provider = find(provider).settings
            chosen = {
                variable(of_provider if name in of_provider.model_fields else Settings, name): value
                for name, value in settings.items()
            }
            deployment = {**SMALLEST[provider], "BmdbLogin": how, "BmdbHost": ADDRESS}
            environment = stack_of(deployment).environment(function)
            for name, value in {**chosen, **environment}.items():
                monkeypatch.setenv(name, value)
            return environment

        yield deploy


def plant_work(fleet: Fleet, function: str, provider: str) -> ProviderId:
    provider_id = KNOWN.get(provider, "machine-1")
    if (function, provider) == ("recoverer", "ec2"):
        tags = [{"Key": "shepherd-fleet", "Value": PSEUDO["AWS::StackName"]}]
        made = boto3.Session().client("ec2").run_instances(
            ImageId=EC2_SETTINGS["image"],
            InstanceType="t3.small",
            MinCount=1,
            MaxCount=1,
            TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
        )  # fmt: skip
        provider_id = made["Instances"][0]["InstanceId"]
    if function in {"initializer", "updater", "recoverer"}:
        fleet.sql(EARLIER_TICK)
        machine_id = fleet.unhealthy_machine() if function == "recoverer" else fleet.provided_machine()
        fleet.change(
            f"UPDATE machine_provided SET provider = '{provider}', provider_id = '{provider_id}', "
            "provider_ip_address = '127.0.0.1'",
            f"INSERT INTO machine_host_key VALUES ('{machine_id}', 'ssh-ed25519 AAAA', now())",
        )
    return ProviderId(provider_id)


def take_all_steps(provider_id: ProviderId) -> None:
    """Do to a machine all that the Recoverer may come to do, the gravest first."""
    _, provider = providers.load(RecovererSettings)
    for capability, act in (
        (Capability.REINSTALL, provider.reinstall),
        (Capability.POWER_CYCLE, provider.power_cycle),
        (Capability.REBOOT, provider.reboot),
    ):
        if capability in provider.capabilities:
            with suppress(ProviderError):  # the BMC refuses; and what is waited for takes longer than this
                act(provider_id, Permission(Deadline(CLOCK, 15)))


@pytest.mark.parametrize(
    EACH_CASE,
    [
        (function, provider, how)
        for function, provider, how in CASES
        if provider in ({"static", "redfish", "ec2", *APIS} if function in LOOPS else {"static"})
        and (function, provider) != ("recoverer", "static")  # which cannot reboot
    ],
)
def test_a_function_asks_for_what_the_table_says(
    function: str, provider: str, how: str, fleet: Fleet, deploy: Callable[..., dict[str, str]], asked: Permissions
) -> None:
    variables = deploy(function, provider, how)
    provider_id = plant_work(fleet, function, provider)
    event = json.loads((ROOT / "events" / f"{function}.json").read_text())
    if function == "agent_api":
        event["rawPath"] = f"{variables['SHEPHERD_PATH_PREFIX']}/heartbeat"
    with suppress(ProviderError):  # the BMC refuses, so that the states of most machines are unknown
        invoke(function, event)
    if function == "recoverer":
        take_all_steps(provider_id)
    named = objects(CA, LIST, BMC_CA, AGENT, AGENT_CA) if how == WITH_IAM else reads(CA, LIST, BMC_CA)
    assert asked == always(function, provider, how) | (sometimes(function, provider) & named)


def test_the_migrator_remembers_an_update(
    deploy: Callable[..., dict[str, str]], asked: Permissions, cloudformation: Script
) -> None:
    """With wrong settings, so that it goes no further."""
    deploy("migrator", "static", PASSWORDS, concurrency="0")
    event = {"RequestType": "Update", "StackId": PSEUDO["AWS::StackId"], "ResponseURL": cloudformation.url}
    invoke("migrator", event)
    assert asked == REMEMBERS | objects(SETTINGS)


def test_the_cases_know_every_call_that_the_code_can_make(aws: None) -> None:
    """A call that is added to the code, and to none of the cases, would fail in AWS for want of a permission."""
    package = ROOT / "layers" / "shepherd_core" / "shepherd_core"
    files = [*package.rglob("*.py"), *ROOT.glob("functions/*/*.py")]
    nodes = [node for path in files for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    calls = [node for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    # Of the names of services, nothing but a literal is understood here.
    services = {ast.literal_eval(node.args[0]) for node in calls if ast.unparse(node.func) == "aws.client"}
    of_clients = {name for service in services for name in dir(boto3.client(service)) if name[0] != "_"} - NO_CALLS
    assert {ast.unparse(node.func).rpartition(".")[2] for node in calls} & of_clients == METHODS.keys() | BY_PEOPLE
    talking = {
        f"{node.module}.{each.name}"
        for node in nodes
        if isinstance(node, ast.ImportFrom)
        and re.match(r"aws_lambda_powertools\.utilities\.(?!typing|.*exceptions)", node.module or "")
        for each in node.names
    }
    assert talking == POWERTOOLS.keys()
    assert {action for case in CASES for action, _ in always(*case)} == {
        *METHODS.values(),
        *POWERTOOLS.values(),
        "ec2:CreateTags",  # which EC2 wants besides for a call that says how the new thing shall be tagged
    }


def test_the_migrator_replaces_no_password() -> None:
    """
    One that an operator has set stays, and a run beside another stores none that the database does not have.

    AWS documents the key for a refusal of "true" only: a request without it must not be refused.
    """
    statements = whole("static").statements("migrator")
    (made,) = [each for each in statements if each["Sid"] == "MakeRolePasswords"]
    for resource in made["Resource"]:
        assert allows(statements, "ssm:PutParameter", resource, ssm_Overwrite="false")
        assert not allows(statements, "ssm:PutParameter", resource, ssm_Overwrite="true")
        assert allows(statements, "ssm:PutParameter", resource)
