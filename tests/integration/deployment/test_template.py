import json
import os
import re
import tomllib
from typing import Any

import pytest
import yaml
from shepherd_core.bmdb.schema.migrate import migrations
from shepherd_core.domain.clock import ANSWER_SECONDS
from shepherd_core.domain.provider import Capability
from shepherd_core.settings.base import PREFIX
from shepherd_core.settings.deployment import DeploymentSettings
from shepherd_core.settings.effective import FIXED, GIVEN
from shepherd_core.settings.functions.specs import FUNCTION_SECONDS, FUNCTIONS, LOOPS
from shepherd_core.settings.providers import BUILT_IN, find
from shepherd_core.settings.sources import DEFAULT_PREFIX
from shepherd_core.wiring.adapters import MIGRATION_LIMITS

from shepherdctl.deployment.template import parameters
from simulator.lambda_.sam_local import logical_id
from tests.support.deployment.deployments import (
    DEPLOYMENTS,
    EC2,
    HTTP_API,
    IAM,
    KEY,
    PSEUDO,
    REDFISH,
    ROOT,
    SMALLEST,
    STATIC,
    TEMPLATE,
    TOPIC,
    VPC,
    Stack,
    source,
    stack_of,
)

OBSERVED: dict[str, Any] = source("templates/observability.yaml")["Mappings"]
PARAMETERS: dict[str, dict[str, Any]] = TEMPLATE["Parameters"]
STACK_UUID = PSEUDO["AWS::StackId"].rpartition("/")[2]


def as_read(stack: Stack) -> str:
    named: dict[str, list[str]] = {}
    for name, resource in sorted(stack.resources.items()):
        named.setdefault(resource["Type"], []).append(name)
    unread = {"AlarmDescription"}  # which docs/metrics.md repeats
    resources = {
        name: {
            **{key: value for key, value in resource.items() if key in {"DependsOn", "DeletionPolicy"}},
            **{key: value for key, value in resource.get("Properties", {}).items() if key not in unread},
        }
        for name, resource in stack.resources.items()
        if resource["Type"] != "AWS::CloudFormation::Stack"
    }
    resources["ScheduleGroup"]["Metadata"] = stack.resources["ScheduleGroup"]["Metadata"]
    made = {"Names": named, "Outputs": stack.outputs, "Resources": resources}
    return re.sub(r"(CoreLayer(Arm64|X86))[0-9a-f]+", r"\1", yaml.safe_dump(made, width=120, default_flow_style=None))


@pytest.mark.parametrize(
    ("name", "deployment"),
    [
        ("function-url", REDFISH),
        (
            "http-api",
            {**EC2, **IAM, **VPC, **HTTP_API, "KmsKeyArn": KEY, "AlarmTopicArn": TOPIC, "Architecture": "x86_64",
             "LoopMinutes": "2,5,10,0", "ReservedConcurrency": "2,10"},
        ),
    ],
)  # fmt: skip
def test_cloudformation_gets_what_was_read_and_nothing_else(name: str, deployment: dict[str, str]) -> None:
    """A new version of SAM, or a careless property, can add a policy, an endpoint or a permission."""
    file, made = ROOT / "tests" / "data" / "stacks" / f"{name}.yaml", as_read(stack_of(deployment))
    if os.environ.get("WRITE_STACKS"):
        file.write_text(made, encoding="utf-8")
    assert made == file.read_text(encoding="utf-8"), "if that is meant: make stacks, and read what changed"


def schedule(stack: Stack, loop: str) -> dict[str, Any]:
    target = f"<{logical_id(loop)}.Arn>"
    (found,) = [each for each in stack.of_type("AWS::Scheduler::Schedule").values() if each["Target"]["Arn"] == target]
    return found


def test_a_deployment_has_at_most_twelve_questions() -> None:
    """What needs neither a permission nor a resource belongs into the settings document."""
    assert len(PARAMETERS) <= 12


