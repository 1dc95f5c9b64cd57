"""What operators may choose: the deployments that the tests try the template with."""

from __future__ import annotations

import subprocess
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shepherd_core.settings.providers import SPECS

from simulator.lambda_ import sam_local
from tests.support.deployment.cloudformation import read, read_file

if TYPE_CHECKING:
    from shepherd_core.settings.functions import Settings

ROOT = Path(__file__).parents[3]
TEMPLATE = read_file(ROOT / "template.yaml")
LOOPS = ("provisioner", "initializer", "recoverer", "updater")
FUNCTIONS = ("migrator", *LOOPS, "agent_api")

# The smallest deployments that there are.
STATIC = {
    "BmdbHost": "db.example.com",
    "StaticList": "ssm:/shepherd/machines",
    "AgentSource": "s3://bucket/agent",
}
_NO_LIST = {name: value for name, value in STATIC.items() if name != "StaticList"}
REDFISH = {
    **_NO_LIST,
    "Provider": "redfish",
    "RedfishList": "ssm:/shepherd/racks",
}
EQUINIX = {
    **_NO_LIST,
    "Provider": "equinix",
    "EquinixProjectId": "0b9d4a3e",
    "EquinixDevicePrefix": "ours-",
    "EquinixKeyLabel": "ours",
}
_EC2 = {**_NO_LIST, "Provider": "ec2", "Ec2Fleet": "ours", "Ec2Limit": "3", "Ec2Subnets": "subnet-0a1,subnet-0b2"}
EC2 = {**_EC2, "Ec2SecurityGroups": "sg-0c3", "Ec2Image": "ami-0d4", "Ec2InstanceType": "m7i.metal-24xl"}
EC2_BY_TEMPLATE = {**_EC2, "Ec2LaunchTemplate": "lt-0e5"}
HETZNER = {
    **_NO_LIST,
    "Provider": "hetzner",
    "HetznerNamePrefix": "ours-",
    "HetznerKeyName": "ours",
}
SMALLEST = {"static": STATIC, "redfish": REDFISH, "equinix": EQUINIX, "ec2": EC2, "hetzner": HETZNER}
"""By provider."""
PROVIDER_SETTINGS: dict[str, type[Settings]] = {spec.name: spec.settings for spec in SPECS}

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
    (
        STATIC,
        {**STATIC, "StaticList": "s3://bucket/machines.json"},
        {**STATIC, "StaticList": "/list"},
        {**REDFISH, "RedfishCaSource": "s3://bucket/ca.pem"},
        {**REDFISH, "RedfishList": "s3://bucket/racks.json", "RedfishCaSource": "ssm:/ca"},
        EQUINIX,
        EC2,
        EC2_BY_TEMPLATE,
        HETZNER,
    ),
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
