"""A deployment in an emulator of AWS: real code, IAM that is enforced, a BMDB with TLS, simulated machines."""

import json
import os
import re
import secrets
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import boto3
import pg8000.native
import pytest
import requests
from shepherd_core.settings.providers import find

from simulator.environment import certificate
from simulator.environment.agent_endpoint import AgentEndpoint
from simulator.environment.machine_source import SSH_KEY_PARAMETER, MachineSource, SourceSpec
from simulator.environment.postgres import Postgres
from simulator.environment.tcp_proxy import TcpProxy
from simulator.machines.pool import MachinePool
from simulator.machines.shell import unprivileged_user
from simulator.providers import machine_source
from simulator.providers.kit.http_server import HttpRequest, Reply
from simulator.temporary_folder import temporary_folder
from tests.support.bmdb.tls_postgres import ADDRESS
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
ACCOUNT, REGION, STACK, BUCKET = "123456789012", "eu-central-1", "tried", "tried-fleet"
PEOPLE = "people"
"""The stack of their policies."""
PROVIDER, MACHINES = "latitude", 3
ARCHITECTURE = "arm64" if os.uname().machine == "aarch64" else "x86_64"
DATABASE = USER = "shepherd"
MINUTE = 20
"""Seconds between two runs of each loop: a cold start takes as long where the tests run."""
SECONDS = 240
"""For what takes some runs of the loops."""


class Cloud:
    """The account, and what stands outside of it: the BMDB, the provider and its machines."""

    def __init__(self, stack: ExitStack) -> None:
        enter = stack.enter_context
        self.folder = enter(temporary_folder("deployed-"))
        self.tls, self.ca = certificate.make(ADDRESS, self.folder)
        self.password = secrets.token_urlsafe()
        postgres = enter(Postgres())
        with pg8000.native.Connection("postgres", unix_sock=str(postgres.socket), ssl_context=False) as admin:
            admin.run(f"CREATE ROLE {USER} LOGIN CREATEROLE PASSWORD '{self.password}'")
            admin.run(f"CREATE DATABASE {DATABASE} OWNER {USER}")
        connection = pg8000.native.Connection(
            "postgres", database=DATABASE, unix_sock=str(postgres.socket), ssl_context=False
        )
        stack.callback(connection.close)
        self.sql = connection.run
        self.bmdb = enter(TcpProxy(postgres.socket, ADDRESS, self.tls))
        disks = enter(temporary_folder("machines-"))
        user = unprivileged_user()
        if user is not None:
            os.chown(disks, user, user)
        agents = {"SHEPHERD_AGENT_HEARTBEAT_SECONDS": "5"}
        self.pool = enter(MachinePool(disks, 0, boot_seconds=1, user=user, agent_environment=agents))
        self.provider: MachineSource = enter(
            machine_source(PROVIDER)(
                SourceSpec(
                    pool=self.pool,
                    folder=self.folder,
                    machines=MACHINES,
                    minute=0.1,
                    address="127.0.0.1",
                    faults=(),
                    seed=1,
                )
            )
        )
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.url = f"http://127.0.0.1:{free.getsockname()[1]}"
        self.endpoint = enter(AgentEndpoint(self._function_url, tls=self.tls, address=ADDRESS))
        self.log = self.folder / "emulator.log"
        emulator = self._emulator()
        stack.callback(emulator.wait)
        stack.callback(emulator.kill)
        eventually(lambda: emulator.poll() is not None or "Running on" in self.log.read_text(), self.log.read_text)
        assert emulator.poll() is None, self.log.read_text()

    def _emulator(self) -> subprocess.Popen[bytes]:
        with self.log.open("wb") as log:
            return subprocess.Popen(
                [ROOT / ".venv-emulator" / "bin" / "python", Path(__file__).with_name("emulator.py")],
                env={
                    "PATH": os.defpath,
                    "TMPDIR": str(self.folder),
                    "AUTH": "true",
                    "MINISTACK_HOST": "127.0.0.1",
                    "BIND_HOST": "127.0.0.1",
                    "GATEWAY_PORT": self.url.rpartition(":")[2],
                    "MINISTACK_REGION": REGION,
                    "MINISTACK_ACCOUNT_ID": ACCOUNT,
                    "ENDPOINT": self.endpoint.url,
                    "MINUTE": str(MINUTE),
                    # For the functions, whose environment begins with this one: their network has no way to it.
                    "AWS_ENDPOINT_URL_CLOUDFORMATION": "http://127.0.0.1:9",
                },
                stdout=log,
                stderr=log,
            )

    def _function_url(self, request: HttpRequest) -> Reply:
        (config,) = self.client("lambda").list_function_url_configs(FunctionName=f"{STACK}-agent-api")[
            "FunctionUrlConfigs"
        ]
        host = config["FunctionUrl"].split("/")[2]
        answer = requests.request(
            request.method,
            f"{self.url}{request.target}",
            headers={**request.headers, "Host": host},
            data=request.content,
            timeout=30,
        )
        return Reply(
            status=answer.status_code, body=answer.content, headers={"Content-Type": answer.headers["Content-Type"]}
        )

    def client(self, service: str) -> Any:
        """Return boto3's client of *service*, of whoever owns the account."""
        session = boto3.session.Session("test", "test", region_name=REGION)
        return session.client(service, endpoint_url=self.url)

    def people(self) -> dict[str, dict[str, str]]:
        """Make a user of each kind of person, and return their credentials."""
        given = {"Stack": STACK, "Bucket": BUCKET, "Provider": PROVIDER}
        cloudformation, iam = self.client("cloudformation"), self.client("iam")
        cloudformation.create_stack(
            StackName=PEOPLE,
            TemplateBody=(ROOT / "templates" / "people.yaml").read_text(),
            Parameters=[{"ParameterKey": key, "ParameterValue": value} for key, value in given.items()],
            Capabilities=["CAPABILITY_NAMED_IAM"],
        )
        cloudformation.get_waiter("stack_create_complete").wait(StackName=PEOPLE, WaiterConfig={"Delay": 1})
        outputs = cloudformation.describe_stacks(StackName=PEOPLE)["Stacks"][0]["Outputs"]
        policies = {each["OutputKey"]: each["OutputValue"].split(",") for each in outputs}
        made = {}
        for person in ("reader", "operator", "administrator"):
            iam.create_user(UserName=person)
            for arn in policies[f"{person.capitalize()}Policies"]:
                iam.attach_user_policy(UserName=person, PolicyArn=arn)
            key = iam.create_access_key(UserName=person)["AccessKey"]
            made[person] = {"AWS_ACCESS_KEY_ID": key["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"]}
        return made

    def stack(self) -> dict[str, Any]:
        """Return the stack, when nothing happens to it any more."""

        def at_rest() -> dict[str, Any] | None:
            (found,) = self.client("cloudformation").describe_stacks(StackName=STACK)["Stacks"]
            return None if found["StackStatus"].endswith("IN_PROGRESS") else found

        return eventually(at_rest, "the stack does not come to rest", SECONDS) or {}

    def settings(self) -> str:
        """Return the settings document, with the answers of the deployment."""
        prefix = "SHEPHERD_PROVIDER_"
        known = find(PROVIDER).settings.model_fields
        given = {name.removeprefix(prefix).lower(): value for name, value in self.provider.environment.items()}
        own = {name: value for name, value in given.items() if name in known and not name.endswith("_parameter")}
        return f"""version = 1
ssh_port = {self.pool.port}

[deployment]
stack = "{STACK}"
region = "{REGION}"
bucket = "{BUCKET}"
bmdb_host = "{ADDRESS}"
architecture = "{ARCHITECTURE}"

[deployment.secrets]
bmdb-password = "bmdb-password"
{PROVIDER}-credential = "credential"

[deployment.documents]
"bmdb-ca.pem" = "ca.pem"
"agent-ca.pem" = "ca.pem"

[bmdb]
bmdb_port = {self.bmdb.port}
bmdb_ca_source = "s3://{BUCKET}/documents/bmdb-ca.pem"

[provisioner]
creation_seconds = 0
boot_seconds = 10

[initializer]
agent_ca_source = "s3://{BUCKET}/documents/agent-ca.pem"

[recoverer]
remediation_policy = "reboot:3:boot-wait=5:grace=400:cooldown=60,quarantine"

[provider.{PROVIDER}]
{chr(10).join(f"{name} = {value if value.isdecimal() else json.dumps(value)}" for name, value in own.items())}
"""

    def secrets(self) -> dict[str, str]:
        """Return what the document names as the sources of secrets, by file."""
        credential = self.provider.secrets[f"/shepherd/{PROVIDER}-credential"]
        return {"bmdb-password": self.password, "credential": credential}


