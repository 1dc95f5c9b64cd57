import json
import re
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from shepherd_core import telemetry
from shepherd_core.providers.equinix.adapter import EquinixProvider
from shepherd_core.providers.static import StaticProvider
from shepherd_core.settings.functions.specs import FUNCTION_SECONDS, FUNCTIONS, LOOPS
from shepherd_core.telemetry import Metric

from simulator.cost.formula import found_after, month
from simulator.cost.inputs import Inputs
from simulator.cost.tables import MACHINES, comparison, intervals, table
from tests.support.console import parsed
from tests.support.deployment.deployments import (
    HTTP_API,
    PSEUDO,
    REDFISH,
    ROOT,
    STATIC,
    deployed_name,
    source,
    stack_of,
)
from tests.support.metrics_page import documented, loops_of


def alarms(**answers: str) -> dict[str, dict[str, Any]]:
    """Return the alarms of a deployment by name; without *answers*, of one with a function URL."""
    found = stack_of({**STATIC, **answers}).of_type("AWS::CloudWatch::Alarm").values()
    return {alarm["AlarmName"].removeprefix("shepherd-"): alarm for alarm in found}


ALARMS = [
    f"{loop}-{kind}" if loop else kind
    for kind, (loops, *_) in documented("Alarms").items()
    for loop in sorted(loops_of(loops)) or [""]
]
EVERY_ALARM = pytest.mark.parametrize("name", ALARMS)


def kind_and_loop(name: str) -> tuple[str, str]:
    """Return what an alarm is about, and its loop; one that is about all of them, or another function, has none."""
    loop, _, kind = name.partition("-")
    return (kind, loop) if loop in LOOPS else (name, "")


def dashboard() -> list[dict[str, Any]]:
    (found,) = stack_of({}, "templates/dashboard.yaml").of_type("AWS::CloudWatch::Dashboard").values()
    widgets: list[dict[str, Any]] = json.loads(found["DashboardBody"])["widgets"]
    return widgets


def seen_by_alarm(alarm: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, str]]]:
    parts = [part["MetricStat"]["Metric"] for part in alarm.get("Metrics", []) if "MetricStat" in part]
    for metric in parts or [alarm]:
        yield metric["Namespace"], metric["MetricName"], {each["Name"]: each["Value"] for each in metric["Dimensions"]}


@EVERY_ALARM
def test_an_alarm_says_what_the_documentation_says(name: str) -> None:
    kind, loop = kind_and_loop(name)
    loops, when, what_to_do = documented("Alarms")[kind]
    description = alarms(**HTTP_API)[name]["AlarmDescription"]
    assert description == f"{when} {what_to_do}"
    assert loop in loops_of(loops) or (loop, loops) == ("", "none")
    assert len(description) <= 1024
    # Who is woken by it types a command as it stands there: it, its options and arguments must exist.
    named = re.findall(r"`shepherdctl ([^`]+)`", description)
    assert named
    for line in named:
        parsed(f"shepherdctl {line}")  # raises for what the command does not know, or lacks


def test_every_alarm_of_the_documentation_exists() -> None:
    assert set(ALARMS) == alarms(**HTTP_API).keys() == alarms().keys() | {"agent-api-busy"}


@pytest.mark.parametrize("provider", [StaticProvider.name, EquinixProvider.name])
def test_alarms_look_at_what_is_measured(provider: str, capsys: pytest.CaptureFixture[str]) -> None:
    """CloudWatch takes any name, and shows nothing for a wrong one; it charges for each that is written."""
    telemetry.emit("LOOP", provider, dict.fromkeys(Metric, 1.0))
    (described,) = json.loads(capsys.readouterr().out)["_aws"]["CloudWatchMetrics"]
    looked_at = [
        (name, dimensions)
        for alarm in alarms(Provider=provider).values()
        for namespace, name, dimensions in seen_by_alarm(alarm)
        if namespace == described["Namespace"]
    ]
    assert {name for name, _ in looked_at} == {metric["Name"] for metric in described["Metrics"]}
    assert all([dimensions] == [{"provider": provider}] for _, dimensions in looked_at)
    assert described["Dimensions"] == [["provider"]]


