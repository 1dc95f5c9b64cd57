"""What each function asks of AWS is what its role may do, and the other way round."""

import ast
import hashlib
import importlib
import json
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
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
from shepherd_core.settings.providers import find
from shepherd_core.wiring import providers
from shepherd_core.wiring.adapters import CLOCK

from simulator.environment.certificate import Authority
from simulator.lambda_.environment import Context
from simulator.providers.equinix.api import EquinixApi
from simulator.providers.hetzner.objects import RobotServer
from simulator.providers.hetzner.robot import HetznerRobot
from simulator.providers.ironic.fake import FakeIronic
from simulator.providers.kit.hardware import NoHardware
from simulator.providers.kit.machines import FakeMachine
from simulator.providers.latitude.api import LatitudeApi
from tests.conftest import read_models_once
from tests.support.bmdb.fleet import Fleet
from tests.support.bmdb.recovery import EARLIER_TICK
from tests.support.bmdb.tls_postgres import ADDRESS, TlsProxy
from tests.support.deployment.deployments import (
    EACH,
    EC2,
    EC2_SETTINGS,
    EQUINIX,
    HETZNER,
    IAM,
    IRONIC,
    KEY,
    LATITUDE,
    ONE_PASSWORD,
    PSEUDO,
    REDFISH,
    REQUIRED,
    ROOT,
    STATIC,
    VPC,
    Stack,
    deployed_name,
    stack_of,
)
from tests.support.deployment.iam import allows
from tests.support.providers.ec2_api import moto_ec2
from tests.support.providers.scripted_http import Script

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
# What EC2 wants besides for a call that says how the new thing shall be tagged.
WITH_TAGS = "ec2:CreateTags"
# The same of what only people ask for, with permissions of their own: no function releases machines or writes secrets.
BY_PEOPLE = {"terminate_instances", "delete_parameter", "get_paginator"}
# The same of what Powertools does with boto3 for us.
POWERTOOLS = {"aws_lambda_powertools.utilities.parameters.SSMProvider": "ssm:GetParameter"}
# Methods that clients have and that call nothing, or that are also methods of plain objects.
NO_CALLS = {"close", "can_paginate", "copy"}


def parameter(name: str) -> str:
    return f"arn:aws:ssm:{PSEUDO['AWS::Region']}:{PSEUDO['AWS::AccountId']}:parameter{name}"


def of_ec2(action: str, *kinds: str) -> set[tuple[str, str]]:
    """Return the permissions for an action on things of EC2, whichever they are; of an image only this one."""
    where = f"arn:aws:ec2:{PSEUDO['AWS::Region']}:"
    owner = {kind: "" if kind.startswith("image") else PSEUDO["AWS::AccountId"] for kind in kinds}
    return {(f"ec2:{action}", f"{where}{owner[kind]}:{kind if '/' in kind else kind + '/*'}") for kind in kinds}


def needed_of_ec2(action: str, params: dict[str, Any]) -> set[tuple[str, str]]:
    """Return the permissions that EC2 wants for a call, as the Service Authorization Reference tells."""
    image = [f"image/{params['ImageId']}"] if "ImageId" in params else []
    if action == "DescribeInstances":
        return {("ec2:DescribeInstances", "*")}
    if action == "RunInstances":
        kinds = ("instance", "volume", "network-interface", "subnet", "security-group")
        tagged = [each["ResourceType"] for each in params["TagSpecifications"]]
        return of_ec2(action, *kinds, *image) | of_ec2("CreateTags", *tagged)
    if action == "CreateReplaceRootVolumeTask":
        return of_ec2(action, "instance", "volume", "replace-root-volume-task", *image)
    return of_ec2(action, "instance")


def reads(*names: str) -> set[tuple[str, str]]:
    """Return the permissions to read SSM parameters, and objects as ``BUCKET/KEY``."""
    return {
        ("ssm:GetParameter", parameter(name)) if name.startswith("/") else ("s3:GetObject", f"arn:aws:s3:::{name}")
        for name in names
    }


