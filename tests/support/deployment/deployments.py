import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from shepherd_core.settings.keys import kind
from shepherd_core.settings.providers import BUILT_IN, find

from shepherdctl.deployment.template import _read
from simulator.lambda_.sam_local import logical_id

ROOT = Path(__file__).parents[3]
PSEUDO = {
    "AWS::AccountId": "123456789012",
    "AWS::Partition": "aws",
    "AWS::Region": "eu-central-1",
    "AWS::StackId": "arn:aws:cloudformation:eu-central-1:123456789012:stack/shepherd/1234",
    "AWS::StackName": "shepherd",
    "AWS::URLSuffix": "amazonaws.com",
}


def source(file: str) -> dict[str, Any]:
    """Return a template as it stands there, without the functions of CloudFormation."""
    return _read(ROOT / file)


TEMPLATE = source("template.yaml")

# The answers that a deployment needs, and for each provider the settings that its document needs.
STATIC = {"Bucket": "bucket", "BmdbHost": "db.example.com"}
_RESOURCES = {"ec2": {"Ec2Resources": "m7i.metal-24xl,subnet-0a1,subnet-0b2,sg-0c3,ami-0d4"}}
SMALLEST = {name: {**STATIC, "Provider": name, **_RESOURCES.get(name, {})} for name in BUILT_IN}
EACH = (STATIC, *(each for name, each in SMALLEST.items() if name != "static"))
REDFISH, EC2 = SMALLEST["redfish"], SMALLEST["ec2"]
EC2_BY_TEMPLATE = {**EC2, "Ec2Resources": "m7i.metal-24xl,subnet-0a1,subnet-0b2,lt-0e5"}
_EC2 = {"limit": "3", "subnets": "subnet-0a1,subnet-0b2"}
EC2_SETTINGS = {**_EC2, "security_groups": "sg-0c3", "image": "ami-0d4", "machine_type": "m7i.metal-24xl"}
EC2_TEMPLATE_SETTINGS = {**_EC2, "launch_template": "lt-0e5"}
REQUIRED: dict[str, dict[str, str]] = {
    **{
        spec.name: {
            key: "3" if kind(field.annotation) is int else "ours-"
            for key, field in spec.settings.model_fields.items()
            if field.is_required() and key not in spec.given
        }
        for spec in map(find, BUILT_IN)
    },
    "static": {"machines": "s3://bucket/documents/machines.json"},
    "redfish": {"machines": "s3://bucket/documents/machines.json"},
    "ec2": EC2_SETTINGS,
}
"""By provider, the settings without which its functions do not start."""

# What can be chosen besides.
IAM = {"BmdbLogin": "cluster-ABC123"}
ONE_PASSWORD = {"BmdbLogin": "one-password"}
VPC = {"Vpc": "subnet-0a1,subnet-0b2:sg-0c3"}
HTTP_API = {"AgentEndpoints": "http-api"}
TOPIC = "arn:aws:sns:eu-central-1:123456789012:alarms"
KEY = "arn:aws:kms:eu-central-1:123456789012:key/1234-abcd"

_LOGINS: tuple[dict[str, str], ...] = ({}, IAM, ONE_PASSWORD)
_NETWORKS: tuple[dict[str, str], ...] = ({}, {**VPC, "KmsKeyArn": KEY})
_ENDPOINTS: tuple[dict[str, str], ...] = (
    {},
    {"Architecture": "x86_64", "AlarmTopicArn": TOPIC, "LoopMinutes": "0,5,60,1", "ReservedConcurrency": "2,10"},
    {"AgentEndpoints": "function-url,http-api", "LoopMinutes": "1,1,1,30"},
    {"AgentEndpoints": "http-api,function-url", "LoopMinutes": "10,1,1,1"},
    HTTP_API,
)
DEPLOYMENTS = [
    {**provider, **login, **_NETWORKS[(first + second) % 2], **_ENDPOINTS[(first + 2 * second) % 5]}
    for first, provider in enumerate((*EACH, EC2_BY_TEMPLATE))
    for second, login in enumerate(_LOGINS)
]
"""Every provider with every login, and every pair of the other choices."""


