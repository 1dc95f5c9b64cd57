"""What operators may choose: the deployments that the tests try the template with."""

import subprocess
from collections.abc import Mapping
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import yaml
from shepherd_core.settings.keys import kind
from shepherd_core.settings.providers import BUILT_IN, find

from simulator.lambda_ import sam_local
from tests.support.deployment.cloudformation import Stack, read, read_file

ROOT = Path(__file__).parents[3]
TEMPLATE = read_file(ROOT / "template.yaml")

# The answers that a deployment needs, and for each provider the settings that its document needs.
ANSWERS = {"Bucket": "bucket", "BmdbHost": "db.example.com"}
STATIC = ANSWERS
_RESOURCES = {"ec2": {"Ec2Resources": "m7i.metal-24xl,subnet-0a1,subnet-0b2,sg-0c3,ami-0d4"}}
SMALLEST = {name: {**ANSWERS, "Provider": name, **_RESOURCES.get(name, {})} for name in BUILT_IN}
"""By provider."""
EACH = (STATIC, *(each for name, each in SMALLEST.items() if name != "static"))
REDFISH, EQUINIX, HETZNER, IRONIC, LATITUDE, EC2 = (
    SMALLEST[name] for name in ("redfish", "equinix", "hetzner", "ironic", "latitude", "ec2")
)
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

_CHOICES: tuple[tuple[dict[str, str], ...], ...] = (
    (*EACH, EC2_BY_TEMPLATE),
    ({}, IAM, ONE_PASSWORD),
    ({}, {**VPC, "KmsKeyArn": KEY}),
    (
        {},
        {"Architecture": "x86_64", "AlarmTopicArn": TOPIC, "LoopMinutes": "0,5,60,1", "ReservedConcurrency": "2,10"},
        {"AgentEndpoints": "function-url,http-api", "LoopMinutes": "1,1,1,30"},
        {"AgentEndpoints": "http-api,function-url", "LoopMinutes": "10,1,1,1"},
        HTTP_API,
    ),
)
DEPLOYMENTS = [{name: value for choice in chosen for name, value in choice.items()} for chosen in product(*_CHOICES)]
"""Every combination of what the conditions look at."""


def templates() -> list[dict[str, Any]]:
    return [TEMPLATE, *TEMPLATE["Nested"].values()]


def stack_of(answers: Mapping[str, str]) -> Stack:
    """Return the stack of a deployment; it is shared, because its resources take long to resolve: only read it."""
    return _stack_of(frozenset(answers.items()))


@cache
def _stack_of(answers: frozenset[tuple[str, str]]) -> Stack:
    return Stack(TEMPLATE, dict(answers))


logical_id = sam_local.logical_id


def environment(stack: Stack, function: str) -> dict[str, str]:
    """Return the environment of a function, without that of libraries."""
    own = stack.resources[logical_id(function)]["Properties"].get("Environment", {}).get("Variables", {})
    everyones = stack.resolve(TEMPLATE["Globals"]["Function"]["Environment"]["Variables"])
    return {name: value for name, value in {**everyones, **own}.items() if name.startswith("SHEPHERD_")}


def deployed_name(function: str) -> str:
    return function.replace("_", "-")


@cache
def transformed() -> dict[str, Any]:
    """Return template.yaml as CloudFormation gets to see it: with what SAM makes of it."""
    python = ROOT / ".venv-sam" / "bin" / "python"
    assert python.exists(), "SAM has an environment of its own, which is missing: make .venv-sam/.ready"
    text = subprocess.run([python, ".ci/transform.py"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return {**read(text), "Nested": TEMPLATE["Nested"]}


def build_small(folder: Path, **resources: Any) -> None:
    """Write as a build what moto can deploy: our parameters and a queue; *resources* besides. It knows no SAM."""
    folder.mkdir(exist_ok=True)
    queue = {"Type": "AWS::SQS::Queue", "Properties": {"QueueName": {"Ref": "AWS::StackName"}}}
    template = {"Parameters": TEMPLATE["Parameters"], "Resources": {"Queue": queue, **resources}}
    (folder / "template.yaml").write_text(yaml.safe_dump(template))
