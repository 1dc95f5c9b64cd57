"""template.yaml with the operator's choices filled in: what is refused, and what each choice makes of the rest."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
from shepherd_core.domain.provider import Capability
from shepherd_core.settings.providers import SPECS

from tests.support.deployment.cloudformation import Stack
from tests.support.deployment.deployments import (
    DEPLOYMENTS,
    DOMAIN,
    EC2,
    EC2_BY_TEMPLATE,
    ENDPOINT,
    EQUINIX,
    FUNCTIONS,
    HETZNER,
    IAM,
    REDFISH,
    ROOT,
    SMALLEST,
    STATIC,
    TEMPLATE,
    TOPIC,
    VPC,
    logical_id,
)

CAPABILITIES = {spec.name: spec.always for spec in SPECS}


@pytest.mark.parametrize(
    ("deployment", "refused"),
    [
        (STATIC, []),
        (EQUINIX, []),
        ({**EQUINIX, "RecovererScheduleState": "ENABLED"}, []),
        ({**STATIC, "RecovererScheduleState": "DISABLED"}, []),
        ({**STATIC, **IAM}, []),
        ({**STATIC, **DOMAIN, **ENDPOINT}, []),
        ({**STATIC, **VPC}, []),
        ({**STATIC, **VPC, "VpcIpv6": "true"}, []),
        ({**STATIC, "StaticList": ""}, ["The provider static needs StaticList."]),
        (
            {**STATIC, "RecovererScheduleState": "ENABLED"},
            ["The provider static cannot reboot machines, so RecovererScheduleState must not be ENABLED."],
        ),
        (REDFISH, []),
        ({**REDFISH, "RedfishList": ""}, ["The provider redfish needs RedfishList."]),
        (EC2, []),
        (EC2_BY_TEMPLATE, []),
        ({**EC2, "Ec2Fleet": ""}, ["The provider ec2 needs Ec2Fleet."]),
        ({**EC2, "Ec2Limit": ""}, ["The provider ec2 needs Ec2Limit."]),
        ({**EC2, "Ec2Subnets": ""}, ["The provider ec2 needs Ec2Subnets."]),
        (
            {**EC2_BY_TEMPLATE, "Ec2LaunchTemplate": ""},
            [
                "The provider ec2 needs Ec2SecurityGroups or Ec2LaunchTemplate.",
                "The provider ec2 needs Ec2Image or Ec2LaunchTemplate.",
                "The provider ec2 needs Ec2InstanceType or Ec2LaunchTemplate.",
            ],
        ),
        (HETZNER, []),
        ({**HETZNER, "HetznerNamePrefix": ""}, ["The provider hetzner needs HetznerNamePrefix."]),
        ({**HETZNER, "HetznerKeyName": ""}, ["The provider hetzner needs HetznerKeyName."]),
        ({**EQUINIX, "EquinixProjectId": ""}, ["The provider equinix needs EquinixProjectId."]),
        ({**EQUINIX, "EquinixDevicePrefix": ""}, ["The provider equinix needs EquinixDevicePrefix."]),
        ({**EQUINIX, "EquinixKeyLabel": ""}, ["The provider equinix needs EquinixKeyLabel."]),
        (
            {**STATIC, **IAM, "BmdbResourceId": ""},
            ["BmdbAuth iam needs BmdbResourceId, which says to what the functions may connect."],
        ),
        ({**STATIC, **DOMAIN, "AgentApiCertificateArn": ""}, ["AgentApiDomain needs AgentApiCertificateArn."]),
        (
            {**STATIC, **DOMAIN, "AgentApiDomain": ""},
            ["AgentApiCertificateArn has no effect without AgentApiDomain."],
        ),
        ({**STATIC, **VPC, "VpcSecurityGroupIds": ""}, ["VpcSubnetIds need VpcSecurityGroupIds."]),
        (
            {**STATIC, **VPC, "VpcSubnetIds": ""},
            ["VpcSecurityGroupIds have no effect without VpcSubnetIds."],
        ),
        ({**STATIC, "VpcIpv6": "true"}, ["VpcIpv6 has no effect without VpcSubnetIds."]),
    ],
)
def test_what_does_not_fit_together_is_refused_before_anything_is_made(
    deployment: dict[str, str], refused: list[str]
) -> None:
    """Otherwise it would fail in every invocation, or after ten minutes of a deployment."""
    assert Stack(TEMPLATE, deployment).refusals() == refused


@pytest.mark.parametrize("nothing", [name for name in STATIC if name != "StaticList"])
def test_what_nobody_can_know_must_be_said(nothing: str) -> None:
    """`sam deploy --guided` takes an empty answer for one."""
    assert Stack(TEMPLATE, {**STATIC, nothing: ""}).refusals() == [nothing]


@pytest.mark.parametrize(
    ("parameter", "value", "allowed"),
    [
        ("StaticList", "https://example.com/machines.json", True),
        ("StaticList", "s3://bucket/key/machines.json", True),
        ("StaticList", "http://example.com/machines.json", False),
        ("StaticList", "ssm:machines", False),
        ("StaticList", "s3://bucket/*", False),
        ("AgentSource", "s3://my-bucket.example/builds/agent", True),
        ("AgentSource", "s3://bucket/age?t", False),
        ("AgentSource", "s3://*/agent", False),
        ("AgentSource", "s3://bucket/${aws:username}", False),
        ("BmdbCaSource", "https://truststore.pki.rds.amazonaws.com/global/global-bundle.pem", True),
        ("BmdbCaSource", "ssm:/shepherd/*", False),
        ("BmdbPasswordParameter", "", True),
        ("BmdbPort", "65536", False),
        ("BmdbResourceId", "cluster-*", False),
        ("BmdbResourceId", "prx-0123", True),
        ("BmdbUser", "*", False),
        ("BmdbUser", "fleet/other", False),
        ("SshKeyParameter", "/shepherd/ssh-key", True),
        ("SshKeyParameter", "/shepherd/*", False),
        ("SshKeyParameter", "ssh-key", False),
        ("AgentPath", "/root/a b", False),
        ("AgentHeartbeatSeconds", "300", True),
        ("AgentHeartbeatSeconds", "86400", True),
        ("AgentHeartbeatSeconds", "86401", False),
        ("AgentHeartbeatSeconds", "0", False),
        ("AgentEndpoint", "agents.example.com:443", True),
        ("AgentEndpoint", "https://agents.example.com/fleet", True),
        ("AgentEndpoint", "https://user@agents.example.com", False),
        ("AgentEndpoint", "http://agents.example.com", False),
        ("AgentEndpoint", "https://agents.example.com?fleet", False),
        ("AgentApiDomain", "https://agents.example.com", False),
        ("AgentApiDomain", "*.example.com", False),
        ("AgentApiRate", "0", False),
        ("RemediationPolicy", "restart-agent,reboot:2,reinstall:1:boot-wait=900:grace=7200,quarantine", True),
        ("RemediationPolicy", "reboot:3, quarantine", False),
        ("RemediationPolicy", "", False),
        ("BreakerMaxUnhealthyShare", "0.05", True),
        ("BreakerMaxUnhealthyShare", "20", False),
        ("EquinixDevicePrefix", "FIXME-", False),
        ("EquinixKeyLabel", "our FIXME", False),
        ("RedfishList", "s3://bucket/*", False),
        ("RedfishCredentialPath", "/shepherd/bmc", False),
        ("RedfishCredentialPath", "/", False),
        ("RedfishCredentialPath", "/shepherd/*/", False),
        ("RedfishBootSource", "https://images.example.com/installer.iso", True),
        ("RedfishBootSource", "https://user:password@example.com/installer.iso", False),
        ("Ec2Fleet", "our fleet", False),
        ("Ec2Fleet", "*", False),
        ("Ec2Fleet", "FIXME", False),
        ("Ec2Limit", "0", False),
        ("Ec2Limit", "1001", False),
        ("Ec2Subnets", "subnet-0a1, subnet-0b2", False),
        ("Ec2Subnets", "*", False),
        ("Ec2SecurityGroups", "sg-*", False),
        ("Ec2Image", "ami-*", False),
        ("Ec2LaunchTemplate", "a-name", False),
        ("HetznerCredentialParameter", "/shepherd/*", False),
        ("HetznerNamePrefix", "FIXME-", False),
        ("ProvisionerRate", "cron(0/5 * * * ? *)", True),
        ("ProvisionerRate", "1 minute", False),
        ("RecovererRate", "rate(1 minute)", True),
        ("RecovererRate", "rate(5 minutes)", True),
        ("RecovererRate", "rate(30 minutes)", True),
        ("RecovererRate", "cron(0/10 8-18 * * ? *)", True),
        ("RecovererRate", "rate(1 minutes)", False),
        ("RecovererRate", "rate(0 minutes)", False),
        ("RecovererRate", "rate(31 minutes)", False),
        ("RecovererRate", "rate(300 minutes)", False),
        ("RecovererRate", "rate(1 hour)", False),
        ("RecovererRate", "rate(1 day)", False),
        ("RecovererRate", "cron()", False),
        ("InitializerReservedConcurrency", "0", True),
        ("InitializerReservedConcurrency", "-1", False),
        ("AlarmTopicArn", TOPIC, True),
        ("AlarmTopicArn", "somebody@example.com", False),
        ("KmsKeyArn", "alias/aws/ssm", False),
        ("VpcSubnetIds", "subnet-0a1, subnet-0b2", False),
    ],
)
def test_a_value_is_refused_that_makes_no_sense_or_would_widen_a_permission(
    parameter: str, value: str, allowed: bool
) -> None:
    """Parameters become part of the resources in policies, where a wildcard would count."""
    chosen = next((each for name, each in SMALLEST.items() if parameter.lower().startswith(name)), STATIC)
    deployment = {**chosen, **VPC, parameter: value}
    assert (parameter not in Stack(TEMPLATE, deployment).refusals()) is allowed


def test_whatever_is_chosen_holds_together() -> None:
    """Each condition is right alone; together they must not leave a hole: an empty policy, a reference to nothing."""
    for deployment in DEPLOYMENTS:
        stack = Stack(TEMPLATE, deployment)  # whose resources raise KeyError for a reference to what is not there
        assert stack.refusals() == [], deployment
        assert len(stack.of_type("AWS::Serverless::LayerVersion")) == 1, deployment
        assert all(map(stack.statements, stack.of_type("AWS::Serverless::Function"))), deployment
        for policy in stack.of_type("AWS::IAM::ManagedPolicy").values():
            assert policy["PolicyDocument"]["Statement"], deployment


def _condition_names(value: Any) -> set[str]:
    """Return the conditions that a part of the template names."""
    if isinstance(value, list):
        return {name for inner in value for name in _condition_names(inner)}
    if not isinstance(value, dict):
        return set()
    named = {value["Fn::If"][0]} if "Fn::If" in value else set()
    if isinstance(value.get("Condition"), str):
        named.add(value["Condition"])
    return named.union(*(_condition_names(inner) for inner in value.values()))


def test_the_choices_tried_make_every_condition_true_and_false() -> None:
    """What was never tried both ways is not covered by the test before."""
    outcomes: dict[str, set[bool]] = {name: set() for name in TEMPLATE["Conditions"]}
    concurrency = {logical_id(function, "ReservedConcurrency"): "1" for function in FUNCTIONS if function != "migrator"}
    states = {**EQUINIX, "InitializerScheduleState": "DISABLED", "UpdaterScheduleState": "DISABLED"}
    for deployment in [*DEPLOYMENTS, {**states, **concurrency}]:
        stack = Stack(TEMPLATE, deployment)
        for name, found in outcomes.items():
            found.add(stack.holds(name))
    assert {name for name, found in outcomes.items() if found != {True, False}} == set()
    assert _condition_names([TEMPLATE[part] for part in ("Conditions", "Globals", "Resources")]) == outcomes.keys()


@pytest.mark.parametrize("provider", SMALLEST)
def test_the_recoverer_runs_unless_told_otherwise_where_the_provider_can_reboot(provider: str) -> None:
    """A Recoverer that is left out leaves silent machines alone for ever; one that cannot reboot only fails."""
    deployment = SMALLEST[provider]
    able = Capability.REBOOT in CAPABILITIES[provider]
    assert Stack(TEMPLATE, deployment).holds("RecovererRuns") is able
    assert not Stack(TEMPLATE, {**deployment, "RecovererScheduleState": "DISABLED"}).holds("RecovererRuns")
    assert (not Stack(TEMPLATE, {**deployment, "RecovererScheduleState": "ENABLED"}).refusals()) is able


def test_what_each_provider_can_do_was_tried() -> None:
    """The template knows by name who can reboot."""
    assert set(SMALLEST) == set(CAPABILITIES)
    assert list(SMALLEST) == TEMPLATE["Parameters"]["Provider"]["AllowedValues"]


def test_subnets_become_a_list() -> None:
    """They are one text, because the rules of CloudFormation cannot look into a list."""
    # Globals are merged by SAM; here they are looked at as they stand.
    globals_ = TEMPLATE["Globals"]["Function"]["VpcConfig"]
    assert Stack(TEMPLATE, {**STATIC, **VPC}).resolve(globals_) == {
        "SubnetIds": ["subnet-0a1", "subnet-0b2"],
        "SecurityGroupIds": ["sg-0c3"],
        "Ipv6AllowedForDualStack": "false",
    }


def test_the_answers_suggested_in_samconfig_are_enough_for_a_deployment() -> None:
    """Who takes the comment signs away and fills in the names gets a deployment that is not refused."""
    lines = (ROOT / "samconfig.toml").read_text(encoding="utf-8").splitlines()
    first = lines.index("# parameter_overrides = [")
    last = lines.index("# ]")
    text = "\n".join([*lines[:first], *(line.removeprefix("# ") for line in lines[first : last + 1])])
    suggested = tomllib.loads(text)["default"]["deploy"]["parameters"]["parameter_overrides"]
    answers = dict(answer.replace("BUCKET", "bucket").split("=", 1) for answer in suggested)
    assert Stack(TEMPLATE, {name: value.strip("'") for name, value in answers.items()}).refusals() == []
    assert all(" " not in value or value[0] == value[-1] == "'" for value in answers.values())


def test_guided_deployments_ask_first_for_what_nobody_can_know() -> None:
    """SAM asks in the order of the template, for everything; after these, Enter is an answer."""
    unknowable = {name for deployment in SMALLEST.values() for name in deployment}
    assert set(list(TEMPLATE["Parameters"])[: len(unknowable)]) == unknowable
    assert list(TEMPLATE["Parameters"])[len(unknowable)] == "BmdbPort"


def test_guided_deployments_do_not_ask_whether_the_api_may_be_open() -> None:
    """SAM asks that of every API that says nothing about it, and Enter would mean no, after all the other answers."""
    assert TEMPLATE["Resources"]["AgentApi"]["Properties"]["Auth"] == {"EnableIamAuthorizer": False}


def test_every_parameter_that_a_page_names_exists() -> None:
    """Pages say NAME=VALUE for what is given to `sam deploy`; the filters of AWS's command line only look like it."""
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    text = re.sub(r"--filters \S+", "", "\n".join(page.read_text(encoding="utf-8") for page in pages))
    given = set(re.findall(r"\b([A-Z]\w*[a-z]\w*)=", text))
    assert {"BmdbAuth", "ProvisionerScheduleState"} <= given <= TEMPLATE["Parameters"].keys()