PASSWORD, LIST, CA, BMC_CA, SSH_KEY, PREVIOUS_KEY, PUBLIC_KEY, API_KEY, ROBOT, NODES, CLOUD, KEYS, SIGNING_KEY = (
    f"/shepherd/{name}"
    for name in (
        "bmdb-password",
        "documents/machines.json",
        "documents/bmdb-ca.pem",
        "documents/bmc-ca.pem",
        "ssh-key",
        "ssh-key.previous",
        "ssh-key.pub",
        "equinix-credential",
        "hetzner-credential",
        "ironic-credential",
        "latitude-credential",
        "installation-key.pub",
        "installation-key",
    )
)
SETTINGS = "bucket/settings.toml"
ACCOUNT = PSEUDO["AWS::AccountId"]
"""Every bucket that is read belongs to it, which S3 is asked to check."""
S3_LIST, S3_CA, S3_BMC_CA, S3_AGENT_CA, S3_AGENT = (
    f"bucket/documents/{name}" for name in ("machines.json", "bmdb-ca.pem", "bmc-ca.pem", "agent-ca.pem", "agent")
)
BMCS = "/shepherd/bmc/*"
ROLE_PASSWORDS = [f"{PASSWORD}-{role}" for role in ROLES]
MAKES_PASSWORDS = {("ssm:PutParameter", parameter(name)) for name in ROLE_PASSWORDS}
OWNER = "postgres"


def logs_in(user: str) -> set[tuple[str, str]]:
    where = f"{PSEUDO['AWS::Region']}:{PSEUDO['AWS::AccountId']}:dbuser:{IAM['BmdbLogin']}"
    return {("rds-db:connect", f"arn:aws:rds-db:{where}/{user}")}


LIST_IN_SSM, RACKS_IN_SSM = {"machines": f"ssm:{LIST}"}, {"machines": f"ssm:{LIST}"}
RACKS_IN_S3 = REQUIRED["redfish"]
CA_IN_SSM, CA_IN_S3 = {"bmdb_ca_source": f"ssm:{CA}"}, {"bmdb_ca_source": f"s3://{S3_CA}"}
BMC_CA_IN_SSM, BMC_CA_IN_S3 = {"ca_source": f"ssm:{BMC_CA}"}, {"ca_source": f"s3://{S3_BMC_CA}"}
AGENT_CA = {"agent_ca_source": f"s3://{S3_AGENT_CA}"}
OWN_AGENT = {"agent_source": f"s3://{S3_AGENT}", "agent_sha256": hashlib.sha256(b"an agent").hexdigest()}
VIRTUAL = {"machine_type": "t3.small"}  # whose root volume can be replaced
SEES = {("ec2:DescribeInstances", "*")}
LAST_UPDATE = "/shepherd/last-update"
REMEMBERS = {(f"ssm:{action}Parameter", parameter(LAST_UPDATE)) for action in ("Get", "Put")}
IMAGE = f"image/{EC2_SETTINGS['image']}"
LAUNCHES = of_ec2(
    "RunInstances", "instance", "volume", "network-interface", "subnet", "security-group", IMAGE
) | of_ec2("CreateTags", "instance", "volume")
RESTARTS = of_ec2("CreateReplaceRootVolumeTask", "instance", "volume", "replace-root-volume-task", IMAGE).union(
    *(of_ec2(action, "instance") for action in ("RebootInstances", "StartInstances", "StopInstances"))
)
# A BMC that nobody answers for, which the credential is read for all the same; and what else the providers know.
RACK = '[{"ID": "one", "Addr": "192.0.2.1", "Bmc": "https://127.0.0.1:9", "Credential": "/shepherd/bmc/one"}]'
SERVER = "e443df78-9558-467f-9ba9-1faf7a024204"
INSTANCE = "0a4bc1a8-7c5f-4c0f-9a53-6b4b5b1f0001"
KNOWN = {"redfish": "one", "hetzner": "1", "ironic": INSTANCE, "latitude": SERVER}


