"""The alarms and the dashboard look at metrics that exist, and tell an operator what the documentation tells."""

from __future__ import annotations

import json
import re
import runpy
from itertools import combinations
from typing import TYPE_CHECKING, Any

import pytest
from shepherd_core import telemetry
from shepherd_core.providers.equinix import EquinixProvider
from shepherd_core.providers.static import StaticProvider
from shepherd_core.telemetry import Metric

from tests.cloudformation import Stack
from tests.deployments import LOOPS, ROOT, TEMPLATE, TOPIC

if TYPE_CHECKING:
    from collections.abc import Iterator

OPERATIONS = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")

# What AWS itself measures, by namespace: names as its documentation has them, and the dimension that we use.
AWS_METRICS = {
    "AWS/Lambda": (
        {"Invocations", "Errors", "Throttles", "Duration", "AsyncEventsDropped", "DestinationDeliveryFailures"},
        "FunctionName",
    ),
    "AWS/SQS": ({"ApproximateNumberOfMessagesVisible"}, "QueueName"),
    "AWS/Scheduler": ({"InvocationDroppedCount", "InvocationsFailedToBeSentToDeadLetterCount"}, "ScheduleGroup"),
}


def deployed(**answers: str) -> Stack:
    """Return the stack of a deployment."""
    return Stack(TEMPLATE, answers)


def alarms(stack: Stack) -> dict[str, dict[str, Any]]:
    """Return the alarms by name, without the name of the stack in front of it."""
    found = stack.of_type("AWS::CloudWatch::Alarm").values()
    return {alarm["AlarmName"].removeprefix("shepherd-"): alarm for alarm in found}


ALARMS = alarms(deployed())
EVERY_ALARM = pytest.mark.parametrize("name", ALARMS)


def kind_and_loop(name: str) -> tuple[str, str]:
    """Return what an alarm is about, and its loop; one that is about all of them has none."""
    loop, _, kind = name.partition("-")
    return (kind, loop) if loop in LOOPS else (name, "")


def documented(section: str) -> dict[str, list[str]]:
    """Return the rows of the table in a section of the documentation, by what is in their first column."""
    text = OPERATIONS.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:3] == "| `"]
    return {row[0].strip("`"): row[1:] for row in rows}


def loops_of(column: str) -> set[str]:
    """Return the loops that a column of the documentation names."""
    return set(LOOPS) if column == "all" else {name.lower() for name in column.split(", ")} - {"none"}


def dashboard(stack: Stack) -> list[dict[str, Any]]:
    """Return the widgets."""
    (found,) = stack.of_type("AWS::CloudWatch::Dashboard").values()
    widgets: list[dict[str, Any]] = json.loads(found["DashboardBody"])["widgets"]
    return widgets


