"""template.yaml says what the code expects: held to the settings and to our rules for deployments."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, get_args

import pytest
from pydantic import TypeAdapter, ValidationError
from shepherd_core.bmdb.schema.migrate import migrations
from shepherd_core.domain.time_budget import ANSWER_SECONDS
from shepherd_core.settings.functions import (
    PREFIX,
    AgentApiSettings,
    InitializerSettings,
    MigratorSettings,
    ProvisionerSettings,
    RecovererSettings,
    Settings,
    UpdaterSettings,
)
from shepherd_core.settings.sources import load

from tests.support.deployment.deployments import (
    FUNCTIONS,
    LOOPS,
    PROVIDER_SETTINGS,
    SMALLEST,
    TEMPLATE,
    deployed_name,
    logical_id,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

PROVIDERS = tuple(PROVIDER_SETTINGS.values())
SETTINGS: dict[str, tuple[type[Settings], ...]] = {
    "migrator": (MigratorSettings,),
    "provisioner": (ProvisionerSettings, *PROVIDERS),
    "initializer": (InitializerSettings, *PROVIDERS),
    "recoverer": (RecovererSettings, *PROVIDERS),
    "updater": (UpdaterSettings, *PROVIDERS),
    "agent_api": (AgentApiSettings,),
}
EVERY_LOOP = pytest.mark.parametrize("loop", LOOPS)
EVERY_FUNCTION = pytest.mark.parametrize("function", FUNCTIONS)

# What an operator must say, because nobody can know it.
ANSWERS = {name: value for deployment in SMALLEST.values() for name, value in deployment.items()}
# What CloudFormation makes of a formula instead of a parameter alone.
COMPUTED = {"SHEPHERD_AGENT_ENDPOINT": "https://api.example.com"}
# Who deploys to AWS has a database with a password; the settings themselves ask for none.
OTHER_DEFAULTS = {"bmdb_password_parameter"}


PARAMETERS: dict[str, dict[str, Any]] = TEMPLATE["Parameters"]
RESOURCES: dict[str, dict[str, Any]] = TEMPLATE["Resources"]
GLOBALS: dict[str, Any] = TEMPLATE["Globals"]["Function"]


def _properties(logical_id: str) -> dict[str, Any]:
    properties: dict[str, Any] = RESOURCES[logical_id]["Properties"]
    return properties


def _function_properties(function: str) -> dict[str, Any]:
    return _properties(logical_id(function))


def _schedule(loop: str) -> dict[str, Any]:
    (event,) = _function_properties(loop)["Events"].values()
    assert event["Type"] == "ScheduleV2"
    properties: dict[str, Any] = event["Properties"]
    return properties


def _environment(function: str) -> dict[str, Any]:
    """Return the variables of the function, those of all functions included, as the template has them."""
    own: dict[str, Any] = _function_properties(function)["Environment"]["Variables"]
    shared: dict[str, Any] = GLOBALS["Environment"]["Variables"]
    assert not own.keys() & shared.keys()
    return {name: _if_chosen(variable) for name, variable in (shared | own).items()}


def _if_chosen(variable: Any) -> Any:
    """Return what a variable is if its provider is chosen, where that decides whether it is there at all."""
    chosen = variable.get("Fn::If", []) if isinstance(variable, dict) else []
    return chosen[1] if chosen[2:] == [{"Ref": "AWS::NoValue"}] else variable


def _value(name: str, variable: Any) -> str:
    """Return what the function sees when the operator gave ANSWERS and left the rest as it is."""
    if isinstance(variable, str):
        return variable
    if name in COMPUTED:
        return COMPUTED[name]
    parameter = variable["Ref"]
    return str(ANSWERS[parameter] if parameter in ANSWERS else PARAMETERS[parameter]["Default"])


def _fields(function: str) -> dict[str, Any]:
    """Return the settings of the function, for a loop also those of all providers: environment variable to field."""
    fields = [field for settings in SETTINGS[function] for field in settings.model_fields.items()]
    return {PREFIX + name.upper(): field for name, field in fields}


def _parameters_of_settings() -> Iterator[Any]:
    """Yield each parameter that is a setting, with the field of the settings that it fills."""
    for function in SETTINGS:
        fields = _fields(function)
        for variable, value in _environment(function).items():
            if isinstance(value, dict) and variable not in COMPUTED:
                yield pytest.param(value["Ref"], fields.get(variable), id=f"{function}-{value['Ref']}")


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


@EVERY_FUNCTION
def test_a_function_gets_exactly_its_settings(function: str) -> None:
    """A missing variable cannot be set by `sam local invoke` either; one too many is a setting that nobody reads."""
    assert _environment(function).keys() == _fields(function).keys()


@EVERY_FUNCTION
def test_what_the_template_leaves_alone_has_the_default_of_the_settings(
    function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two places that give different defaults would make every document about one of them wrong."""
    environment = _environment(function)
    for variable, value in environment.items():
        monkeypatch.setenv(variable, _value(variable, value))
    answered = {name for name, value in environment.items() if isinstance(value, dict) and value.get("Ref") in ANSWERS}
    for settings in load(*SETTINGS[function]):
        for name, field in type(settings).model_fields.items():
            if PREFIX + name.upper() not in answered and not field.is_required() and name not in OTHER_DEFAULTS:
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