# Images and launch templates are permitted by their ids, wherever they are; test_template_ec2.py
# tries what that means.
EVERYWHERE = {resource: f"arn:*:ec2:*::{IMAGE}" for _, resource in LAUNCHES | RESTARTS if resource.endswith(IMAGE)}
UNNAMED = re.compile(
    r"arn:\*:ec2:.*/(?!ami-)|arn:\*:ec2:.*:launch-template/|arn:aws:ec2:[^:]*:[^:]*:"
    r"((image|snapshot|key-pair|placement-group)/\*)"
)


@dataclass(frozen=True)
class Case:
    function: str
    deployment: dict[str, str]
    asks: set[tuple[str, str]]
    settings: dict[str, str] = field(default_factory=dict)
    update: bool = False
    """CloudFormation invokes it for an Update of the stack, and the settings are wrong."""

    @property
    def provider(self) -> str:
        return self.deployment.get("Provider", "static")

    @property
    def may_ask(self) -> set[tuple[str, str]]:
        """Return the permissions for what the settings may name: documents of these names, in S3 or in SSM."""
        found = reads(SETTINGS, CA, S3_CA)
        if self.function in LOOPS and self.provider in {"static", "redfish"}:
            found |= reads(LIST, S3_LIST)
        if self.function in LOOPS and self.provider == "redfish":
            found |= reads(BMC_CA, S3_BMC_CA)
        if self.function == "initializer":
            found |= reads(S3_AGENT_CA, S3_AGENT)
        if self.function in ("initializer", "recoverer"):
            found |= reads(PREVIOUS_KEY)  # asked for a machine that refuses the current key
        if self.function == "migrator":  # when CloudFormation updates the stack
            found |= REMEMBERS
        return found

    @property
    def login(self) -> set[tuple[str, str]]:
        """Return the permissions to log in to the database, and for the Migrator to make the others' logins."""
        name, how = deployed_name(self.function), self.deployment.get("BmdbLogin")
        if how == IAM["BmdbLogin"]:
            return logs_in("shepherd" if self.function == "migrator" else f"shepherd-{name}")
        if how == ONE_PASSWORD["BmdbLogin"]:
            return reads(PASSWORD)
        if self.function == "migrator":
            return MAKES_PASSWORDS | reads(PASSWORD, *ROLE_PASSWORDS)
        return reads(f"{PASSWORD}-{name}")