def test_every_rate_that_is_accepted_is_known() -> None:
    """The pattern refuses what the mappings do not have; alarms evaluate at least twice the time between two runs."""
    minutes = TEMPLATE["Mappings"]["Minutes"]
    accepted = [
        value for value in range(100) if re.search(PARAMETERS["LoopMinutes"]["AllowedPattern"], f"{value},1,1,1")
    ]
    assert [str(value) for value in accepted] == list(minutes) == list(OBSERVED["Minutes"])
    for text, schedule in minutes.items():
        evaluated = OBSERVED["Minutes"][text]
        value = max(int(text), 1)
        assert schedule["Rate"] == f"rate({value} minute{'s' if value > 1 else ''})"
        assert (schedule["State"], evaluated["MissingData"]) == (
            ("ENABLED", "breaching") if int(text) else ("DISABLED", "notBreaching")
        )
        assert evaluated["AlarmSeconds"] >= 2 * 60 * value


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_is_told_exactly_what_it_reads(function: str) -> None:
    """A variable that nothing reads would be believed in; a document cannot have what only the deployment knows."""
    for deployment in DEPLOYMENTS:
        stack = stack_of(deployment)
        told = {name.removeprefix(PREFIX).removeprefix("DEFAULT_").lower() for name in stack.environment(function)}
        spec = find(stack.parameters["Provider"])
        of_provider = {f"provider_{name}" for name in spec.settings.model_fields}
        read = {"settings", *of_provider, *DeploymentSettings.model_fields}.union(
            *(settings.model_fields for settings in FUNCTIONS.values())
        )
        assert told <= read
        assert FUNCTIONS[function].model_fields.keys() & GIVEN <= told
        assert {f"provider_{name}" for name in spec.given if function in LOOPS} <= told


def test_a_new_document_knows_what_it_cannot_decide() -> None:
    """What stands in the environment wins, so that a permission and what it is for stay the same."""
    told = {name for each in DEPLOYMENTS for loop in LOOPS for name in stack_of(each).environment(loop)}
    fixed = {name.removeprefix(PREFIX).lower() for name in told if not name.startswith(DEFAULT_PREFIX)}
    of_providers = {f"provider_{name}" for each in BUILT_IN for name in find(each).given}
    known = {"settings", *DeploymentSettings.model_fields, *of_providers, *FIXED}
    assert fixed - known == {"bmdb_user"}  # only where IAM names it
    assert fixed > FIXED


def test_the_rules_between_settings_know_the_deployment_s_figures() -> None:
    """No function is told the timeouts of the others, which the rules compare with."""
    assert {each: stack_of(STATIC).properties(each)["Timeout"] for each in FUNCTIONS} == FUNCTION_SECONDS
    assert DeploymentSettings().loop_minutes == PARAMETERS["LoopMinutes"]["Default"]


def test_the_migrator_runs_for_a_schema_and_ends_in_time() -> None:
    """CloudFormation runs it only when something of the resource changes. One that is killed cannot say why."""
    stack = stack_of(STATIC)
    schema = stack.resources["BmdbSchema"]["Properties"]
    assert schema["SchemaVersion"] == str(len(migrations())) == str(migrations()[-1].version)
    assert MIGRATION_LIMITS.statement + ANSWER_SECONDS <= FUNCTION_SECONDS["migrator"] < schema["ServiceTimeout"]


def test_permissions_name_what_they_are_for() -> None:
    """A wildcard needs a condition beside it, or nothing but names that are not known before the call."""
    statements = [each for one in DEPLOYMENTS for function in FUNCTIONS for each in stack_of(one).statements(function)]
    assert not [statement for statement in statements if "*" in str(statement["Action"])]
    wide = [statement for statement in statements if "*" in str(statement["Resource"])]
    assert {statement["Sid"] for statement in wide if "Condition" not in statement} == {
        "Log",  # the streams of one group
        "ReadCredential",  # of BMCs, as the list names them, below one path
        "LaunchWithInterface",  # which is made with the instance
        "LaunchFromImage",  # one image, in whichever region and account it is
        "LaunchFromTemplate",  # likewise
        "ReplaceRootVolumes",  # as the interface; of an instance that has the tag
        "ReplaceByImage",  # as the launch
    }


