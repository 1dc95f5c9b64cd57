"""The alarms and the dashboard look at metrics that exist, and tell an operator what the documentation tells."""

from __future__ import annotations

import json
import re
import runpy
from itertools import combinations
from typing import TYPE_CHECKING, Any

import pytest
from shepherd_core import telemetry
from shepherd_core.providers.equinix.adapter import EquinixProvider
from shepherd_core.providers.static import StaticProvider
from shepherd_core.telemetry import Metric

from tests.support.deployment.cloudformation import PSEUDO, Stack
from tests.support.deployment.deployments import (
    FUNCTIONS,
    LOOPS,
    REDFISH,
    ROOT,
    STATIC,
    TEMPLATE,
    TOPIC,
    deployed_name,
    stack_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

COST = runpy.run_path(str(ROOT / "bench" / "cost.py"))
OPERATIONS = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")

# What AWS itself measures, by namespace: names as its documentation has them, and the dimension that we use.
AWS_METRICS = {
    "AWS/ApiGateway": ({"Count", "4xx", "5xx", "Latency", "IntegrationLatency"}, "ApiId"),
    "AWS/Lambda": (
        {
            "AsyncEventsDropped",
            "ConcurrentExecutions",
            "DestinationDeliveryFailures",
            "Duration",
            "Errors",
            "Invocations",
            "Throttles",
        },
        "FunctionName",
    ),
    "AWS/SQS": ({"ApproximateNumberOfMessagesVisible"}, "QueueName"),
    "AWS/Scheduler": ({"InvocationDroppedCount", "InvocationsFailedToBeSentToDeadLetterCount"}, "ScheduleGroup"),
}


def deployed(**answers: str) -> Stack:
    """Return the stack of a deployment."""
    return stack_of({**STATIC, **answers})


def alarms(stack: Stack) -> dict[str, dict[str, Any]]:
    """Return the alarms by name, without the name of the stack in front of it."""
    found = stack.of_type("AWS::CloudWatch::Alarm").values()
    return {alarm["AlarmName"].removeprefix("shepherd-"): alarm for alarm in found}


ALARMS = alarms(deployed())
EVERY_ALARM = pytest.mark.parametrize("name", ALARMS)


def kind_and_loop(name: str) -> tuple[str, str]:
    """Return what an alarm is about, and its loop; one that is about all of them, or another function, has none."""
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
    """Yield the same for the dashboard; of a search, each metric that is measured and fits it."""
    for widget in dashboard(stack):
        above: list[str] = []
        for metric in widget["properties"].get("metrics", []):
            if isinstance(metric[0], dict):
                yield from found(metric[0]["expression"], stack.parameters["Provider"])
            else:
                above = [above[place] if part == "." else part for place, part in enumerate(metric)]
                namespace, name, *pairs = above
                yield namespace, name, dict(zip(pairs[::2], pairs[1::2], strict=True))


_SEARCH = re.compile(r"SEARCH\('\{([^,]+),([^}]+)\} (.+)', '(Sum|Maximum)'\)")
_TERM = re.compile(r'(NOT )?(\w+)=(?:"([^"]+)"|\(("[^"]+"(?: OR "[^"]+")*)\))')


def found(search: str, provider: str) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Yield what a search of CloudWatch finds when everything is measured."""
    match = _SEARCH.fullmatch(search)
    assert match, search
    namespace, dimensions, terms, _ = match.groups()
    assert _TERM.sub("", terms).strip() == "", terms
    wanted = {
        (not_ == "", name): {text} if text else set(re.findall(r'"([^"]+)"', many))
        for not_, name, text, many in _TERM.findall(terms)
    }
    if namespace == telemetry.NAMESPACE:
        measured = [
            (name, {"loop": loop, "provider": provider})
            for name, row in documented("Metrics").items()
            for loop in loops_of(row[0])
        ]
    else:
        names, dimension = AWS_METRICS[namespace]
        measured = [(name, {dimension: f"shepherd-{deployed_name(each)}"}) for name in names for each in FUNCTIONS]
    for name, values in measured:
        assert list(values) == dimensions.split(",")
        seen = {**values, "MetricName": name}
        if all((seen[key] in texts) is positive for (positive, key), texts in wanted.items()):
            yield namespace, name, values


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
    owners = {
        **{f"shepherd-{deployed_name(function)}": deployed_name(function) for function in (*LOOPS, "agent_api")},
        "<AgentApi>": "agent-api",
    }
    for name, alarm in ALARMS.items():
        owner = next((each for each in owners.values() if name.startswith(f"{each}-")), "")
        for namespace, metric, dimensions in seen_by_alarm(alarm):
            seen = {
                owners.get(value, value)
                for key, value in dimensions.items()
                if key in {"loop", "ApiId", "FunctionName"}
            }
            if (namespace, metric) != (telemetry.NAMESPACE, "machines_total"):  # there is no fleet without it
                assert seen == ({owner} if owner else set()), name


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
    place = f"arn:aws:cloudwatch:{PSEUDO['AWS::Region']}:{PSEUDO['AWS::AccountId']}:alarm:shepherd-"
    assert sorted(widget["properties"]["alarms"]) == sorted(f"{place}{name}" for name in alarms(stack))


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


# What CloudWatch's metric math has, in terms that Python has.
_MATH = {r"\bIF\(": "if_(", r"\bFILL\(": "fill(", r"\bPERIOD\(\w+\)": "900", r"\bAND\b": "and"}


def evaluated(alarm: dict[str, Any], **values: float | None) -> bool:
    """Return whether an alarm goes off while its metrics have *values*; None: no data."""
    formula = alarm["Metrics"][0]["Expression"]
    for theirs, ours in _MATH.items():
        formula = re.sub(theirs, ours, formula)
    functions = {
        "if_": lambda condition, this, other: this if condition else other,
        "fill": lambda value, other: other if value is None else value,
    }
    value = eval(formula, functions, values)
    return bool(
        value >= alarm["Threshold"] if "OrEqualTo" in alarm["ComparisonOperator"] else value > alarm["Threshold"]
    )


@pytest.mark.parametrize(
    ("machines", "requests", "refused", "failures", "told"),
    [
        (3, None, None, None, True),
        (3, 0, 0, 0, True),
        (3, 1, 0, 0, False),
        (3, 400, 400, 0, True),  # strangers, or agents that nobody believes any more
        (3, 400, 0, 400, True),
        (3, 400, 200, 199, False),
        (0, None, None, None, False),
        (None, None, None, None, False),
    ],
)
def test_silence_of_the_whole_fleet_is_told_where_there_is_a_fleet(
    machines: float | None, requests: float | None, refused: float | None, failures: float | None, told: bool
) -> None:
    """An empty deployment is silent, too, and must wake nobody; a domain name is never without requests."""
    values = {"machines": machines, "requests": requests, "refused": refused, "failures": failures}
    assert evaluated(ALARMS["agent-api-silent"], **values) is told


@pytest.mark.parametrize(("requests", "told"), [(200 * 900 * 0.8, False), (200 * 900, True)])
def test_the_rate_is_told_before_reports_are_refused(requests: float, told: bool) -> None:
    """Four fifths of the rate are no reason to be woken."""
    assert evaluated(ALARMS["agent-api-busy"], requests=requests) is told
    limits = deployed().resources["AgentApiStage"]["Properties"]["DefaultRouteSettings"]
    assert ALARMS["agent-api-busy"]["Metrics"][0]["Expression"].endswith(f"/ {limits['ThrottlingRateLimit']}")


@pytest.mark.parametrize(("failures", "told"), [(9, False), (10, True)])
def test_reports_that_fail_are_told_by_their_share(failures: float, told: bool) -> None:
    """One in thousands fails always, and its agent tries again."""
    assert evaluated(ALARMS["agent-api-errors"], failures=failures, requests=100) is told


@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_that_does_not_run_is_told_unless_its_schedule_is_disabled(loop: str) -> None:
    """Silence is the failure that nothing else reports; after a stop on purpose it is none."""
    place = LOOPS.index(loop)
    for minutes, missing in (("1", "breaching"), ("60", "breaching"), ("0", "notBreaching")):
        stack = deployed(**REDFISH, LoopMinutes=",".join(minutes if each == place else "1" for each in range(4)))
        alarm = alarms(stack)[f"{loop}-not-running"]
        assert alarm["TreatMissingData"] == missing
        assert (alarm["Statistic"], alarm["ComparisonOperator"], alarm["Threshold"]) == ("Sum", "LessThanThreshold", 1)
        assert alarm["Period"] >= 2 * 60 * int(minutes)


def test_a_recoverer_that_cannot_reboot_is_not_missed() -> None:
    """Its schedule is off, whatever LoopMinutes says."""
    assert alarms(deployed())["recoverer-not-running"]["TreatMissingData"] == "notBreaching"


@pytest.mark.parametrize("loop", LOOPS)
def test_alarms_of_a_loop_evaluate_longer_than_it_waits(loop: str) -> None:
    """Otherwise they would end between two runs."""
    stack = deployed(**REDFISH, LoopMinutes="60,60,60,60")
    for name, alarm in alarms(stack).items():
        if kind_and_loop(name)[1] == loop:
            periods = [part["MetricStat"]["Period"] for part in alarm.get("Metrics", []) if "MetricStat" in part]
            assert min(periods or [alarm["Period"]]) >= 2 * 3_600


@EVERY_ALARM
def test_no_data_is_no_alarm_but_where_silence_is_the_failure(name: str) -> None:
    """A loop that had nothing to count would otherwise alarm, or leave its alarm without a state."""
    assert alarms(deployed(LoopMinutes="0,0,0,0"))[name]["TreatMissingData"] == "notBreaching"


@EVERY_ALARM
def test_an_alarm_can_be_evaluated(name: str) -> None:
    """CloudWatch refuses one that looks back further than a day, or whose formula names what is not there."""
    alarm = ALARMS[name]
    longest = max(each["AlarmSeconds"] for each in TEMPLATE["Nested"]["Observability"]["Mappings"]["Minutes"].values())
    assert longest * alarm["EvaluationPeriods"] <= 86_400
    assert alarm.get("DatapointsToAlarm", 1) <= alarm["EvaluationPeriods"]
    if "Metrics" in alarm:
        formula, *metrics = alarm["Metrics"]
        assert {part["Id"] for part in metrics} == set(re.findall(r"\b[a-z]+\b", formula["Expression"]))
        assert all(part["ReturnData"] is False for part in metrics)
        assert len(metrics) <= 10


def test_the_costs_are_computed_for_what_is_deployed() -> None:
    """CloudWatch charges for each metric, and for each that an alarm looks at."""
    cost = COST["Inputs"]()
    assert cost.alarms == sum(len(list(seen_by_alarm(alarm))) for alarm in ALARMS.values())
    always = {name: row for name, row in documented("Metrics").items() if name != Metric.SETTINGS_REFUSED}
    assert cost.metrics == sum(len(loops_of(row[0])) for row in always.values())
    assert cost.loops == len(LOOPS)


def test_the_page_on_deployment_has_the_costs_that_are_computed() -> None:
    """Somebody decides by them."""
    page = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    assert f"```\n{COST['table']([10, 1_000, 100_000], COST['Inputs']())}\n```" in page
    often, seldom = COST["Inputs"](), COST["Inputs"](heartbeat_minutes=5)
    assert "1,605 dollars" in page
    assert f"{sum(COST['month'](100_000, seldom).values()):,.0f}" == "1,605"
    assert f"{sum(COST['month'](1_000, seldom).values()):,.0f}" == "36"
    heartbeats = COST["month"](100_000, often)
    assert round(sum(heartbeats[what] for what in heartbeats if what.startswith("heartbeats")), -2) == 7_500
