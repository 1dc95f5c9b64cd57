"""template.yaml says what the code expects: held to the settings, to the events and to our rules for deployments."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pytest
import yaml
from pydantic import TypeAdapter, ValidationError
from shepherd_core.config import (
    PREFIX,
    EquinixSettings,
    InitializerSettings,
    ProvisionerSettings,
    RecovererSettings,
    Settings,
    StaticSettings,
    load,
)
from shepherd_core.control_loop import MARGIN_SECONDS
from shepherd_core.providers.equinix import EquinixProvider
from shepherd_core.providers.static import StaticProvider
from shepherd_core.provisioner import CREATE_SECONDS
from shepherd_core.runtime import CLOSING_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
LOOPS: dict[str, type[Settings]] = {
    "provisioner": ProvisionerSettings,
    "initializer": InitializerSettings,
    "recoverer": RecovererSettings,
}
PROVIDERS: tuple[type[Settings], ...] = (StaticSettings, EquinixSettings)
EVERY_LOOP = pytest.mark.parametrize("loop", LOOPS)

# What an operator must say, because nobody can know it.
ANSWERS = {
    "BmdbHost": "db.example.com",
    "StaticList": "ssm:/shepherd/machines",
    "EquinixProjectId": "0b9d4a3e",
    "EquinixDevicePrefix": "ours-",
    "EquinixKeyLabel": "ours",
    "AgentSource": "s3://bucket/agent",
    "AgentEndpoint": "agents.example.com:443",
}
# Who deploys to AWS has a database with a password; the settings themselves ask for none.
OTHER_DEFAULTS = {"bmdb_password_parameter"}


class _Loader(yaml.SafeLoader):  # type: ignore[misc] # PyYAML publishes no types
    """Read the short forms of CloudFormation's functions as their long forms."""


def _function(loader: yaml.SafeLoader, suffix: str, node: yaml.Node) -> dict[str, Any]:
    name = suffix if suffix in {"Ref", "Condition"} else f"Fn::{suffix}"
    if isinstance(node, yaml.ScalarNode):
        return {name: loader.construct_scalar(node)}
    if isinstance(node, yaml.SequenceNode):
        return {name: loader.construct_sequence(node, deep=True)}
    return {name: loader.construct_mapping(node, deep=True)}


_Loader.add_multi_constructor("!", _function)

TEMPLATE: dict[str, Any] = yaml.load((ROOT / "template.yaml").read_text(encoding="utf-8"), _Loader)
PARAMETERS: dict[str, dict[str, Any]] = TEMPLATE["Parameters"]
RESOURCES: dict[str, dict[str, Any]] = TEMPLATE["Resources"]
GLOBALS: dict[str, Any] = TEMPLATE["Globals"]["Function"]


def _properties(logical_id: str) -> dict[str, Any]:
    properties: dict[str, Any] = RESOURCES[logical_id]["Properties"]
    return properties


def _function_properties(loop: str) -> dict[str, Any]:
    return _properties(f"{loop.capitalize()}Function")


def _schedule(loop: str) -> dict[str, Any]:
    (event,) = _function_properties(loop)["Events"].values()
    assert event["Type"] == "ScheduleV2"
    properties: dict[str, Any] = event["Properties"]
    return properties


def _environment(loop: str) -> dict[str, Any]:
    """Return the variables of the function, those of all functions included, as the template has them."""
    own: dict[str, Any] = _function_properties(loop)["Environment"]["Variables"]
    shared: dict[str, Any] = GLOBALS["Environment"]["Variables"]
    assert not own.keys() & shared.keys()
    return shared | own


def _value(variable: Any) -> str:
    """Return what the function sees when the operator gave ANSWERS and left the rest as it is."""
    if isinstance(variable, str):
        return variable
    parameter = variable["Ref"]
    return str(ANSWERS[parameter] if parameter in ANSWERS else PARAMETERS[parameter]["Default"])


def _fields(loop: str) -> dict[str, Any]:
    """Return the settings of the function and of all providers: environment variable to field."""
    fields = [field for settings in (LOOPS[loop], *PROVIDERS) for field in settings.model_fields.items()]
    return {PREFIX + name.upper(): field for name, field in fields}


