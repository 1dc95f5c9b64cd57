"""
An AWS account to deploy into: an emulator that others wrote, and beside it a BMDB with TLS, a provider and machines.

The code is that which is deployed, IAM is enforced, and schedules run faster.
"""

import json
import os
import secrets
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import boto3
import requests
from shepherd_core.domain.errors import SourceMissing
from shepherd_core.settings.providers import find

from simulator.closeable import Assembled
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

ADDRESS = "127.0.0.2"
"""This computer, like all of 127/8; but Shepherd does not treat it as local, and verifies its certificate."""
ACCOUNT, REGION, STACK, BUCKET = "123456789012", "eu-central-1", "tried", "tried-fleet"
PROVIDER, MACHINES = "latitude", 3
ARCHITECTURE = "arm64" if os.uname().machine == "aarch64" else "x86_64"
_USER = "shepherd"
_MINUTE = 20
"""Seconds between two runs of each loop: a cold start may take as long."""
_START_SECONDS = 120


class Account(Assembled):
    """The account from entry to exit, with the answers of a deployment into it in ``folder``."""

    def __init__(self, python: Path) -> None:
        """*python* has ministack; the functions run with it, too."""
        super().__init__()
        self._python = python

    def _make(self) -> None:
        self.folder = self._enter(lambda: temporary_folder("account-"))
        self.tls, self.ca = certificate.make(ADDRESS, self.folder)
        self.password = secrets.token_urlsafe()
        self.postgres = self._enter(Postgres)
        for statement in (
            f"CREATE ROLE {_USER} LOGIN CREATEROLE PASSWORD '{self.password}'",
            f"CREATE DATABASE {_USER} OWNER {_USER}",
        ):
            self.postgres.run(statement)
        self.bmdb = self._enter(lambda: TcpProxy(self.postgres.socket, ADDRESS, self.tls))
        disks = self._enter(lambda: temporary_folder("machines-"))
        user = unprivileged_user()
        if user is not None:
            os.chown(disks, user, user)
        agents = {"SHEPHERD_AGENT_HEARTBEAT_SECONDS": "5"}
        self.pool = self._enter(lambda: MachinePool(disks, 0, boot_seconds=1, user=user, agent_environment=agents))
        self.provider: MachineSource = self._enter(
            lambda: machine_source(PROVIDER)(
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
        self.endpoint = self._enter(lambda: AgentEndpoint(self._function_url, tls=self.tls, address=ADDRESS))
        self._run_emulator()
        self._write_answers()
        key = self.provider.secrets[SSH_KEY_PARAMETER]  # which the provider's machines admit
        self.client("ssm").put_parameter(Name=f"/{STACK}/ssh-key", Value=key, Type="SecureString")

    def _run_emulator(self) -> None:
        self.log = self.folder / "emulator.log"
        with self.log.open("wb") as log:
            emulator = subprocess.Popen(
                [self._python, Path(__file__).with_name("emulator.py")],
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
                    "MINUTE": str(_MINUTE),
                    # For the functions, whose environment begins with this one: their network has no way to it.
                    "AWS_ENDPOINT_URL_CLOUDFORMATION": "http://127.0.0.1:9",
                },
                stdout=log,
                stderr=log,
            )
        self._stack.callback(emulator.wait)
        self._stack.callback(emulator.kill)
        end = time.monotonic() + _START_SECONDS
        while "Running on" not in (text := self.log.read_text(encoding="utf-8")):
            if emulator.poll() is not None or time.monotonic() > end:
                raise SourceMissing(f"{self._python} runs no emulator:\n{text}")
            time.sleep(0.1)

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

    @property
    def environment(self) -> Mapping[str, str]:
        """Return the environment variables of whoever owns the account."""
        return {"AWS_ENDPOINT_URL": self.url, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}

    def client(self, service: str) -> Any:
        """Return boto3's client of *service*, of whoever owns the account."""
        session = boto3.session.Session("test", "test", region_name=REGION)
        return session.client(service, endpoint_url=self.url)

    @property
    def answers(self) -> Path:
        """Return the file of answers; what it names is beside it."""
        return self.folder / "shepherd.toml"

    def _write_answers(self) -> None:
        prefix = "SHEPHERD_PROVIDER_"
        known = find(PROVIDER).settings.model_fields
        given = {name.removeprefix(prefix).lower(): value for name, value in self.provider.environment.items()}
        own = {name: value for name, value in given.items() if name in known and not name.endswith("_parameter")}
        (self.folder / "bmdb-password").write_text(self.password, encoding="utf-8")
        credential = self.provider.secrets[f"/shepherd/{PROVIDER}-credential"]
        (self.folder / "credential").write_text(credential, encoding="utf-8")
        self.answers.write_text(
            f"""version = 1
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
"bmdb-ca.pem" = "{self.ca.name}"
"agent-ca.pem" = "{self.ca.name}"

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
""",
            encoding="utf-8",
        )