def test_the_endpoint_that_agents_are_given_is_described_as_its_setting() -> None:
    """It is a parameter with a default that only the deployment can have."""
    setting = InitializerSettings.model_fields["agent_endpoint"].description
    assert str(PARAMETERS["AgentEndpoint"]["Description"]).startswith(str(setting).rstrip("."))


def test_every_provider_can_be_chosen() -> None:
    """A provider that the code knows and the template does not cannot be deployed."""
    choices = get_args(ProvisionerSettings.model_fields["provider"].annotation)
    assert tuple(PARAMETERS["Provider"]["AllowedValues"]) == choices


def test_every_way_to_log_in_to_the_database_can_be_chosen() -> None:
    """The same of passwords and IAM."""
    choices = get_args(MigratorSettings.model_fields["bmdb_auth"].annotation)
    assert tuple(PARAMETERS["BmdbAuth"]["AllowedValues"]) == choices


def test_the_deployment_asks_for_the_schema_that_its_code_needs() -> None:
    """CloudFormation runs the migrator only when something of the resource changes."""
    schema = _properties("BmdbSchema")
    assert schema["SchemaVersion"] == str(len(migrations())) == str(migrations()[-1].version)
    assert {value["Ref"] for value in schema.values() if isinstance(value, dict) and "Ref" in value} == {
        "BmdbHost",
        "BmdbPort",
        "BmdbName",
    }


def test_the_migrator_outlives_a_statement_and_cloudformation_the_migrator() -> None:
    """Whoever is killed cannot say why the deployment fails."""
    timeout = _function_properties("migrator")["Timeout"]
    statement = float(_environment("migrator")[PREFIX + "BMDB_STATEMENT_TIMEOUT_SECONDS"])
    assert statement + ANSWER_SECONDS <= timeout < _properties("BmdbSchema")["ServiceTimeout"]


@EVERY_LOOP
def test_two_deployments_in_one_account_stay_apart(loop: str) -> None:
    """SAM would name the schedule after its place in the template, the same in each deployment."""
    name = {"Fn::Sub": f"${{AWS::StackName}}-{loop}"}
    assert _schedule(loop)["Name"] == name
    assert _schedule(loop)["GroupName"] == {"Ref": "ScheduleGroup"}
    assert _properties("ScheduleGroup") == {"Name": {"Ref": "AWS::StackName"}}


@EVERY_FUNCTION
def test_a_function_is_named_after_its_stack(function: str) -> None:
    """The documentation names functions as people type them."""
    name = {"Fn::Sub": f"${{AWS::StackName}}-{deployed_name(function)}"}
    assert _function_properties(function)["FunctionName"] == name


@EVERY_FUNCTION
def test_a_function_has_a_role_of_its_own(function: str) -> None:
    """SAM's roles may write to every log group; a role in common would read everybody's secrets."""
    role = logical_id(function, "Role")
    assert _function_properties(function)["Role"] == {"Fn::GetAtt": [role, "Arn"]}
    log = _properties(role)["Policies"][0]["PolicyDocument"]["Statement"][0]
    assert log["Resource"] == {"Fn::GetAtt": [logical_id(function, "Logs"), "Arn"]}


def test_permissions_name_what_they_are_for() -> None:
    """A wildcard needs a condition beside it, or nothing but names that nobody can know before the call."""
    assert not [statement for statement in _statements() if "*" in str(statement["Action"])]
    wide = [statement for statement in _statements() if "*" in str(statement["Resource"])]
    assert [statement["Sid"] for statement in wide if "Condition" not in statement] == [
        "ReadBmcCredentials",  # as the list names them, below one path
        "LaunchWithInterface",  # which is made with the instance
        "ReplaceRootVolumes",  # as the one before; of an instance that has the tag
    ]


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