AWS_METRICS = {
    "AWS/ApiGateway": {"Count", "4xx", "5xx"},
    "AWS/Lambda": {"Duration", "Errors", "Invocations", "Throttles", "Url4xxCount", "Url5xxCount", "UrlRequestCount"},
    "AWS/SQS": {"ApproximateNumberOfMessagesVisible"},
}


@EVERY_ALARM
def test_an_alarm_can_be_evaluated(name: str) -> None:
    """AWS allows ten metrics and a day; a name that it does not know has no data."""
    alarm = alarms(**HTTP_API)[name]
    minutes = source("templates/observability.yaml")["Mappings"]["Minutes"]
    longest = max(each["AlarmSeconds"] for each in minutes.values())
    assert longest * alarm["EvaluationPeriods"] <= 86_400
    assert alarm.get("DatapointsToAlarm", 1) <= alarm["EvaluationPeriods"]
    for namespace, metric, _ in seen_by_alarm(alarm):
        assert namespace == telemetry.NAMESPACE or metric in AWS_METRICS[namespace]
    if "Metrics" in alarm:
        formula, *metrics = alarm["Metrics"]
        assert {part["Id"] for part in metrics} == set(re.findall(r"\b[a-z]+\b", formula["Expression"]))
        assert [part["ReturnData"] for part in metrics] == [False] * len(metrics)
        assert len(metrics) <= 10


@pytest.mark.parametrize(("loop", "minutes"), [*product(LOOPS, (10, 30, 60))])
def test_alarms_of_a_loop_evaluate_longer_than_it_waits(loop: str, minutes: int) -> None:
    """Otherwise they would end between two runs. Alarms of all loops follow the slowest."""
    rates = ",".join(str(minutes) if each == loop else "1" for each in LOOPS)
    for name, alarm in alarms(**{**REDFISH, "LoopMinutes": rates}).items():
        if kind_and_loop(name)[1] == loop or name == "duration" or alarm.get("Namespace") == telemetry.NAMESPACE:
            periods = [part["MetricStat"]["Period"] for part in alarm.get("Metrics", []) if "MetricStat" in part]
            assert min(periods or [alarm["Period"]]) >= 2 * 60 * minutes, name


def test_the_page_says_what_is_a_metric_in_cloudwatch() -> None:
    assert {name: row[1] for name, row in documented("Metrics").items()} == {
        metric.value: "yes" if metric.dimensions else "" for metric in Metric
    }


def test_log_queries_ask_for_what_a_loop_counts() -> None:
    """Logs Insights shows nothing for a wrong name; a function of the wrong loop counts something else."""
    loops = {name: loops_of(row[0]) for name, row in documented("Metrics").items()}
    queries = [query for _, query in documented("Counts over time").values()]
    queries += [widget["properties"]["query"] for widget in dashboard() if widget["type"] == "log"]
    of_loops = [query for query in queries if "message = 'counts'" in query.replace('"', "'")]
    assert len(of_loops) >= 9
    for query in of_loops:
        names = {name for pair in re.findall(r"\b(?:max|sum)\((\w+)\)|\band (\w+) [=>]", query) for name in pair} - {""}
        assert names <= loops.keys(), query
        loop = re.search(r"/aws/lambda/shepherd-(\w+)", query)
        assert names
        assert set.intersection(*(loops[name] for name in names)) >= ({loop[1]} if loop else set()), query


def test_the_dashboard_shows_metrics_that_are_measured() -> None:
    known = {"ConcurrentExecutions", "Duration", "Errors", "Invocations", "Throttles", "UrlRequestCount"}
    known |= {"Url4xxCount", "Url5xxCount", *(f"shepherd-{deployed_name(function)}" for function in FUNCTIONS)}
    shown = json.dumps([widget["properties"].get("metrics", []) for widget in dashboard()])
    named = set(re.findall(r'\\\\"([\w-]+)\\\\"', shown)) | set(re.findall(r'\["AWS/Lambda", "(\w+)"', shown))
    assert named
    assert named <= known


