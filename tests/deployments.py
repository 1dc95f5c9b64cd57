"""What operators may choose: the deployments that the tests try the template with."""

from __future__ import annotations

import subprocess
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from simulator import sam_local
from tests.cloudformation import read, read_file

ROOT = Path(__file__).parents[1]
TEMPLATE = read_file(ROOT / "template.yaml")
LOOPS = ("provisioner", "initializer", "recoverer", "updater")
FUNCTIONS = ("migrator", *LOOPS, "agent_api")

# The smallest deployments that there are.
STATIC = {
    "BmdbHost": "db.example.com",
    "StaticList": "ssm:/shepherd/machines",
    "AgentSource": "s3://bucket/agent",
}
EQUINIX = {
    **STATIC,
    "Provider": "equinix",
    "StaticList": "",
    "EquinixProjectId": "0b9d4a3e",
    "EquinixDevicePrefix": "ours-",
    "EquinixKeyLabel": "ours",
}

# What can be chosen besides.
IAM = {"BmdbAuth": "iam", "BmdbResourceId": "cluster-ABC123", "BmdbUser": "fleet"}
VPC = {"VpcSubnetIds": "subnet-0a1,subnet-0b2", "VpcSecurityGroupIds": "sg-0c3"}
DOMAIN = {
    "AgentApiDomain": "agents.example.com",
    "AgentApiCertificateArn": "arn:aws:acm:eu-central-1:123456789012:certificate/1234-abcd",
}
ENDPOINT = {"AgentEndpoint": "agents.example.net:443"}
TOPIC = "arn:aws:sns:eu-central-1:123456789012:alarms"
KEY = "arn:aws:kms:eu-central-1:123456789012:key/1234-abcd"

_CHOICES: tuple[tuple[dict[str, str], ...], ...] = (
    (STATIC, {**STATIC, "StaticList": "s3://bucket/machines.json"}, {**STATIC, "StaticList": "/list"}, EQUINIX),
    ({}, {"BmdbPasswordParameter": ""}, IAM),
    ({}, {"BmdbCaSource": "ssm:/ca"}, {"BmdbCaSource": "s3://bucket/ca.pem"}),
    ({}, {"AgentSource": "/opt/agent", "AgentCaSource": "s3://bucket/agents.pem", **DOMAIN}),
    ({}, {**VPC, "VpcIpv6": "true", "KmsKeyArn": KEY}),
    ({}, {"Architecture": "x86_64", "AlarmTopicArn": TOPIC, "ProvisionerScheduleState": "DISABLED", **ENDPOINT}),
)
DEPLOYMENTS = [{name: value for choice in chosen for name, value in choice.items()} for chosen in product(*_CHOICES)]
"""Every combination of what the conditions look at."""


logical_id = sam_local.logical_id


def deployed_name(function: str) -> str:
    """Return what AWS calls it, behind the name of the stack."""
    return function.replace("_", "-")


@cache
def transformed() -> dict[str, Any]:
    """Return template.yaml as CloudFormation gets to see it: with what SAM makes of it."""
    python = ROOT / ".venv-sam" / "bin" / "python"
    assert python.exists(), "SAM has an environment of its own, which is missing: make .venv-sam/.ready"
    text = subprocess.run([python, ".ci/transform.py"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return read(text)