CASES = [
    Case("migrator", STATIC, reads(CA), CA_IN_SSM),
    Case("migrator", {**EQUINIX, **IAM}, reads(S3_CA), CA_IN_S3),
    Case("migrator", STATIC, REMEMBERS, {"concurrency": "0"}, update=True),
    Case("provisioner", STATIC, reads(LIST, CA), {**LIST_IN_SSM, **CA_IN_SSM}),
    Case("provisioner", {**STATIC, **IAM}, reads(S3_LIST, CA), CA_IN_SSM),
    Case("provisioner", EQUINIX, reads(API_KEY, PUBLIC_KEY, CA), CA_IN_SSM),
    Case("initializer", STATIC, reads(LIST, SSH_KEY, KEYS, CA), {**LIST_IN_SSM, **CA_IN_SSM}),
    Case(
        "initializer",
        {**STATIC, **IAM},
        reads(S3_LIST, SSH_KEY, S3_CA, S3_AGENT_CA, KEYS, S3_AGENT),
        {**CA_IN_S3, **AGENT_CA, **OWN_AGENT},
    ),
    Case("initializer", EQUINIX, reads(API_KEY, SSH_KEY, KEYS, CA), CA_IN_SSM),
    Case("recoverer", EQUINIX, reads(API_KEY, SSH_KEY, CA), CA_IN_SSM),
    Case("updater", {**STATIC, **IAM}, reads(S3_LIST, S3_CA), CA_IN_S3),
    Case("updater", EQUINIX, reads(API_KEY, CA), CA_IN_SSM),
    Case("provisioner", REDFISH, reads(LIST, BMCS, S3_BMC_CA, CA), {**RACKS_IN_SSM, **BMC_CA_IN_S3, **CA_IN_SSM}),
    Case("provisioner", EC2, LAUNCHES | SEES | reads(PUBLIC_KEY, CA), {**CA_IN_SSM, "creation_seconds": "0"}),
    Case("provisioner", HETZNER, reads(ROBOT, CA), CA_IN_SSM),
    Case("provisioner", IRONIC, reads(NODES, PUBLIC_KEY, CA), CA_IN_SSM),
    Case("provisioner", LATITUDE, reads(CLOUD, PUBLIC_KEY, CA), CA_IN_SSM),
    Case(
        "initializer",
        REDFISH,
        reads(LIST, BMCS, SSH_KEY, KEYS, S3_BMC_CA, CA),
        {**RACKS_IN_SSM, **BMC_CA_IN_S3, **CA_IN_SSM},
    ),
    Case("initializer", EC2, SEES | reads(SSH_KEY, KEYS, CA), CA_IN_SSM),
    Case("initializer", HETZNER, reads(ROBOT, SSH_KEY, KEYS, CA), CA_IN_SSM),
    Case("initializer", IRONIC, reads(NODES, SSH_KEY, KEYS, CA), CA_IN_SSM),
    Case(
        "recoverer", REDFISH, reads(LIST, BMCS, SSH_KEY, S3_BMC_CA, CA), {**RACKS_IN_SSM, **BMC_CA_IN_S3, **CA_IN_SSM}
    ),
    Case("recoverer", EC2, SEES | RESTARTS | reads(SSH_KEY, CA), {**VIRTUAL, **CA_IN_SSM}),
    Case("recoverer", HETZNER, reads(ROBOT, SSH_KEY, PUBLIC_KEY, CA), CA_IN_SSM),
    Case("updater", REDFISH, reads(S3_LIST, BMCS, BMC_CA, CA), {**RACKS_IN_S3, **BMC_CA_IN_SSM, **CA_IN_SSM}),
    Case("updater", EC2, SEES | reads(CA), CA_IN_SSM),
    Case("updater", HETZNER, reads(ROBOT, CA), CA_IN_SSM),
    Case("recoverer", IRONIC, reads(NODES, SSH_KEY, PUBLIC_KEY, CA), CA_IN_SSM),
    Case("updater", IRONIC, reads(NODES, CA), CA_IN_SSM),
    Case("recoverer", LATITUDE, reads(CLOUD, SSH_KEY, PUBLIC_KEY, CA), CA_IN_SSM),
    Case("agent_api", {**STATIC, **ONE_PASSWORD}, reads(CA), CA_IN_SSM),
    Case("agent_api", {**EQUINIX, **IAM}, reads(S3_CA), CA_IN_S3),
]


def whole(deployment: dict[str, str]) -> Stack:
    return stack_of({**deployment, **VPC, "KmsKeyArn": KEY})


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.function)
def test_a_role_may_do_exactly_what_the_table_says(case: Case) -> None:
    allowed: set[tuple[str, str]] = set()
    for statement in whole(case.deployment).statements(case.function):
        assert statement["Effect"] == "Allow"
        actions, resources = (
            {each} if isinstance(each, str) else set(each) for each in (statement["Action"], statement["Resource"])
        )
        if statement["Sid"] in BY_THE_PLATFORM:
            assert actions == BY_THE_PLATFORM[statement["Sid"]]
        else:
            allowed |= {
                (action, resource)
                for action in actions
                for resource in resources
                if not UNNAMED.match(resource) and resource.split(":")[2:3] in ([], ["*"], [action.partition(":")[0]])
            }
    known = case.asks | case.may_ask | case.login
    assert allowed == {(action, EVERYWHERE.get(resource, resource)) for action, resource in known}