def _parameters_of_settings() -> Iterator[Any]:
    """Yield each parameter that is a setting, with the field of the settings that it fills."""
    for loop in LOOPS:
        fields = _fields(loop)
        for variable, value in _environment(loop).items():
            if isinstance(value, dict):
                yield pytest.param(value["Ref"], fields.get(variable), id=f"{loop}-{value['Ref']}")


EVERY_SETTING = pytest.mark.parametrize(("parameter", "field"), list(_parameters_of_settings()))


def _walk(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield every key with its value, however deep."""
    if isinstance(value, dict):
        yield from value.items()
        for inner in value.values():
            yield from _walk(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _walk(inner)


def _statements() -> list[dict[str, Any]]:
    """Return every statement of every policy that a function gets, whatever its condition."""
    documents = [value for key, value in _walk(RESOURCES) if key == "PolicyDocument"]
    found = []
    for statement in (statement for document in documents for statement in document["Statement"]):
        found += [part for part in statement["Fn::If"] if "Sid" in part] if "Fn::If" in statement else [statement]
    assert found
    return found


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


@EVERY_LOOP
def test_a_function_gets_exactly_its_settings(loop: str) -> None:
    """A missing variable cannot be set by `sam local invoke` either; one too many is a setting that nobody reads."""
    assert _environment(loop).keys() == _fields(loop).keys()


@EVERY_LOOP
def test_what_the_template_leaves_alone_has_the_default_of_the_settings(
    loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two places that give different defaults would make every document about one of them wrong."""
    for variable, value in _environment(loop).items():
        monkeypatch.setenv(variable, _value(value))
    for settings in load(LOOPS[loop], *PROVIDERS):
        for name, field in type(settings).model_fields.items():
            if not field.is_required() and name not in OTHER_DEFAULTS:
                assert getattr(settings, name) == field.default, name


@EVERY_SETTING
def test_a_parameter_is_described_as_its_setting(parameter: str, field: Any) -> None:
    """An operator reads the same sentence in the console and in docs/operations.md."""
    assert PARAMETERS[parameter]["Description"] == field.description


@EVERY_SETTING
def test_a_parameter_allows_nothing_that_its_setting_refuses(parameter: str, field: Any) -> None:
    """A wrong value must fail the deployment, not every later invocation."""
    rules = PARAMETERS[parameter]
    adapter: TypeAdapter[Any] = TypeAdapter(field.rebuild_annotation())
    for value in [*rules.get("AllowedValues", []), *(rules[key] for key in ("MinValue", "MaxValue") if key in rules)]:
        adapter.validate_python(str(value))
    if "MaxValue" in rules:
        with pytest.raises(ValidationError):
            adapter.validate_python(str(rules["MaxValue"] + 1))


def test_every_provider_can_be_chosen() -> None:
    """A provider that the code knows and the template does not cannot be deployed."""
    choices = get_args(ProvisionerSettings.model_fields["provider"].annotation)
    assert tuple(PARAMETERS["Provider"]["AllowedValues"]) == choices


@EVERY_LOOP
def test_the_schedule_sends_what_the_events_show(loop: str) -> None:
    """Tests and `sam local invoke` feed the file to the handler; the schedule must not send anything else."""
    sent = json.loads(_schedule(loop)["Input"])
    sample = json.loads((ROOT / "events" / f"{loop}.json").read_text(encoding="utf-8"))
    assert sent.pop("scheduled_time") == "<aws.scheduler.scheduled-time>"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", sample.pop("scheduled_time"))
    assert sent == sample == {"loop": loop, "dry_run": False}


@EVERY_LOOP
def test_nothing_but_the_bmdb_repeats_work(loop: str) -> None:
    """A tick that was throttled for an hour, or tried three times, would undo the backoff of the BMDB."""
    never = {"MaximumRetryAttempts": 0, "MaximumEventAgeInSeconds": 60}
    assert _schedule(loop)["RetryPolicy"] == never
    assert {key: GLOBALS["EventInvokeConfig"][key] for key in never} == never
    assert "EventInvokeConfig" not in _function_properties(loop)


@EVERY_LOOP
def test_a_tick_that_failed_is_kept(loop: str) -> None:
    """Nothing repeats it, so somebody must be able to see that it happened."""
    queue = {"Fn::GetAtt": "FailureQueue.Arn"}
    assert _schedule(loop)["DeadLetterConfig"] == {"Arn": queue}
    assert GLOBALS["EventInvokeConfig"]["DestinationConfig"]["OnFailure"] == {"Type": "SQS", "Destination": queue}


@EVERY_LOOP
def test_two_deployments_in_one_account_stay_apart(loop: str) -> None:
    """SAM would name the schedule after its place in the template, the same in each deployment."""
    name = {"Fn::Sub": f"${{AWS::StackName}}-{loop}"}
    assert _schedule(loop)["Name"] == _function_properties(loop)["FunctionName"] == name


@EVERY_LOOP
def test_reserved_concurrency_can_be_left_unset(loop: str) -> None:
    """A new AWS account refuses every positive figure."""
    parameter = f"{loop.capitalize()}ReservedConcurrency"
    condition, limit, none = _function_properties(loop)["ReservedConcurrentExecutions"]["Fn::If"]
    assert (limit, none) == ({"Ref": parameter}, {"Ref": "AWS::NoValue"})
    assert TEMPLATE["Conditions"][condition] == {"Fn::Not": [{"Fn::Equals": [{"Ref": parameter}, ""]}]}
    assert PARAMETERS[parameter]["Default"] == ""


def test_no_recoverer_is_started_for_machines_that_nobody_can_reboot() -> None:
    """It would fail at every tick, and hide in its alarms whatever else fails."""
    condition, chosen, otherwise = _schedule("recoverer")["State"]["Fn::If"]
    assert (chosen, otherwise) == ({"Ref": "RecovererScheduleState"}, "DISABLED")
    assert TEMPLATE["Conditions"][condition] == {
        "Fn::Not": [{"Fn::Equals": [{"Ref": "Provider"}, StaticProvider.name]}]
    }
    assert not hasattr(StaticProvider, "reboot")
    assert hasattr(EquinixProvider, "reboot")


@pytest.mark.parametrize("loop", ["initializer", "recoverer"])
def test_a_function_outlives_the_work_that_it_takes_on(loop: str) -> None:
    """The runner claims only while one machine's time is left, so less would mean that nothing is ever claimed."""
    machine = float(_environment(loop)[PREFIX + "MACHINE_SECONDS"])
    half_a_minute_for_claims = 30
    needed = machine + MARGIN_SECONDS + CLOSING_SECONDS + half_a_minute_for_claims
    assert _function_properties(loop)["Timeout"] >= needed


def test_the_provisioner_outlives_a_chunk() -> None:
    """What is created slowly on purpose must still be created in one pass."""
    seconds = PARAMETERS["Chunk"]["Default"] * PARAMETERS["CreationSeconds"]["Default"]
    assert _function_properties("provisioner")["Timeout"] >= seconds + CREATE_SECONDS + CLOSING_SECONDS


@EVERY_LOOP
def test_logs_go_to_a_log_group_of_our_own_and_end(loop: str) -> None:
    """The log group that Lambda makes by itself keeps everything for ever."""
    logs = _function_properties(loop)["LoggingConfig"]["LogGroup"]["Ref"]
    assert _properties(logs) == {
        "LogGroupName": {"Fn::Sub": f"/aws/lambda/${{AWS::StackName}}-{loop}"},
        "RetentionInDays": {"Ref": "LogRetentionDays"},
    }
    assert GLOBALS["LoggingConfig"]["LogFormat"] == "JSON"


@EVERY_LOOP
def test_a_function_has_a_role_of_its_own(loop: str) -> None:
    """SAM's roles may write to every log group; a role in common would read everybody's secrets."""
    role = f"{loop.capitalize()}Role"
    assert _function_properties(loop)["Role"] == {"Fn::GetAtt": f"{role}.Arn"}
    log = _properties(role)["Policies"][0]["PolicyDocument"]["Statement"][0]
    assert log["Resource"] == {"Fn::GetAtt": f"{loop.capitalize()}Logs.Arn"}


def test_permissions_name_what_they_are_for() -> None:
    """Only joining a VPC has no narrower resource."""
    wide = [
        statement["Sid"]
        for statement in _statements()
        if any("*" in str(part) for key in ("Action", "Resource") for part in _as_list(statement[key]))
    ]
    assert wide == ["JoinVpc"]


def test_permissions_for_secrets_name_the_parameters_of_the_settings() -> None:
    """A role reads the secrets that it was told of, and no others."""
    prefix = "arn:${AWS::Partition}:ssm:${AWS::Region}:${AWS::AccountId}:parameter"
    named = set()
    for statement in _statements():
        if any(action.startswith("ssm:") for action in _as_list(statement["Action"])):
            text = statement["Resource"]["Fn::Sub"]
            named.add((text if isinstance(text, str) else text[0]).removeprefix(prefix))
    assert named == {"${BmdbPasswordParameter}", "${EquinixApiKeyParameter}", "${SshKeyParameter}", "${Name}"}


def test_secrets_are_named_and_never_given() -> None:
    """What stands in a function's environment can be read by everybody who may look at the function."""
    assert not [name for name, rules in PARAMETERS.items() if "NoEcho" in rules]
    assert "{{resolve:" not in json.dumps(TEMPLATE)


def test_every_parameter_is_used_and_stands_in_one_group() -> None:
    """The console shows parameters by group, and one without effect would be believed in."""
    used = {
        value
        for key, value in _walk([TEMPLATE[part] for part in ("Conditions", "Globals", "Resources")])
        if key == "Ref"
    }
    groups = TEMPLATE["Metadata"]["AWS::CloudFormation::Interface"]["ParameterGroups"]
    texts = json.dumps(TEMPLATE["Resources"]) + json.dumps(TEMPLATE["Conditions"])
    assert [name for name in PARAMETERS if name not in used and f"${{{name}}}" not in texts] == []
    assert sorted(name for group in groups for name in group["Parameters"]) == sorted(PARAMETERS)


@pytest.mark.parametrize("parameter", PARAMETERS)
def test_a_parameter_tells_what_it_wants(parameter: str) -> None:
    """A mistake is met with the reason, and what has a default fulfils its own rules."""
    rules = PARAMETERS[parameter]
    assert rules["Description"].endswith(".")
    if rules["Type"] == "String":
        assert rules.keys() & {"AllowedPattern", "AllowedValues"} or rules.get("Default") == ""
    if "Default" in rules and "AllowedPattern" in rules:
        assert re.search(rules["AllowedPattern"], rules["Default"])
    if "Default" in rules and "AllowedValues" in rules:
        assert rules["Default"] in rules["AllowedValues"]


@pytest.mark.parametrize(
    ("parameter", "value", "allowed"),
    [
        ("StaticList", "https://example.com/machines.json", True),
        ("StaticList", "ssm:/shepherd/machines", True),
        ("StaticList", "s3://bucket/key/machines.json", True),
        ("StaticList", "http://example.com/machines.json", False),
        ("StaticList", "ssm:machines", False),
        ("StaticList", "s3://bucket/*", False),
        ("AgentSource", "s3://my-bucket.example/builds/agent", True),
        ("AgentSource", "s3://bucket/age?t", False),
        ("AgentSource", "s3://*/agent", False),
        ("AgentSource", "", False),
        ("SshKeyParameter", "/shepherd/ssh-key", True),
        ("SshKeyParameter", "/shepherd/*", False),
        ("SshKeyParameter", "ssh-key", False),
        ("BmdbPasswordParameter", "", True),
        ("AgentPath", "/root/a b", False),
    ],
)
def test_no_parameter_can_widen_a_permission(parameter: str, value: str, allowed: bool) -> None:
    """Parameters become part of the resources in policies, where a wildcard would count."""
    assert bool(re.search(PARAMETERS[parameter]["AllowedPattern"], value)) is allowed