def seen_by_alarm(alarm: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Yield namespace, name and dimensions of what an alarm looks at."""
    for metric in [part["MetricStat"]["Metric"] for part in alarm.get("Metrics", []) if "MetricStat" in part] or [
        alarm
    ]:
        dimensions = {each["Name"]: each["Value"] for each in metric["Dimensions"]}
        yield metric["Namespace"], metric["MetricName"], dimensions


def seen_by_dashboard(stack: Stack) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Yield the same for the dashboard."""
    for widget in dashboard(stack):
        for namespace, name, *pairs in widget["properties"].get("metrics", []):
            yield namespace, name, dict(zip(pairs[::2], pairs[1::2], strict=True))


@EVERY_ALARM
def test_an_alarm_says_what_the_documentation_says(name: str) -> None:
    """Whoever is woken by it reads the text, and then the page."""
    kind, loop = kind_and_loop(name)
    loops, when, what_to_do = documented("Alarms")[kind]
    assert ALARMS[name]["AlarmDescription"] == f"{when} {what_to_do}"
    assert loop in loops_of(loops) or (loop, loops) == ("", "none")
    assert len(ALARMS[name]["AlarmDescription"]) <= 1024


def test_every_alarm_of_the_documentation_exists() -> None:
    """For each of the loops that it is said to watch."""
    promised = {
        f"{loop}-{kind}" if loop else kind
        for kind, (loops, *_) in documented("Alarms").items()
        for loop in loops_of(loops) or {""}
    }
    assert promised == ALARMS.keys()


@EVERY_ALARM
def test_an_alarm_is_there_without_anybody_to_tell(name: str) -> None:
    """The console and the dashboard show it in any case; a topic hears when it begins and when it ends."""
    assert {"AlarmActions", "OKActions"}.isdisjoint(ALARMS[name])
    told = alarms(deployed(AlarmTopicArn=TOPIC))[name]
    assert told["AlarmActions"] == told["OKActions"] == [TOPIC]


@pytest.mark.parametrize("provider", [StaticProvider.name, EquinixProvider.name])
def test_alarms_and_dashboard_look_at_what_is_measured(provider: str, capsys: pytest.CaptureFixture[str]) -> None:
    """CloudWatch takes any name, and shows nothing for a wrong one."""
    telemetry.emit("LOOP", provider, dict.fromkeys(Metric, 1.0))
    record = json.loads(capsys.readouterr().out)
    (described,) = record["_aws"]["CloudWatchMetrics"]
    (dimension_names,) = described["Dimensions"]
    ours = {metric["Name"] for metric in described["Metrics"]}
    measuring = {
        loop: {name for name, row in documented("Metrics").items() if loop in loops_of(row[0])} for loop in LOOPS
    }
    stack = deployed(Provider=provider)
    for namespace, name, dimensions in [
        *(seen for alarm in alarms(stack).values() for seen in seen_by_alarm(alarm)),
        *seen_by_dashboard(stack),
    ]:
        if namespace == described["Namespace"]:
            assert name in ours
            assert dimensions.keys() == set(dimension_names)
            assert dimensions["provider"] == record["provider"]
            assert name in measuring[dimensions["loop"]]
        else:
            names, dimension = AWS_METRICS[namespace]
            assert name in names
            assert dimensions.keys() == {dimension}


def test_an_alarm_watches_the_loop_that_it_is_named_after() -> None:
    """Copies are easily left unchanged in one place."""
    stack = deployed()
    functions = {
        f"<{name}>": properties["FunctionName"]
        for name, properties in stack.of_type("AWS::Serverless::Function").items()
    }
    for name, alarm in ALARMS.items():
        _, loop = kind_and_loop(name)
        for _, _, dimensions in seen_by_alarm(alarm):
            watched = dimensions.get("loop") or functions.get(dimensions.get("FunctionName", ""), "").removeprefix(
                "shepherd-"
            )
            assert watched == loop, name


def test_the_dashboard_shows_every_metric_of_every_loop() -> None:
    """What is measured and not shown is not looked at."""
    shown = {
        (dimensions["loop"], name)
        for space, name, dimensions in seen_by_dashboard(deployed())
        if space == telemetry.NAMESPACE
    }
    assert shown == {(loop, name) for name, row in documented("Metrics").items() for loop in loops_of(row[0])}
    assert {name for _, name in shown} == set(Metric)


def test_the_dashboard_shows_every_alarm() -> None:
    """One look tells whether all is well."""
    stack = deployed()
    (widget,) = [widget for widget in dashboard(stack) if widget["type"] == "alarm"]
    assert set(widget["properties"]["alarms"]) == {f"<{name}.Arn>" for name in stack.of_type("AWS::CloudWatch::Alarm")}


def test_no_widget_of_the_dashboard_covers_another() -> None:
    """CloudWatch would move it to where nobody expects it."""
    widgets = dashboard(deployed())
    for widget in widgets:
        assert 0 <= widget["x"] < widget["x"] + widget["width"] <= 24
    for one, other in combinations(widgets, 2):
        apart = any(
            a[place] + a[size] <= b[place]
            for place, size in (("x", "width"), ("y", "height"))
            for a, b in ((one, other), (other, one))
        )
        assert apart, (one["properties"], other["properties"])


@pytest.mark.parametrize("loop", LOOPS)
def test_an_invocation_that_comes_near_its_timeout_is_told_before_one_is_killed(loop: str) -> None:
    """The figure follows the timeout, which somebody may change."""
    alarm, function = ALARMS[f"{loop}-duration"], deployed().resources[f"{loop.capitalize()}Function"]["Properties"]
    assert alarm["Threshold"] == 0.8 * 1000 * function["Timeout"]
    assert (alarm["Statistic"], alarm["ComparisonOperator"]) == ("Maximum", "GreaterThanThreshold")


@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_that_does_not_run_is_told_unless_its_schedule_is_disabled(loop: str) -> None:
    """Silence is the failure that nothing else reports; after a stop on purpose it is none."""
    for state, missing in (("ENABLED", "breaching"), ("DISABLED", "notBreaching")):
        stack = deployed(**{f"{loop.capitalize()}ScheduleState": state})
        alarm = alarms(stack)[f"{loop}-not-running"]
        assert alarm["TreatMissingData"] == missing
        assert (alarm["Statistic"], alarm["ComparisonOperator"], alarm["Threshold"]) == ("Sum", "LessThanThreshold", 1)


@EVERY_ALARM
def test_no_data_is_no_alarm_but_where_silence_is_the_failure(name: str) -> None:
    """A loop that had nothing to count would otherwise alarm, or leave its alarm without a state."""
    state = {"ProvisionerScheduleState": "DISABLED", "InitializerScheduleState": "DISABLED"}
    assert alarms(deployed(**state))[name]["TreatMissingData"] == "notBreaching"


@EVERY_ALARM
def test_an_alarm_can_be_evaluated(name: str) -> None:
    """CloudWatch refuses one that looks back further than a day, or whose formula names what is not there."""
    alarm = ALARMS[name]
    longest = max(TEMPLATE["Parameters"]["AlarmSeconds"]["AllowedValues"])
    assert longest * alarm["EvaluationPeriods"] <= 86_400
    assert alarm.get("DatapointsToAlarm", 1) <= alarm["EvaluationPeriods"]
    if "Metrics" in alarm:
        formula, *metrics = alarm["Metrics"]
        assert {part["Id"] for part in metrics} == set(re.findall(r"\b[a-z]+\b", formula["Expression"]))
        assert all(part["ReturnData"] is False for part in metrics)
        assert len(metrics) <= 10


def test_the_costs_are_computed_for_what_is_deployed() -> None:
    """CloudWatch charges for each metric, and for each that an alarm looks at."""
    cost = runpy.run_path(str(ROOT / "bench" / "cost.py"))["Inputs"]()
    assert cost.alarms == sum(len(list(seen_by_alarm(alarm))) for alarm in ALARMS.values())
    assert cost.metrics == sum(len(loops_of(row[0])) for row in documented("Metrics").values())
    assert cost.loops == len(LOOPS)