def test_the_dashboard_shows_every_alarm() -> None:
    (widget,) = [widget for widget in dashboard() if widget["type"] == "alarm"]
    place = f"arn:aws:cloudwatch:{PSEUDO['AWS::Region']}:{PSEUDO['AWS::AccountId']}:alarm:shepherd-"
    assert sorted(widget["properties"]["alarms"]) == sorted(f"{place}{name}" for name in alarms())


# What CloudWatch's metric math has, in terms that Python has.
_MATH = {r"\bMAX\(": "max(", r"\bIF\(": "if_(", r"\bFILL\(": "fill(", r"\bPERIOD\(\w+\)": "900", r"\bAND\b": "and"}


def evaluated(alarm: dict[str, Any], **values: float | None) -> bool:
    """Return whether an alarm goes off while its metrics have *values*; None: no data."""
    if "Metrics" in alarm:
        formula = alarm["Metrics"][0]["Expression"]
    else:
        assert (alarm["Statistic"], alarm["EvaluationPeriods"]) == ("Maximum", 1)
        formula = alarm["MetricName"]
    for theirs, ours in _MATH.items():
        formula = re.sub(theirs, ours, formula)
    functions = {
        "if_": lambda condition, this, other: this if condition else other,
        "fill": lambda value, other: other if value is None else value,
    }
    value, threshold = eval(formula, functions, values), alarm["Threshold"]
    return bool(value >= threshold if "OrEqualTo" in alarm["ComparisonOperator"] else value > threshold)


AT_ONCE = "found_alive", "settings_refused", "drifted", "drift_limit_exceeded", "quarantined", "recovery_limited"
_FLEET = {"machines": 3, "requests": 400, "refused": 0, "failures": 0}


@pytest.mark.parametrize(
    ("name", "values", "told"),
    [
        # An empty deployment has no reports either, and must raise no alarm; a domain name is never without requests.
        ("agent-api-silent", {**_FLEET, "requests": None, "refused": None, "failures": None}, True),
        ("agent-api-silent", {**_FLEET, "requests": 0}, True),
        ("agent-api-silent", {**_FLEET, "requests": 1}, False),
        ("agent-api-silent", {**_FLEET, "refused": 400}, True),  # strangers, or agents that nobody believes any more
        ("agent-api-silent", {**_FLEET, "failures": 400}, True),
        ("agent-api-silent", {**_FLEET, "refused": 200, "failures": 199}, False),
        ("agent-api-silent", {"machines": 0, "requests": None, "refused": None, "failures": None}, False),
        ("agent-api-silent", dict.fromkeys(_FLEET), False),
        # Four fifths of the rate are no reason to be woken.
        ("agent-api-busy", {"requests": 200 * 900 * 0.8}, False),
        ("agent-api-busy", {"requests": 200 * 900}, True),
        # One request in thousands always fails, and its agent tries again.
        ("agent-api-errors", {"failures": 9, "requests": 100}, False),
        ("agent-api-errors", {"failures": 10, "requests": 100}, True),
        # Single invocations fail always, and the next one does their work.
        ("updater-failing", {"errors": 49, "invocations": 100}, False),
        ("updater-failing", {"errors": 50, "invocations": 100}, True),
        ("oldest-wait", {"oldest_due_age_seconds": 1800}, False),
        ("oldest-wait", {"oldest_due_age_seconds": 1801}, True),
        *((metric.replace("_", "-"), {metric: value}, value > 0) for metric in AT_ONCE for value in (0, 1)),
        *(
            ("duration", {**dict.fromkeys(LOOPS, 0.0), loop: 800 * FUNCTION_SECONDS[loop] + more}, more > 0)
            for loop in LOOPS
            for more in (0, 1)
        ),
    ],
)
def test_an_alarm_goes_off_from_its_figure_on(name: str, values: dict[str, float | None], told: bool) -> None:
    assert evaluated(alarms(**HTTP_API)[name], **values) is told
    assert name not in alarms() or evaluated(alarms()[name], **values) is told


