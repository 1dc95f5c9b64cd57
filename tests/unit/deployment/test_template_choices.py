"""template.yaml with the operator's choices filled in: what is refused, and what each choice makes of the rest."""

import re
import tomllib

import pytest
from shepherd_core.domain.provider import Capability
from shepherd_core.settings.providers import BUILT_IN, find

from tests.support.deployment.cloudformation import read_file
from tests.support.deployment.deployments import (
    DEPLOYMENTS,
    EC2,
    ROOT,
    SMALLEST,
    STATIC,
    TEMPLATE,
    TOPIC,
    VPC,
    stack_of,
    templates,
)

CAPABILITIES = {name: find(name).always for name in BUILT_IN}


@pytest.mark.parametrize(
    ("deployment", "refused"),
    [
        *(({**STATIC, nothing: ""}, [nothing]) for nothing in STATIC),
        (
            {**EC2, "Ec2Resources": ""},
            ["The provider ec2 needs Ec2Resources, which says with what instances may be launched."],
        ),
    ],
)
def test_answers_that_lack_or_contradict_others_are_refused(deployment: dict[str, str], refused: list[str]) -> None:
    """`sam deploy --guided` takes an empty answer for one."""
    assert stack_of(deployment).refusals() == refused


@pytest.mark.parametrize(
    ("parameter", "value", "allowed"),
    [
        ("Bucket", "my-bucket.example", True),
        ("Bucket", "*", False),
        ("Bucket", "s3://bucket", False),
        ("Bucket", "bucket/folder", False),
        ("Bucket", "${aws:username}", False),
        ("BmdbLogin", "cluster-*", False),
        ("BmdbLogin", "prx-0123", True),
        ("BmdbLogin", "one-password", True),
        ("BmdbLogin", "", False),
        ("Ec2Resources", "m7i.metal-24xl,subnet-0a1,sg-0b2,ami-0c3,lt-0d4,u-6tb1.metal", True),
        ("Ec2Resources", "*.metal", False),
        ("Ec2Resources", "subnet-0a1, subnet-0b2", False),
        ("Ec2Resources", "subnet-*", False),
        ("Ec2Resources", "a-name", False),
        ("LoopMinutes", "1,1,1,1", True),
        ("LoopMinutes", "10,0,30,60", True),
        ("LoopMinutes", "1,1,1", False),
        ("LoopMinutes", "1, 1, 1, 1", False),
        ("LoopMinutes", "1,1,1,7", False),
        ("LoopMinutes", "rate(1 minute)", False),
        ("ReservedConcurrency", "2,10", True),
        ("ReservedConcurrency", "0,10", False),
        ("ReservedConcurrency", "2", False),
        ("ReservedConcurrency", "-1,10", False),
        ("AlarmTopicArn", TOPIC, True),
        ("AlarmTopicArn", "somebody@example.com", False),
        ("KmsKeyArn", "alias/aws/ssm", False),
        ("Vpc", "subnet-0a1,subnet-0b2:sg-0c3", True),
        ("Vpc", "subnet-0a1, subnet-0b2:sg-0c3", False),
        ("Vpc", "subnet-0a1,subnet-0b2", False),
        ("Vpc", "subnet-0a1:", False),
        ("Vpc", ":sg-0c3", False),
        ("AgentEndpoints", "http-api,function-url", True),
        ("AgentEndpoints", "", False),
        ("AgentEndpoints", "http-api,http-api", False),
    ],
)
def test_a_senseless_or_permission_widening_value_is_refused(parameter: str, value: str, allowed: bool) -> None:
    """Parameters become part of the resources in policies, where a wildcard would count."""
    deployment = {**STATIC, **VPC, parameter: value}
    assert (parameter not in stack_of(deployment).refusals()) is allowed


def test_the_choices_tried_make_every_condition_true_and_false() -> None:
    for index, template in enumerate(templates()):
        outcomes: dict[str, set[bool]] = {name: set() for name in template["Conditions"]}
        for deployment in DEPLOYMENTS:
            stack = stack_of(deployment)
            for name, found in outcomes.items():
                found.add([stack, *stack.nested.values()][index].holds(name))
        assert {name for name, found in outcomes.items() if found != {True, False}} == set()


def schedule_state(loop: str, **answers: str) -> str:
    function = stack_of({**STATIC, **answers}).resources[f"{loop.capitalize()}Function"]["Properties"]
    state: str = function["Events"]["Schedule"]["Properties"]["State"]
    return state


@pytest.mark.parametrize("provider", SMALLEST)
def test_the_recoverer_runs_by_default_where_providers_can_reboot(provider: str) -> None:
    """A Recoverer that is left out leaves unhealthy machines alone for ever; one that cannot reboot only fails."""
    able = Capability.REBOOT in CAPABILITIES[provider]
    assert schedule_state("recoverer", **SMALLEST[provider]) == ("ENABLED" if able else "DISABLED")
    assert schedule_state("recoverer", **SMALLEST[provider], LoopMinutes="1,1,0,1") == "DISABLED"
    assert schedule_state("updater", **SMALLEST[provider], LoopMinutes="1,1,0,1") == "ENABLED"
    assert schedule_state("updater", **SMALLEST[provider], LoopMinutes="1,1,1,0") == "DISABLED"


def test_the_answers_suggested_in_samconfig_are_enough_for_a_deployment() -> None:
    lines = (ROOT / "samconfig.example.toml").read_text(encoding="utf-8").splitlines()
    first = lines.index("# parameter_overrides = [")
    last = lines.index("# ]")
    text = "\n".join([*lines[:first], *(line.removeprefix("# ") for line in lines[first : last + 1])])
    suggested = tomllib.loads(text)["default"]["deploy"]["parameters"]["parameter_overrides"]
    answers = dict(answer.replace("BUCKET", "bucket").split("=", 1) for answer in suggested)
    assert stack_of({name: value.strip("'") for name, value in answers.items()}).refusals() == []
    assert all(" " not in value or value[0] == value[-1] == "'" for value in answers.values())


def test_every_parameter_that_a_page_names_exists() -> None:
    """Pages say NAME=VALUE for what is given to `sam deploy`; filters of AWS's commands and units only look like it."""
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    text = re.sub(r"(?s)--filters \S+|\[Unit\].*?\sWantedBy=", "", text)
    given = set(re.findall(r"\b([A-Z]\w*[a-z]\w*)=", text))
    others = [read_file(ROOT / "templates" / name) for name in ("database.yaml", "people.yaml")]
    parameters = [each["Parameters"] for each in (TEMPLATE, *others)]
    assert {"LoopMinutes", "Provider", "Operators"} <= given <= set().union(*parameters)
