"""What SAM makes of template.yaml, which is what CloudFormation gets to see."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from shepherd_core.settings.base import PREFIX, variable
from shepherd_core.settings.functions import FUNCTIONS, LOOPS
from shepherd_core.settings.functions.bmdb import BmdbSettings
from shepherd_core.settings.functions.loops import InitializerSettings, ProvisionerSettings
from shepherd_core.settings.functions.services import AgentApiSettings, MigratorSettings
from shepherd_core.settings.providers import find
from shepherd_core.settings.sources import load

from tests.support.deployment.cloudformation import PSEUDO, Stack
from tests.support.deployment.deployments import (
    DEPLOYMENTS,
    EQUINIX,
    HTTP_API,
    IAM,
    KEY,
    REDFISH,
    REQUIRED,
    ROOT,
    SMALLEST,
    STATIC,
    TOPIC,
    VPC,
    logical_id,
    transformed,
)

STACK_UUID = PSEUDO["AWS::StackId"].rpartition("/")[2]
OF_THE_DEPLOYMENT = {PREFIX + name for name in ("SETTINGS", "BUCKET_OWNER", "LOOP_MINUTES", "DEFAULT_AGENT_ENDPOINT")}
"""What is no setting of a function, but of the deployment."""
EVERY_FUNCTION = pytest.mark.parametrize("function", FUNCTIONS)
EVERY_LOOP = pytest.mark.parametrize("loop", LOOPS)
EVERY_PROVIDER = pytest.mark.parametrize("provider", SMALLEST)


def deployed(**answers: str) -> Stack:
    return Stack(transformed(), {**STATIC, **answers})


def properties(stack: Stack, function: str) -> dict[str, Any]:
    found: dict[str, Any] = stack.resources[logical_id(function)]["Properties"]
    return found


def schedule(stack: Stack, loop: str) -> dict[str, Any]:
    target = f"<{logical_id(loop)}.Arn>"
    (found,) = [each for each in stack.of_type("AWS::Scheduler::Schedule").values() if each["Target"]["Arn"] == target]
    return found


def needs(stack: Stack, resource: str) -> set[str]:
    found: set[str] = set()
    todo = [resource]
    while todo:
        described = stack.resources[todo.pop()]
        named = (
            {described["DependsOn"]}
            if isinstance(described.get("DependsOn"), str)
            else set(described.get("DependsOn", []))
        )
        named |= set(re.findall(r"<(\w+)[.>]", json.dumps(described)))
        named &= stack.resources.keys()
        todo += named - found
        found |= named
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


@EVERY_PROVIDER
@EVERY_LOOP
def test_a_loop_finds_settings_in_its_environment(loop: str, provider: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is deployed starts with what its provider wants in its document, and names no other provider's secret."""
    stack = Stack(transformed(), SMALLEST[provider])
    environment = properties(stack, loop)["Environment"]["Variables"]
    settings = (FUNCTIONS[loop], find(provider).settings)
    document = {variable(find(provider).settings, key): value for key, value in REQUIRED[provider].items()}
    for name, value in {**environment, **document}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(PREFIX + "AGENT_ENDPOINT", environment["SHEPHERD_DEFAULT_AGENT_ENDPOINT"])
    load(*settings)
    known = {variable(each, name) for each in (*settings, InitializerSettings) for name in each.model_fields}
    assert environment.keys() - known == OF_THE_DEPLOYMENT