@pytest.fixture
def asked(aws: None) -> set[tuple[str, str]]:
    found: set[tuple[str, str]] = set()

    def called(params: dict[str, Any], model: Any, **_: object) -> None:
        service = model.service_model.service_name
        if service == "ec2":
            found.update(needed_of_ec2(model.name, params))
        elif service == "ssm":
            name = params["Name"]
            found.add((f"ssm:{model.name}", parameter(BMCS if name.startswith(BMCS.rstrip("*")) else name)))
        elif service == "cloudformation":
            found.add((f"{service}:{model.name}", params["StackName"]))
        else:
            owner = f" of {params.get('ExpectedBucketOwner')}" if params.get("ExpectedBucketOwner") != ACCOUNT else ""
            found.add((f"{service}:{model.name}", f"arn:aws:s3:::{params['Bucket']}/{params['Key']}{owner}"))

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


def ironic_nodes() -> FakeIronic:
    settings = REQUIRED["ironic"]
    ironic = FakeIronic(NoHardware(), secret="a-user:a-password")
    _, used = (ironic.add(settings["machine_type"], {"ipv4_address": "192.0.2.1"}) for _ in range(2))
    info = {"shepherd_fleet": settings["fleet"]}
    ironic.nodes[used].update(provision_state="active", instance_uuid=INSTANCE, instance_info=info)
    return ironic


def latitude_servers() -> LatitudeApi:
    cloud = LatitudeApi(NoHardware(), secret="a-token")
    ours = FakeMachine(id=SERVER, name=name_of(UUID(int=1), "1"), address="192.0.2.1", fields={"project": "ours-"})
    cloud.machines.add_active(ours)
    return cloud


APIS: dict[str, Callable[[], Any]] = {
    "equinix": lambda: EquinixApi(
        NoHardware(), project_id=REQUIRED["equinix"]["project"], secret="a-key", reservations=1
    ),
    "hetzner": lambda: HetznerRobot(
        NoHardware(), secret="a-user:a-password", servers=[RobotServer(id="1", name="ours-1")]
    ),
    "ironic": ironic_nodes,
    "latitude": latitude_servers,
}
"""By provider, what makes its API, to be entered."""


@pytest.fixture(scope="module")
def aws() -> Iterator[None]:
    """Let every boto3 call of this module end in one AWS account: all cases read the same from it."""
    from moto import mock_aws  # noqa: PLC0415 - as in tests/conftest.py

    read_models_once()
    with mock_aws():
        yield


@pytest.fixture(scope="module")
def others(aws: None) -> Any:
    """Return a session of boto3 whose calls are not noted."""
    return boto3.Session()