@dataclass(frozen=True)
class Stack:
    """What CloudFormation makes of a template, its nested stacks included: .ci/transform.py has `sam` evaluate it."""

    parameters: dict[str, str]
    refusals: list[str]
    conditions: list[dict[str, bool]]
    """Of each template."""
    resources: dict[str, dict[str, Any]]
    outputs: dict[str, str]

    def of_type(self, resource_type: str) -> dict[str, dict[str, Any]]:
        return {name: each["Properties"] for name, each in self.resources.items() if each["Type"] == resource_type}

    def properties(self, function: str) -> dict[str, Any]:
        found: dict[str, Any] = self.resources[logical_id(function)]["Properties"]
        return found

    def environment(self, function: str) -> dict[str, str]:
        """Return the environment of a function, without that of libraries."""
        found = self.properties(function)["Environment"]["Variables"].items()
        return {name: value for name, value in found if name.startswith("SHEPHERD_")}

    def statements(self, function: str) -> list[dict[str, Any]]:
        role = self.properties(function)["Role"].strip("<>").removesuffix(".Arn")
        own, shared = (self.resources[role]["Properties"][key] for key in ("Policies", "ManagedPolicyArns"))
        managed = self.of_type("AWS::IAM::ManagedPolicy")
        named = {policy.strip("<>") for policy in shared}
        named |= {name for name, policy in managed.items() if f"<{role}>" in policy.get("Roles", [])}
        policies = [*own, *(managed[name] for name in named)]
        return [statement for policy in policies for statement in policy["PolicyDocument"]["Statement"]]


def stack_of(answers: Mapping[str, str], template: str = "template.yaml") -> Stack:
    """Return the stack of a deployment. It is shared, because it takes long to make: only read it."""
    return _stack(json.dumps({"template": template, "parameters": {**PSEUDO, **answers}}))


@cache
def _stack(request: str) -> Stack:
    evaluator = _evaluator()
    assert evaluator.stdin
    assert evaluator.stdout
    evaluator.stdin.write(f"{request}\n")
    evaluator.stdin.flush()
    answer = json.loads(evaluator.stdout.readline())
    assert "error" not in answer, (answer, request)
    return Stack(**answer)


@cache
def _evaluator() -> subprocess.Popen[str]:
    """Return a process that ends when its input does, with this one."""
    python = ROOT / ".venv-sam" / "bin" / "python"
    assert python.exists(), "SAM has an environment of its own, which is missing: make .venv-sam/.ready"
    command = [str(python), ".ci/transform.py", "--stacks"]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def deployed_name(function: str) -> str:
    return function.replace("_", "-")


def build_small(folder: Path, **resources: Any) -> None:
    """Write as a build what moto can deploy: our parameters and a queue; *resources* besides. It knows no SAM."""
    folder.mkdir(exist_ok=True)
    queue = {"Type": "AWS::SQS::Queue", "Properties": {"QueueName": {"Ref": "AWS::StackName"}}}
    template = {"Parameters": TEMPLATE["Parameters"], "Resources": {"Queue": queue, **resources}}
    (folder / "template.yaml").write_text(yaml.safe_dump(template))


BUCKET = "shepherd-test"
SMALL = f"""version = 1

[deployment]
region = "{PSEUDO["AWS::Region"]}"
bucket = "{BUCKET}"
bmdb_host = "db.example.com"
loop_minutes = "0,0,0,0"

[deployment.secrets]
bmdb-password = "password"

[deployment.documents]
"machines.json" = "machines.json"

[provider.static]
machines = "s3://{BUCKET}/documents/machines.json"
"""


def write_small(folder: Path) -> Path:
    """Write all that a deployment needs which moto can make, and return its folder."""
    (folder / "shepherd.toml").write_text(SMALL)
    (folder / "password").write_text("geheim\n")
    (folder / "machines.json").write_text('[{"ID": "rack1-07", "Addr": "203.0.113.7"}]')
    build_small(folder / "build")
    return folder