def test_secrets_are_named_and_never_given() -> None:
    """What stands in a function's environment can be read by everybody who may look at the function."""
    files = ("template.yaml", "templates/permissions.yaml", "templates/observability.yaml")
    text = "".join((ROOT / name).read_text(encoding="utf-8") for name in files)
    assert "NoEcho" not in text
    assert "{{resolve:" not in text


def test_answers_that_contradict_others_are_refused() -> None:
    (told,) = stack_of({**EC2, "Ec2Resources": ""}).refusals
    assert told == "The provider ec2 needs Ec2Resources, which says with what instances may be launched."


# By parameter, what is taken and what is refused; an empty answer is one for `sam deploy --guided`.
VALUES: dict[str, tuple[list[str], list[str]]] = {
    "Bucket": (["my-bucket.example"], ["", "*", "s3://bucket", "bucket/folder", "${aws:username}"]),
    "BmdbHost": ([], [""]),
    "BmdbLogin": (["prx-0123", "one-password"], ["cluster-*", ""]),
    "Ec2Resources": (
        ["m7i.metal-24xl,subnet-0a1,sg-0b2,ami-0c3,lt-0d4,u-6tb1.metal"],
        ["*.metal", "subnet-0a1, subnet-0b2", "subnet-*", "a-name"],
    ),
    "LoopMinutes": (["1,1,1,1", "10,0,30,60"], ["1,1,1", "1, 1, 1, 1", "1,1,1,7", "rate(1 minute)"]),
    "ReservedConcurrency": (["2,10"], ["0,10", "2", "-1,10"]),
    "AlarmTopicArn": ([TOPIC], ["somebody@example.com"]),
    "KmsKeyArn": ([KEY], ["alias/aws/ssm"]),
    "Vpc": (
        ["subnet-0a1,subnet-0b2:sg-0c3"],
        ["subnet-0a1, subnet-0b2:sg-0c3", "subnet-0a1,subnet-0b2", "subnet-0a1:", ":sg-0c3"],
    ),
    "AgentEndpoints": (["http-api,function-url"], ["", "http-api,http-api"]),
}


@pytest.mark.parametrize("parameter", VALUES)
def test_a_senseless_or_permission_widening_value_is_refused(parameter: str) -> None:
    """Parameters become part of the resources in policies, where a wildcard would count."""
    taken, refused = VALUES[parameter]
    assert [each for each in taken + refused if re.fullmatch(parameters()[parameter].pattern, each)] == taken


@pytest.mark.parametrize("provider", SMALLEST)
def test_the_recoverer_runs_by_default_where_providers_can_reboot(provider: str) -> None:
    """A Recoverer that is left out leaves unhealthy machines alone for ever; one that cannot reboot only fails."""
    able = Capability.REBOOT in find(provider).always
    for loop, minutes, runs in (
        ("recoverer", "1,1,1,1", able),
        ("recoverer", "1,1,0,1", False),
        ("updater", "1,1,0,1", True),
        ("updater", "1,1,1,0", False),
    ):
        stack = stack_of({**SMALLEST[provider], "LoopMinutes": minutes})
        assert schedule(stack, loop)["State"] == ("ENABLED" if runs else "DISABLED")


def test_the_answers_suggested_in_samconfig_are_enough_for_a_deployment() -> None:
    lines = (ROOT / "samconfig.example.toml").read_text(encoding="utf-8").splitlines()
    first = lines.index("# parameter_overrides = [")
    last = lines.index("# ]")
    text = "\n".join([*lines[:first], *(line.removeprefix("# ") for line in lines[first : last + 1])])
    suggested = tomllib.loads(text)["default"]["deploy"]["parameters"]["parameter_overrides"]
    answers = dict(answer.replace("BUCKET", "bucket").split("=", 1) for answer in suggested)
    asked = parameters()
    assert {*answers} >= {name for name, each in asked.items() if each.default is None}
    assert all(re.fullmatch(asked[name].pattern, value.strip("'")) for name, value in answers.items())
    assert all(" " not in value or value[0] == value[-1] == "'" for value in answers.values())


