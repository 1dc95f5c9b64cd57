"""template.yaml says what the code expects: held to the settings and to our rules for deployments."""

import json
import re
from typing import Any

import pytest
from shepherd_core.bmdb.schema.migrate import migrations
from shepherd_core.domain.clock import ANSWER_SECONDS
from shepherd_core.settings.base import PREFIX
from shepherd_core.settings.deployment import DeploymentSettings
from shepherd_core.settings.effective import FIXED, GIVEN
from shepherd_core.settings.functions.specs import FUNCTION_SECONDS, FUNCTIONS, LOOPS
from shepherd_core.settings.providers import BUILT_IN, find
from shepherd_core.settings.sources import DEFAULT_PREFIX
from shepherd_core.wiring.adapters import MIGRATION_LIMITS

from tests.support.deployment.deployments import (
    DEPLOYMENTS,
    STATIC,
    TEMPLATE,
    environment,
    logical_id,
    stack_of,
    templates,
)

EVERY_FUNCTION = pytest.mark.parametrize("function", FUNCTIONS)

PARAMETERS: dict[str, dict[str, Any]] = TEMPLATE["Parameters"]
OBSERVABILITY: dict[str, Any] = TEMPLATE["Nested"]["Observability"]
STACK = stack_of(STATIC)


def _properties(name: str) -> dict[str, Any]:
    properties: dict[str, Any] = STACK.resources[name]["Properties"]
    return properties


def _statements() -> list[dict[str, Any]]:
    found = []
    for deployment in DEPLOYMENTS:
        stack = stack_of(deployment)
        found += [statement for function in FUNCTIONS for statement in stack.statements(logical_id(function))]
    assert found
    return found


def test_a_deployment_has_at_most_twelve_questions() -> None:
    """What needs neither a permission nor a resource belongs into the settings document."""
    assert len(PARAMETERS) <= 12


def test_what_stands_in_two_files_is_the_same() -> None:
    assert set(TEMPLATE["Nested"]) == {"Permissions", "Observability"}
    assert TEMPLATE["Mappings"]["Names"] == TEMPLATE["Nested"]["Permissions"]["Mappings"]["Names"]
    loops, observed = TEMPLATE["Mappings"]["Loops"], OBSERVABILITY["Mappings"]["Loops"]
    for name, loop in observed.items():
        assert loop["Index"] == loops[name]["Index"]
        assert loop["Name"] == TEMPLATE["Mappings"]["Names"][name]["Name"]
    assert [loop.lower() for loop in loops] == [loop.lower() for loop in observed] == list(LOOPS)
    assert [loop["Index"] for loop in loops.values()] == ["0", "1", "2", "3"]


def test_every_rate_that_is_accepted_is_known() -> None:
    """The pattern refuses what the mappings do not have; alarms evaluate at least twice the time between two runs."""
    minutes = TEMPLATE["Mappings"]["Minutes"]
    accepted = [
        value for value in range(100) if re.search(PARAMETERS["LoopMinutes"]["AllowedPattern"], f"{value},1,1,1")
    ]
    assert [str(value) for value in accepted] == list(minutes) == list(OBSERVABILITY["Mappings"]["Minutes"])
    for text, schedule in minutes.items():
        evaluated = OBSERVABILITY["Mappings"]["Minutes"][text]
        value = max(int(text), 1)
        assert schedule["Rate"] == f"rate({value} minute{'s' if value > 1 else ''})"
        assert (schedule["State"], evaluated["MissingData"]) == (
            ("ENABLED", "breaching") if int(text) else ("DISABLED", "notBreaching")
        )
        assert evaluated["AlarmSeconds"] >= 2 * 60 * value


@EVERY_FUNCTION
def test_a_function_is_told_exactly_what_it_reads(function: str) -> None:
    """A variable that nothing reads would be believed in; a document cannot have what only the deployment knows."""
    for deployment in DEPLOYMENTS:
        stack = stack_of(deployment)
        told = {name.removeprefix(PREFIX).removeprefix("DEFAULT_").lower() for name in environment(stack, function)}
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
    told = {name for each in DEPLOYMENTS for loop in LOOPS for name in environment(stack_of(each), loop)}
    fixed = {name.removeprefix(PREFIX).lower() for name in told if not name.startswith(DEFAULT_PREFIX)}
    of_providers = {f"provider_{name}" for each in BUILT_IN for name in find(each).given}
    known = {"settings", *DeploymentSettings.model_fields, *of_providers, *FIXED}
    assert fixed - known == {"bmdb_user"}  # only where IAM names it
    assert fixed > FIXED


def test_the_rules_between_settings_know_the_deployment_s_figures() -> None:
    """No function is told the timeouts of the others, which the rules compare with."""
    assert {function: _properties(logical_id(function))["Timeout"] for function in FUNCTIONS} == FUNCTION_SECONDS
    assert DeploymentSettings().loop_minutes == PARAMETERS["LoopMinutes"]["Default"]


def test_the_deployment_asks_for_the_schema_that_its_code_needs() -> None:
    """CloudFormation runs the migrator only when something of the resource changes."""
    schema = _properties("BmdbSchema")
    assert schema["SchemaVersion"] == str(len(migrations())) == str(migrations()[-1].version)


def test_the_migrator_outlives_a_statement_and_cloudformation_the_migrator() -> None:
    """A function that is killed cannot say why the deployment fails."""
    timeout = _properties("MigratorFunction")["Timeout"]
    assert MIGRATION_LIMITS.statement + ANSWER_SECONDS <= timeout < _properties("BmdbSchema")["ServiceTimeout"]


def test_permissions_name_what_they_are_for() -> None:
    """A wildcard needs a condition beside it, or nothing but names that are not known before the call."""
    assert not [statement for statement in _statements() if "*" in str(statement["Action"])]
    wide = [statement for statement in _statements() if "*" in str(statement["Resource"])]
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
    assert not [name for template in templates() for name, rules in template["Parameters"].items() if "NoEcho" in rules]
    assert "{{resolve:" not in json.dumps(TEMPLATE)