@pytest.fixture(scope="module")
def bmdb_port(shared_database: BmdbSettings, others: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Return the port of a database that speaks TLS and has its roles; all else that a function may read is there."""
    assert shared_database.bmdb_user == OWNER
    authority = Authority(tmp_path_factory.mktemp("authority"))
    ca = authority.path.read_text()
    ssm, s3 = others.client("ssm"), others.client("s3")
    private_key = ssh_keys.generate()
    secrets = {
        PASSWORD: "a-password",
        SSH_KEY: private_key,
        PUBLIC_KEY: ssh_keys.public_line(private_key),
        API_KEY: "a-key",
        ROBOT: "a-user:a-password",
        NODES: "a-user:a-password",
        CLOUD: "a-token",
        f"{BMCS[:-1]}one": "a-user:a-word",
    }
    for name, value in {**secrets, CA: ca, BMC_CA: ca}.items():
        ssm.put_parameter(Name=name, Value=value, Type="SecureString")
    s3.create_bucket(Bucket="bucket", CreateBucketConfiguration={"LocationConstraint": others.region_name})
    for key, content in (
        ("settings.toml", "version = 1"),
        ("documents/agent", "an agent"),
        *((key.partition("/")[2], ca) for key in (S3_CA, S3_BMC_CA, S3_AGENT_CA)),
    ):
        s3.put_object(Bucket="bucket", Key=key, Body=content.encode())
    fleet = Fleet(shared_database, CLOCK)
    if not fleet.sql("SELECT 1 FROM pg_roles WHERE rolname = 'shepherd'"):
        fleet.sql("CREATE ROLE shepherd SUPERUSER LOGIN")  # who owns the schema in a deployment with IAM
        fleet.sql("CREATE ROLE rds_iam")
    make(fleet.connection, {role: RoleLogin(f"shepherd-{role}") for role in ROLES})
    fleet.close()
    server = Path(shared_database.bmdb_host) / f".s.PGSQL.{shared_database.bmdb_port}"
    with TlsProxy(server, authority.context(ADDRESS)) as proxy:
        yield proxy.port


@pytest.fixture
def deployed(
    fleet: Fleet, others: Any, bmdb_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Case], dict[str, str]]]:
    """Return a function that sets a function's environment, as deployed; everything that it may read is there."""
    ssm, s3 = others.client("ssm"), others.client("s3")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def network(provider: str) -> dict[str, str]:
        if provider != "ec2":  # for the others moto shall not make one, which takes a second
            return {}
        moto_ec2(others.region_name).reset()
        ec2 = others.client("ec2")
        return {
            "subnets": ec2.describe_subnets()["Subnets"][0]["SubnetId"],
            "security_groups": ec2.describe_security_groups()["SecurityGroups"][0]["GroupId"],
        }

    with ExitStack() as apis:

        def deploy(case: Case) -> dict[str, str]:
            machines = RACK if case.provider == "redfish" else "[]"
            ssm.put_parameter(Name=LIST, Value=machines, Type="SecureString", Overwrite=True)
            s3.put_object(Bucket="bucket", Key=S3_LIST.partition("/")[2], Body=machines.encode())
            ssm.delete_parameters(Names=ROLE_PASSWORDS)
            for name in ROLE_PASSWORDS if case.function != "migrator" else ():  # which makes them
                ssm.put_parameter(Name=name, Value="a-password", Type="SecureString")
            environment = stack_of({**case.deployment, "BmdbHost": ADDRESS}).environment(case.function)
            settings = {
                "bmdb_port": str(bmdb_port),
                "bmdb_name": fleet.settings.bmdb_name,
                "bmdb_user": OWNER,
                "agent_endpoint": "https://agents.example.com",
                **REQUIRED[case.provider],
                **case.settings,
                **network(case.provider),
            }
            if case.provider in APIS:
                settings["api_url"] = apis.enter_context(APIS[case.provider]()).url
            of_provider = find(case.provider).settings
            chosen = {
                variable(of_provider if name in of_provider.model_fields else Settings, name): value
                for name, value in settings.items()
            }
            for name, value in {**chosen, **environment}.items():
                monkeypatch.setenv(name, value)
            return environment

        yield deploy


def plant_work(fleet: Fleet, case: Case) -> ProviderId:
    provider_id = KNOWN.get(case.provider, "machine-1")
    if case.provider == "ec2" and case.function == "recoverer":
        tags = [{"Key": "shepherd-fleet", "Value": PSEUDO["AWS::StackName"]}]
        made = boto3.Session().client("ec2").run_instances(
            ImageId=EC2_SETTINGS["image"],
            InstanceType=case.settings["machine_type"],
            MinCount=1,
            MaxCount=1,
            TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
        )  # fmt: skip
        provider_id = made["Instances"][0]["InstanceId"]
    if case.function in {"initializer", "updater", "recoverer"}:
        fleet.sql(EARLIER_TICK)
        machine_id = fleet.unhealthy_machine() if case.function == "recoverer" else fleet.provided_machine()
        fleet.change(
            f"UPDATE machine_provided SET provider = '{case.provider}', provider_id = '{provider_id}', "
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
            with suppress(ProviderError):  # no BMC is there; and what is waited for takes longer than this
                act(provider_id, Permission(Deadline(CLOCK, 15)))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.function)
def test_a_function_asks_for_what_the_table_says(
    case: Case,
    fleet: Fleet,
    deployed: Callable[[Case], dict[str, str]],
    asked: set[tuple[str, str]],
    cloudformation: Script,
) -> None:
    variables = deployed(case)
    provider_id = plant_work(fleet, case)
    event = json.loads((ROOT / "events" / f"{case.function}.json").read_text())
    if case.function == "agent_api":
        event["rawPath"] = f"{variables['SHEPHERD_PATH_PREFIX']}/heartbeat"
    if case.update:
        event = {"RequestType": "Update", "StackId": PSEUDO["AWS::StackId"], "ResponseURL": cloudformation.url}
    handler = importlib.import_module(f"functions.{case.function}.app").lambda_handler
    with suppress(ProviderError):  # no BMC is there, so that the states of most machines are unknown
        handler(event, Context("a-request", case.function, time.monotonic() + 300))
    if case.function == "recoverer":
        take_all_steps(provider_id)
    assert asked == case.asks | reads(SETTINGS) | (set() if case.update else case.login)


def _calls(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node.func.attr


def _services(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "aws.client":
            yield ast.literal_eval(node.args[0])  # nothing but a literal is understood here


def _powertools(tree: ast.AST) -> Iterator[str]:
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
    assert {name for tree in trees for name in _calls(tree)} & of_clients == METHODS.keys() | BY_PEOPLE
    talking = {
        name for tree in trees for name in _powertools(tree) if "typing" not in name and "exceptions" not in name
    }
    assert talking == POWERTOOLS.keys()
    assert {action for case in CASES for action, _ in case.asks | case.login} == {
        *METHODS.values(),
        *POWERTOOLS.values(),
        WITH_TAGS,
    }


@pytest.mark.parametrize("deployment", EACH, ids=lambda each: each.get("Provider"))
def test_keys_are_read_by_whom_they_serve_and_changed_by_nobody(deployment: dict[str, str]) -> None:
    """An attacker in another function must not become root on machines, nor have any image installed."""
    stack = stack_of(deployment)
    for function in FUNCTIONS:
        statements = stack.statements(function)
        # The Recoverer looks at machines before it interrupts them; those of a static list it never does.
        logs_in_there = function == "initializer" or (function == "recoverer" and deployment is not STATIC)
        for name, reads_it in {
            SSH_KEY: logs_in_there,
            PREVIOUS_KEY: logs_in_there,
            SIGNING_KEY: False,
            KEYS: function == "initializer",
        }.items():
            assert allows(statements, "ssm:GetParameter", parameter(name)) is reads_it
        for name in (SSH_KEY, PREVIOUS_KEY, PUBLIC_KEY, SIGNING_KEY, KEYS):
            for overwrite in ("false", "true"):
                assert not allows(statements, "ssm:PutParameter", parameter(name), ssm_Overwrite=overwrite)


def test_the_migrator_replaces_no_password() -> None:
    """
    One that an operator has set stays, and a run beside another stores none that the database does not have.

    AWS documents the key for a refusal of "true" only: a request without it must not be refused.
    """
    statements = whole(STATIC).statements("migrator")
    (made,) = [each for each in statements if each["Sid"] == "MakeRolePasswords"]
    for resource in made["Resource"]:
        assert allows(statements, "ssm:PutParameter", resource, ssm_Overwrite="false")
        assert not allows(statements, "ssm:PutParameter", resource, ssm_Overwrite="true")
        assert allows(statements, "ssm:PutParameter", resource)