class Operator:
    """The command line of whoever deploys a file of answers."""

    def __init__(self, cloud: Cloud, document: Path) -> None:
        self.cloud, self.document = cloud, document
        self.messages = ""
        """Of the last command."""
        self.environment = {"AWS_ENDPOINT_URL": cloud.url, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}

    def __call__(self, *arguments: str, status: int = 0) -> str:
        """Return what a command prints when it ends with the exit status that is due."""
        ran = subprocess.run(
            [sys.executable, "-m", "shepherdctl", *arguments],
            check=False,
            capture_output=True,
            text=True,
            env={"PATH": os.defpath, "HOME": str(self.cloud.folder), **self.environment},
        )
        assert ran.returncode == status, f"{ran.stdout}{ran.stderr}"
        self.messages = ran.stderr
        return ran.stdout

    def deploy(self) -> None:
        """Deploy, or bring up to date."""
        exports = self("deploy", str(self.document), "--build", str(ROOT / "build" / "deployed"), "--yes")
        self.environment |= dict(re.findall(r"^export (\w+)=(.*)$", exports, re.MULTILINE))


class Deployment(Operator):
    """The deployment whose machines are simulated, in the hands of its administrator."""

    def __init__(self, cloud: Cloud) -> None:
        super().__init__(cloud, cloud.folder / "shepherd.toml")
        self._people = cloud.people()
        self.environment |= self._people["administrator"]
        self.document.write_text(cloud.settings())
        for name, secret in cloud.secrets().items():
            (cloud.folder / name).write_text(secret)
        key = cloud.provider.secrets[SSH_KEY_PARAMETER]  # which the provider's machines admit
        cloud.client("ssm").put_parameter(Name=f"/{STACK}/ssh-key", Value=key, Type="SecureString")

    def by(self, person: str) -> Operator:
        """Return the command line of a reader or an operator."""
        somebody = Operator(self.cloud, self.document)
        somebody.environment = self.environment | self._people[person]
        return somebody

    def machines(self) -> dict[str, str]:
        """Return the states of the machines by provider id."""
        found = json.loads(self("machine", "list", "-o", "json"))["machines"]
        return {each["provider_id"]: each["state"] for each in found}

    def eventually(self, condition: Callable[[], object]) -> None:
        """Wait for what the loops do."""
        eventually(condition, self.machines, SECONDS)


@pytest.fixture(scope="session")
def cloud() -> Iterator[Cloud]:
    with ExitStack() as stack:
        yield Cloud(stack)


@pytest.fixture(scope="session")
def deployment(cloud: Cloud) -> Deployment:
    deployment = Deployment(cloud)
    deployment.deploy()
    return deployment
