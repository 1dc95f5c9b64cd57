import json
import re

import pytest

from shepherdctl.people import Person
from tests.support.deployment.deployments import (
    EACH,
    HTTP_API,
    IAM,
    KEY,
    ONE_PASSWORD,
    PSEUDO,
    ROOT,
    STATIC,
    VPC,
    source,
    stack_of,
)
from tests.support.deployment.iam import allows, listed
from tests.support.deployment.people import PEOPLE, own_statements, stack, statements

_WHERE = f"{PSEUDO['AWS::Region']}:{PSEUDO['AWS::AccountId']}"

# What CloudFormation asks for what our resources lack: file systems, signed code, delivery of logs.
UNUSED = re.compile(
    r"elasticfilesystem:|s3files:|firehose:|kms:|s3:REST|s3:getObject|lambda:(PassCapacity|AssociateRuntime)"
    r"|lambda:\w*CodeSigning|logs:\w*(ResourcePolicy|ResourcePolicies|DataProtection|Delivery|IndexPolic)"
)
NAMED = {
    "AWS::Lambda::Function": ("FunctionName", "lambda:UpdateFunctionCode", f"lambda:{_WHERE}:function:"),
    "AWS::Lambda::LayerVersion": ("LayerName", "lambda:PublishLayerVersion", f"lambda:{_WHERE}:layer:"),
    "AWS::Logs::LogGroup": ("LogGroupName", "logs:PutRetentionPolicy", f"logs:{_WHERE}:log-group:"),
    "AWS::CloudWatch::Alarm": ("AlarmName", "cloudwatch:PutMetricAlarm", f"cloudwatch:{_WHERE}:alarm:"),
    "AWS::Scheduler::ScheduleGroup": ("Name", "scheduler:CreateScheduleGroup", f"scheduler:{_WHERE}:schedule-group/"),
}
"""By type, the property with the name, an action on it, and what its ARN begins with."""


def asked_by_cloudformation(kind: str) -> set[str]:
    """Return the actions that AWS says CloudFormation takes to make, change and delete a resource of this type."""
    (folder,) = ROOT.glob(".venv-sam/lib/python3*/site-packages/cfnlint/data/schemas")
    names = json.loads((folder / "providers" / "us-east-1.json").read_text())
    handlers = json.loads((folder / "resources" / f"{names[kind]}.json").read_text()).get("handlers", {})
    asked = {action for name, each in handlers.items() if name != "list" for action in each["permissions"]}
    return {action for action in asked if not UNUSED.match(action)}


@pytest.mark.parametrize(
    "deployment", [{**each, **HTTP_API, **VPC} for each in EACH], ids=lambda each: each.get("Provider")
)
def test_an_administrator_may_do_what_cloudformation_does_for_one(deployment: dict[str, str]) -> None:
    allowed = statements(Person.ADMINISTRATOR, Provider=deployment.get("Provider", "static"))
    resources = stack_of(deployment).resources.values()
    kinds = {each["Type"] for each in resources if not each["Type"].startswith(("Custom::", "AWS::Serverless::"))}
    assert len(kinds) > len(NAMED)
    patterns = [each for statement in allowed for each in listed(statement["Action"])]
    for kind in kinds:
        for action in asked_by_cloudformation(kind):
            assert any(re.fullmatch(each.replace("*", ".*"), action) for each in patterns), (kind, action)
    for kind, (name, action, arn) in NAMED.items():
        for each in resources:
            if each["Type"] == kind:
                assert allows(allowed, action, f"arn:aws:{arn}{each['Properties'][name]}")


@pytest.mark.parametrize("deployment", EACH, ids=lambda each: each.get("Provider"))
def test_an_operator_may_ask_the_provider_as_the_loops_do(deployment: dict[str, str]) -> None:
    provider = deployment.get("Provider", "static")
    allowed = statements(Person.OPERATOR, Provider=provider, Bucket=STATIC["Bucket"])
    policy = stack_of(deployment).resources["ProviderPolicy"]["Properties"]["PolicyDocument"]
    for statement in policy["Statement"]:
        for action in listed(statement["Action"]):
            for resource in listed(statement["Resource"]):
                assert allows(allowed, action, resource, aws_RequestedRegion=PSEUDO["AWS::Region"])


@pytest.mark.parametrize("answers", [{}, {**IAM, "KmsKeyArn": KEY}], ids=["passwords", "iam"])
@pytest.mark.parametrize("provider", ["static", "redfish", "ec2", "latitude"])
def test_a_policy_is_no_longer_than_aws_takes(provider: str, answers: dict[str, str]) -> None:
    for person in PEOPLE:
        document = json.dumps(own_statements(person, Provider=provider, **answers), separators=(",", ":"))
        assert len(document) < 6_144 - 100  # the version, and longer names than here; AWS counts no white space


def test_nobody_may_more_than_their_kind() -> None:
    """But for the password of the database user who may change nothing, no reader reads a secret."""
    reader, operator, administrator = (statements(person) for person in PEOPLE)
    assert {each["Effect"] for each in administrator} == {"Allow"}, "so that the policies add up"
    actions = {action for each in operator for action in listed(each["Action"])}
    writes = {action for action in actions if not action.startswith("ec2:")}
    assert writes == {"logs:FilterLogEvents", "s3:GetObject", "ssm:GetParameter"}
    for name in ("ssh-key", "ssh-key.previous", "bmdb-password", "bmdb-password-operator", "bmdb-password-recoverer"):
        resource = f"arn:aws:ssm:{_WHERE}:parameter/shepherd/{name}"
        assert not allows(reader, "ssm:GetParameter", resource), name
        assert allows(administrator, "ssm:GetParameter", resource), name
    own = stack().resources["Administrator"]["Properties"]["ManagedPolicyName"]
    policy = f"arn:aws:iam::{PSEUDO['AWS::AccountId']}:policy/{own}"
    assert not allows(administrator, "iam:CreatePolicyVersion", policy)


@pytest.mark.parametrize(
    ("name", "value", "taken"),
    [
        ("BmdbLogin", ONE_PASSWORD["BmdbLogin"], False),
        ("BmdbLogin", IAM["BmdbLogin"], True),
        ("Stack", 24 * "a", False),
        ("Stack", 23 * "a", True),
    ],
)
def test_answers_without_people_are_refused(name: str, value: str, *, taken: bool) -> None:
    assert bool(re.fullmatch(source("templates/people.yaml")["Parameters"][name]["AllowedPattern"], value)) is taken
