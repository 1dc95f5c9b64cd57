from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from shepherd_core.providers.ec2 import objects
from shepherd_core.settings.functions.specs import FUNCTIONS, LOOPS
from shepherd_core.settings.providers.ec2 import Ec2Settings

from tests.support.deployment.deployments import (
    EC2,
    EC2_BY_TEMPLATE,
    EC2_SETTINGS,
    EC2_TEMPLATE_SETTINGS,
    PSEUDO,
    stack_of,
)
from tests.support.deployment.iam import allows

TOKEN = UUID("0a4bc1a8-7c5f-4c0f-9a53-6b4b5b1f0001")
CHOSEN = [
    (EC2, EC2_SETTINGS),
    (EC2_BY_TEMPLATE, EC2_TEMPLATE_SETTINGS),
    ({**EC2, "Ec2Resources": f"{EC2['Ec2Resources']},lt-0e5"}, {**EC2_SETTINGS, **EC2_TEMPLATE_SETTINGS}),
]
FLEET = PSEUDO["AWS::StackName"]
OF_TEMPLATE = {"image": "ami-0f6", "security-group": "sg-0f6", "snapshot": "snap-0f6", "key-pair": "people"}
"""What the launch template names, besides the type, where the request does not."""


def arn(kind: str, name: str = "new") -> str:
    owner = "" if kind in {"image", "snapshot"} else PSEUDO["AWS::AccountId"]
    return f"arn:aws:ec2:{PSEUDO['AWS::Region']}:{owner}:{kind}/{name}"


def statements(deployment: dict[str, str], function: str) -> list[dict[str, Any]]:
    return stack_of(deployment).statements(function)


def request(settings: dict[str, str], **changes: str) -> dict[str, Any]:
    read = Ec2Settings.model_validate({"fleet": FLEET, **settings, **changes})
    wanted = objects.launch(read, "ours/1", TOKEN, "ssh-ed25519 AAAA", "")
    return {**wanted, "SubnetId": read.subnets.split(",")[0]}


def checks(asked: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield what EC2 checks of a launch, as the Service Authorization Reference tells: action, resource, context."""
    template = asked.get("LaunchTemplate", {}).get("LaunchTemplateId")
    launched = {} if template is None else {"ec2_LaunchTemplate": arn("launch-template", template)}
    in_template = {**launched, "ec2_IsLaunchTemplateResource": "true"}
    named: dict[str, dict[str, Any]] = {
        arn("network-interface"): {},
        arn("subnet", asked["SubnetId"]): {"ec2_SubnetID": asked["SubnetId"]},
    }
    for group in asked.get("SecurityGroupIds", []):
        named[arn("security-group", group)] = {"ec2_SecurityGroupID": group}
    if "ImageId" in asked:
        named[arn("image", asked["ImageId"])] = {}
    for each in asked["TagSpecifications"]:
        tags = {tag["Key"]: tag["Value"] for tag in each["Tags"]}
        given = {"aws_TagKeys": list(tags), **{f"aws_RequestTag/{key}": value for key, value in tags.items()}}
        of_instance = {"ec2_InstanceType": asked.get("InstanceType", "m7i.metal-24xl")}
        named[arn(each["ResourceType"])] = {**given, **(of_instance if each["ResourceType"] == "instance" else {})}
        yield "ec2:CreateTags", arn(each["ResourceType"]), {**given, "ec2_CreateAction": "RunInstances"}
    yield from (("ec2:RunInstances", resource, {**launched, **context}) for resource, context in named.items())
    if template is not None:
        yield "ec2:RunInstances", arn("launch-template", template), in_template
        kinds = {resource.split(":")[5].split("/")[0] for resource in named}
        for kind, name in OF_TEMPLATE.items():
            if kind not in kinds:
                own = {"ec2_SecurityGroupID": name} if kind == "security-group" else {}
                yield "ec2:RunInstances", arn(kind, name), {**in_template, **own}


def refused(deployment: dict[str, str], asked: dict[str, Any]) -> list[str]:
    """Return the resources that the Provisioner may not launch with, or tag, as it is *asked* for."""
    allowed = statements(deployment, "provisioner")
    return [resource for action, resource, context in checks(asked) if not allows(allowed, action, resource, **context)]


@pytest.mark.parametrize(
    ("changes", "resource"),
    [
        ({}, None),
        ({"fleet": "theirs"}, arn("instance")),
        ({"machine_type": "p5.48xlarge"}, arn("instance")),
        ({"subnets": "subnet-0f6"}, arn("subnet", "subnet-0f6")),
        ({"security_groups": "sg-0f6"}, arn("security-group", "sg-0f6")),
        ({"image": "ami-0f6"}, arn("image", "ami-0f6")),
        ({"launch_template": "lt-0f6"}, arn("launch-template", "lt-0f6")),
    ],
)
@pytest.mark.parametrize(("deployment", "settings"), CHOSEN, ids=["image", "template", "both"])
def test_the_provisioner_may_launch_what_was_chosen_alone(
    deployment: dict[str, str], settings: dict[str, str], changes: dict[str, str], resource: str | None
) -> None:
    found = refused(deployment, request(settings, **changes))
    assert resource in found if resource else found == []


HERE, ELSEWHERE = ({"aws_RequestedRegion": region} for region in (PSEUDO["AWS::Region"], "us-west-2"))
OURS, THEIRS = ({"aws_ResourceTag/shepherd-fleet": fleet} for fleet in (FLEET, "theirs"))
NEW_IS_OURS = {"aws_RequestTag/shepherd-fleet": FLEET, "aws_TagKeys": ["shepherd-fleet"]}
REPLACE = "CreateReplaceRootVolumeTask"
SMALL: list[tuple[str, str, str, dict[str, Any], bool]] = [
    # Anyone who could tag what is there could make any instance one of ours, and give ours another host key.
    ("provisioner", "RunInstances", arn("instance"), {}, False),
    ("provisioner", "CreateTags", arn("instance", "i-1"), NEW_IS_OURS, False),
    ("provisioner", "CreateTags", arn("instance", "i-1"), {"aws_TagKeys": ["shepherd-host-key"]}, False),
    (
        "provisioner",
        "CreateTags",
        arn("instance"),
        {**NEW_IS_OURS, "ec2_CreateAction": "RunInstances", "aws_TagKeys": ["shepherd-fleet", "another"]},
        False,
    ),
    # Restarted is the fleet, and installed what the settings name.
    *(
        ("recoverer", action, arn("instance", "i-1"), context, context is OURS)
        for action in ("RebootInstances", "StopInstances", "StartInstances", REPLACE)
        for context in (OURS, THEIRS, {})
    ),
    ("recoverer", REPLACE, arn("volume"), {}, True),
    ("recoverer", REPLACE, arn("replace-root-volume-task"), {}, True),
    ("recoverer", REPLACE, arn("image", EC2_SETTINGS["image"]), {}, True),
    ("recoverer", REPLACE, arn("image", "ami-0f6"), {}, False),
    # Of what is looked at, EC2 lets nothing be said but the region.
    *(
        (function, "DescribeInstances", "*", region, region is HERE and function in LOOPS)
        for function in FUNCTIONS
        for region in (HERE, ELSEWHERE)
    ),
]


@pytest.mark.parametrize(("function", "action", "resource", "context", "allowed"), SMALL)
def test_tags_restarts_and_looks_are_allowed_of_the_fleet_alone(
    function: str, action: str, resource: str, context: dict[str, Any], *, allowed: bool
) -> None:
    assert allows(statements(EC2, function), f"ec2:{action}", resource, **context) is allowed