@pytest.mark.parametrize(("minutes", "interval"), [("1", 1_500), ("10", 3_000), ("30", 3_600), ("60", 3_600)])
def test_one_machines_fleet_is_not_missed_between_two_reports(minutes: str, interval: int) -> None:
    """Its alarm says from which interval on it may be, and how often the Provisioner must run then."""
    alarm = alarms(LoopMinutes=f"{minutes},1,1,1")["agent-api-silent"]
    (period,) = {part["MetricStat"]["Period"] for part in alarm["Metrics"][1:]}
    assert 1.1 * interval + 20 <= alarm["EvaluationPeriods"] * period
    assert {"1,500", "30"} <= set(alarm["AlarmDescription"].split())


@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_that_stands_still_by_mistake_is_told(loop: str) -> None:
    """Missing data is the failure that nothing else reports; after a stop on purpose it is none."""
    place = LOOPS.index(loop)
    for minutes, missing in (("1", "breaching"), ("60", "breaching"), ("0", "notBreaching")):
        rates = ",".join(minutes if each == place else "1" for each in range(4))
        assert alarms(**{**REDFISH, "LoopMinutes": rates})[f"{loop}-failing"]["TreatMissingData"] == missing
    assert alarms(LoopMinutes=rates)[f"{loop}-failing"]["TreatMissingData"] == "notBreaching"
    # That of a Recoverer that cannot reboot is off, whatever LoopMinutes says.
    missing = "notBreaching" if loop == "recoverer" else "breaching"
    assert alarms()[f"{loop}-failing"]["TreatMissingData"] == missing


def test_the_costs_are_computed_for_what_is_deployed() -> None:
    """CloudWatch charges for each metric, and for each that an alarm looks at."""
    cost = Inputs()
    assert cost.alarms == sum(len(list(seen_by_alarm(alarm))) for alarm in alarms().values())
    more = sum(len(list(seen_by_alarm(alarm))) for alarm in alarms(**HTTP_API).values()) - cost.alarms
    assert cost.http_api_alarms == more
    deployed_api = month(0, Inputs(http_api=1))["alarms"]
    assert deployed_api == pytest.approx(month(0, cost)["alarms"] + more * cost.alarm)
    assert cost.metrics == len([Metric.MACHINES_TOTAL])  # the others are 0 while all is well, and not written then
    assert cost.loops == len(LOOPS)
    sums = month(10, cost)
    assert sums["metrics"] + sums["alarms"] + sums["dashboard"] <= 4


def test_the_page_on_cost_has_what_is_computed() -> None:
    page = (ROOT / "docs" / "cost.md").read_text(encoding="utf-8")
    printed = "\n\n".join(each(MACHINES, Inputs()) for each in (table, intervals, comparison))
    assert f"```\n{printed}\n```" in page


@pytest.mark.parametrize(("seconds", "minutes"), [(60, 11), (240, 11), (252, 11.5), (600, 26), (900, 38.5)])
def test_the_page_tells_when_a_dead_machine_is_found(seconds: int, minutes: float) -> None:
    """And the Recoverer's minute. It is the price of a longer interval."""
    assert found_after(Inputs(interval_seconds=seconds)) == pytest.approx(minutes)


def test_the_costs_of_a_heartbeat_are_those_that_were_measured() -> None:
    page, inputs = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8"), Inputs()
    assert f"| CPU of the function for a heartbeat, on a whole core | {inputs.heartbeat_cpu_ms} ms |" in page
    for what, sent in (
        ("bytes sent to a machine for a heartbeat, function URL: new connection |", inputs.new_bytes),
        ("the same, TLS session resumed; both ways |", inputs.resumed_bytes),
        ("the same, connection kept; both ways |", inputs.kept_bytes),
    ):
        assert re.search(rf"^\| {re.escape(what)} {sent:,.0f}[; ]", page, re.MULTILINE)