@pytest.mark.parametrize(
    ("function", "settings_type"), [("migrator", MigratorSettings), ("agent_api", AgentApiSettings)]
)
def test_who_needs_the_database_alone_knows_no_other_secret(
    function: str, settings_type: type[BmdbSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor where secrets are that are none of its business; what else it knows, it checks settings with."""
    environment = properties(deployed(**IAM), function)["Environment"]["Variables"]
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    (settings,) = load(settings_type)
    assert (settings.bmdb_auth, settings.bmdb_user) == ("iam", "shepherd")
    known = {PREFIX + name.upper() for name in settings_type.model_fields}
    assert environment.keys() - known == {
        PREFIX + name for name in ("SETTINGS", "BUCKET_OWNER", "PROVIDER", "LOOP_MINUTES")
    }


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
    # What is given out must answer by then.
    given_out = URL_RESOURCES if first == URL_ENDPOINT else API_RESOURCES
    assert needs(stack, "InitializerFunctionSchedule") >= {"AgentApiFunction", *given_out}


def test_the_api_lets_the_fleet_through_that_settings_allow() -> None:
    """The limit bounds what strangers can cost; settings of a fleet that needs more are refused with what to set."""
    stack = deployed(**HTTP_API)
    (stage,) = stack.of_type("AWS::ApiGatewayV2::Stage").values()
    rate = properties(stack, "migrator")["Environment"]["Variables"]["SHEPHERD_AGENT_API_RATE"]
    assert stage["DefaultRouteSettings"] == {"ThrottlingRateLimit": rate, "ThrottlingBurstLimit": rate}
    assert 2 * ProvisionerSettings.model_fields["max_machines"].default / 60 < int(rate) <= 1_250


@pytest.mark.parametrize("function", [*LOOPS, "agent_api"])
def test_nothing_starts_before_the_schema_is_there(function: str) -> None:
    """A migration that fails leaves the functions as they were; one that is under way keeps new ones waiting."""
    stack = deployed()
    for resource in (logical_id(function), f"{logical_id(function)}Schedule"):
        assert resource not in stack.resources or "BmdbSchema" in needs(stack, resource)


def test_the_migrator_is_ready_when_the_schema_is_asked_for() -> None:
    """With its permissions and its log, also while everything is deleted in the opposite order."""
    needed = needs(deployed(**VPC), "BmdbSchema")
    assert {"MigratorFunction", "MigratorRole", "FunctionPolicy", "MigratorLogs"} <= needed
    assert not needed & set(map(logical_id, LOOPS))


@pytest.mark.parametrize("function", [*LOOPS, "agent_api"])
def test_reserved_concurrency_is_set_only_when_it_is_asked_for(function: str) -> None:
    """A new account has none to give."""
    key, answer = "ReservedConcurrentExecutions", {"ReservedConcurrency": "2,10"}
    assert key not in properties(deployed(), function)
    assert properties(deployed(**answer), function)[key] == ("2" if function in LOOPS else "10")
    assert key not in properties(deployed(**answer), "migrator")  # which runs once in a deployment
    told = properties(deployed(**answer), function)["Environment"]["Variables"]
    assert (told[PREFIX + "LOOP_CONCURRENCY"], told[PREFIX + "AGENT_API_CONCURRENCY"]) == ("2", "10")


@EVERY_FUNCTION
def test_a_function_joins_the_network_that_was_chosen(function: str) -> None:
    assert "VpcConfig" not in properties(deployed(), function)
    assert properties(deployed(**VPC), function)["VpcConfig"] == {
        "SubnetIds": ["subnet-0a1", "subnet-0b2"],
        "SecurityGroupIds": ["sg-0c3"],
    }
    # SAM's own policy for it reaches every subnet.
    assert deployed(**VPC).of_type("AWS::IAM::Role") == deployed().of_type("AWS::IAM::Role")


@EVERY_FUNCTION
@pytest.mark.parametrize("architecture", ["arm64", "x86_64"])
def test_a_function_gets_the_layer_for_its_processor(function: str, architecture: str) -> None:
    stack = deployed(Architecture=architecture)
    found = properties(stack, function)
    (layer,) = found["Layers"]
    assert (
        found["Architectures"]
        == stack.resources[layer.strip("<>")]["Properties"]["CompatibleArchitectures"]
        == [architecture]
    )
    assert [found["Runtime"]] == stack.resources[layer.strip("<>")]["Properties"]["CompatibleRuntimes"]


def test_a_tick_with_everything_chosen_is_like_any_other() -> None:
    plain = deployed(**EQUINIX)
    rich = deployed(**EQUINIX, **VPC, **IAM, KmsKeyArn=KEY, AlarmTopicArn=TOPIC, Architecture="x86_64")
    for loop in LOOPS:
        assert schedule(plain, loop) == schedule(rich, loop)
