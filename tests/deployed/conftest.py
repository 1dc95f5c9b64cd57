"""A deployment in an emulator of AWS: real code, IAM that is enforced, a BMDB with TLS, simulated machines."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pg8000.native
import pytest

from simulator.account.account import BUCKET, PROVIDER, STACK, Account
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
PEOPLE = "people"  # the stack of their policies
SECONDS = 240  # for what takes some runs of the loops


class Cloud(Account):
    """The account, with what only tests ask of it."""

    def _make(self) -> None:
        super()._make()
        connection = pg8000.native.Connection(
            "postgres", database="shepherd", unix_sock=str(self.postgres.socket), ssl_context=False
        )
        self._stack.callback(connection.close)
        self.sql = connection.run

    def people(self) -> dict[str, dict[str, str]]:
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


class Operator:
    """The command line of whoever deploys a file of answers."""

    def __init__(self, cloud: Cloud, document: Path) -> None:
        self.cloud, self.document = cloud, document
        self.messages = ""  # of the last command
        self.environment = dict(cloud.environment)

    def __call__(self, *arguments: str, status: int = 0) -> str:
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
        exports = self("deploy", str(self.document), "--build", str(ROOT / "build" / "deployed"), "--yes")
        self.environment |= dict(re.findall(r"^export (\w+)=(.*)$", exports, re.MULTILINE))


class Deployment(Operator):
    """The deployment whose machines are simulated, in the hands of its administrator."""

    def __init__(self, cloud: Cloud) -> None:
        super().__init__(cloud, cloud.answers)
        self._people = cloud.people()
        self.environment |= self._people["administrator"]

    def by(self, person: str) -> Operator:
        somebody = Operator(self.cloud, self.document)
        somebody.environment = self.environment | self._people[person]
        return somebody

    def machines(self) -> dict[str, str]:
        found = json.loads(self("machine", "list", "-o", "json"))["machines"]
        return {each["provider_id"]: each["state"] for each in found}

    def eventually(self, condition: Callable[[], object]) -> None:
        eventually(condition, self.machines, SECONDS)


@pytest.fixture(scope="session")
def cloud() -> Iterator[Cloud]:
    with Cloud(ROOT / ".venv-emulator" / "bin" / "python") as cloud:
        yield cloud


@pytest.fixture(scope="session")
def deployment(cloud: Cloud) -> Deployment:
    deployment = Deployment(cloud)
    deployment.deploy()
    return deployment