def test_every_parameter_that_a_page_names_exists() -> None:
    """Pages say NAME=VALUE for what is given to `sam deploy`; filters of AWS's commands and units only look like it."""
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    text = re.sub(r"(?s)--filters \S+|\[Unit\].*?\sWantedBy=", "", text)
    given = set(re.findall(r"\b([A-Z]\w*[a-z]\w*)=", text))
    files = ("template.yaml", "templates/database.yaml", "templates/people.yaml")
    known = set().union(*(source(each)["Parameters"] for each in files))
    assert {"LoopMinutes", "Provider", "Operators"} <= given <= known


def test_whatever_is_chosen_holds_together() -> None:
    """Each condition is right alone; together they must not leave a hole: an empty policy, a reference to nothing."""
    outcomes = set()
    for deployment in DEPLOYMENTS:
        stack = stack_of(deployment)  # which fails for a reference to what is not there
        assert stack.refusals == [], deployment
        assert len(stack.of_type("AWS::Lambda::LayerVersion")) == 1, deployment
        assert all(map(stack.statements, FUNCTIONS)), deployment
        for policy in stack.of_type("AWS::IAM::ManagedPolicy").values():
            assert policy["PolicyDocument"]["Statement"], deployment
        outcomes |= {(index, *each) for index, found in enumerate(stack.conditions) for each in found.items()}
    assert len(outcomes) > 40
    once = {(index, name) for index, name, holds in outcomes if (index, name, not holds) not in outcomes}
    assert once == set(), "each condition is tried both ways"


@pytest.mark.parametrize("loop", LOOPS)
def test_the_schedule_sends_the_event_that_the_tests_use(loop: str) -> None:
    """EventBridge Scheduler fills in the time; everything else stands in the file."""
    sent = schedule(stack_of(STATIC), loop)["Target"]["Input"]
    sample = json.loads((ROOT / "events" / f"{loop}.json").read_text(encoding="utf-8"))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", sample["scheduled_time"])
    assert json.loads(sent.replace("<aws.scheduler.scheduled-time>", sample["scheduled_time"])) == sample


URL_ENDPOINT = f"<AgentUrl.FunctionUrl>{STACK_UUID}"
API_ENDPOINT = f"https://<AgentApi>.execute-api.eu-central-1.amazonaws.com/{STACK_UUID}"
URL_RESOURCES = {"AgentUrl", "AgentUrlPermission", "AgentUrlInvokePermission"}
API_RESOURCES = {"AgentApi", "AgentApiStage", "AgentApiRoute", "AgentApiIntegration", "AgentApiPermission"}


@pytest.mark.parametrize(
    ("endpoints", "first", "made"),
    [
        ("function-url", URL_ENDPOINT, URL_RESOURCES),
        ("http-api", API_ENDPOINT, API_RESOURCES),
        ("function-url,http-api", URL_ENDPOINT, URL_RESOURCES | API_RESOURCES),
        ("http-api,function-url", API_ENDPOINT, URL_RESOURCES | API_RESOURCES),
    ],
)
def test_new_agents_report_to_the_first_endpoint_of_the_deployment(endpoints: str, first: str, made: set[str]) -> None:
    """Its address is not known before the deployment, so no question asks for it; the other serves running agents."""
    stack = stack_of({**STATIC, "AgentEndpoints": endpoints})
    assert stack.environment("initializer")["SHEPHERD_DEFAULT_AGENT_ENDPOINT"] == first
    assert made == stack.resources.keys() & (URL_RESOURCES | API_RESOURCES)
    watched = str(stack.resources["AgentApiErrorsAlarm"])
    assert ("AWS/ApiGateway" in watched) is (first == API_ENDPOINT)
