"""What SAM makes of template.yaml, which is what CloudFormation gets to see."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from shepherd_core.settings.base import PREFIX
from shepherd_core.settings.functions.loops import ProvisionerSettings
from shepherd_core.settings.functions.specs import FUNCTIONS, LOOPS

from tests.support.deployment.cloudformation import PSEUDO, Stack
from tests.support.deployment.deployments import (
    DEPLOYMENTS,
    HTTP_API,
    REDFISH,
    ROOT,
    STATIC,
    VPC,
    logical_id,
    transformed,
)

STACK_UUID = PSEUDO["AWS::StackId"].rpartition("/")[2]
EVERY_FUNCTION = pytest.mark.parametrize("function", FUNCTIONS)
EVERY_LOOP = pytest.mark.parametrize("loop", LOOPS)


def deployed(**answers: str) -> Stack:
    return Stack(transformed(), {**STATIC, **answers})


def properties(stack: Stack, function: str) -> dict[str, Any]:
    found: dict[str, Any] = stack.resources[logical_id(function)]["Properties"]
    return found


def schedule(stack: Stack, loop: str) -> dict[str, Any]:
    target = f"<{logical_id(loop)}.Arn>"
    (found,) = [each for each in stack.of_type("AWS::Scheduler::Schedule").values() if each["Target"]["Arn"] == target]
    return found


def as_read(stack: Stack) -> str:
    """Return what is in ``tests/data/stack.yaml`` of a stack: all names, and one loop beside what is no loop."""
    named: dict[str, list[str]] = {}
    for name, resource in sorted(stack.resources.items()):
        named.setdefault(resource["Type"], []).append(name)
    shown = {
        name: {key: value for key, value in resource.items() if key not in {"Metadata", "Type"}}
        for name, resource in stack.resources.items()
        if resource["Type"] not in {"AWS::CloudWatch::Alarm", "AWS::CloudFormation::Stack", "AWS::IAM::ManagedPolicy"}
        and not name.startswith(("Provisioner", "Initializer", "Recoverer"))
    }
    text = yaml.safe_dump({"Names": named, "Resources": shown}, width=120, default_flow_style=None)
    return re.sub(r"(CoreLayerArm64)[0-9a-f]+", r"\1", text)


def test_cloudformation_gets_what_was_read_and_nothing_else(tmp_path: Path) -> None:
    """A new version of SAM, or a careless property, can add a policy, an endpoint or a permission."""
    new, read = tmp_path / "stack.yaml", ROOT / "tests" / "data" / "stack.yaml"
    new.write_text(as_read(Stack(transformed(), {**REDFISH, "AgentEndpoints": "function-url,http-api"})))
    assert new.read_text() == read.read_text(), f"if that is meant, see that it is right, and: cp {new} {read}"


@pytest.mark.parametrize("loop", LOOPS)
def test_loops_differ_in_names_size_and_what_they_may_read(loop: str) -> None:
    stack, own = Stack(transformed(), REDFISH), {"MemorySize", "Timeout"}

    def of(each: str) -> dict[str, Any]:
        base = each.capitalize()
        found = {
            name: {key: value for key, value in resource["Properties"].items() if key not in own}
            for name, resource in stack.resources.items()
            if name.startswith(base) and resource["Type"] not in {"AWS::CloudWatch::Alarm", "AWS::IAM::ManagedPolicy"}
        }
        text = json.dumps(found).replace(base, "Updater").replace(each, "updater")
        return dict(json.loads(text))

    assert of(loop) == of("updater")
    assert len(of(loop)) == 6


def test_whatever_is_chosen_holds_together() -> None:
    """Each condition is right alone; together they must not leave a hole: an empty policy, a reference to nothing."""
    for deployment in DEPLOYMENTS:
        stack = Stack(transformed(), deployment)  # whose resources raise KeyError for a reference to what is not there
        assert stack.refusals() == [], deployment
        assert len(stack.of_type("AWS::Lambda::LayerVersion")) == 1, deployment
        assert all(map(stack.statements, stack.of_type("AWS::Lambda::Function"))), deployment
        for policy in stack.of_type("AWS::IAM::ManagedPolicy").values():
            assert policy["PolicyDocument"]["Statement"], deployment


@EVERY_LOOP
def test_the_schedule_sends_the_event_that_the_tests_use(loop: str) -> None:
    """EventBridge Scheduler fills in the time; everything else stands in the file."""
    sent = schedule(deployed(), loop)["Target"]["Input"]
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
    stack = deployed(AgentEndpoints=endpoints)
    variables = properties(stack, "initializer")["Environment"]["Variables"]
    assert variables["SHEPHERD_DEFAULT_AGENT_ENDPOINT"] == first
    assert made == stack.resources.keys() & (URL_RESOURCES | API_RESOURCES)


def test_the_api_lets_the_fleet_through_that_settings_allow() -> None:
    """The limit bounds what strangers can cost; settings of a fleet that needs more are refused with what to set."""
    stack = deployed(**HTTP_API)
    (stage,) = stack.of_type("AWS::ApiGatewayV2::Stage").values()
    rate = properties(stack, "migrator")["Environment"]["Variables"]["SHEPHERD_AGENT_API_RATE"]
    assert stage["DefaultRouteSettings"] == {"ThrottlingRateLimit": rate, "ThrottlingBurstLimit": rate}
    assert 2 * ProvisionerSettings.model_fields["max_machines"].default / 60 < int(rate) <= 1_250


@EVERY_FUNCTION
def test_a_function_follows_each_choice(function: str) -> None:
    """What was not chosen is left out: a new account has no concurrency to give."""
    plain = properties(deployed(), function)
    chosen = deployed(**VPC, ReservedConcurrency="2,10", Architecture="x86_64")
    found = properties(chosen, function)
    assert plain.keys().isdisjoint({"VpcConfig", "ReservedConcurrentExecutions"})
    assert found["VpcConfig"] == {"SubnetIds": ["subnet-0a1", "subnet-0b2"], "SecurityGroupIds": ["sg-0c3"]}
    reserved = {"migrator": None, "agent_api": "10"}.get(function, "2")  # the Migrator runs once in a deployment
    assert found.get("ReservedConcurrentExecutions") == reserved
    told = found["Environment"]["Variables"]
    assert (told[PREFIX + "LOOP_CONCURRENCY"], told[PREFIX + "AGENT_API_CONCURRENCY"]) == ("2", "10")
    for stack, each, architecture in ((deployed(), plain, "arm64"), (chosen, found, "x86_64")):
        layer = stack.resources[each["Layers"][0].strip("<>")]["Properties"]
        assert each["Architectures"] == layer["CompatibleArchitectures"] == [architecture]
        assert [each["Runtime"]] == layer["CompatibleRuntimes"]
    # SAM's own policy for a network reaches every subnet.
    assert chosen.of_type("AWS::IAM::Role") == deployed().of_type("AWS::IAM::Role")
