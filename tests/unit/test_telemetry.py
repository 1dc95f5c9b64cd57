import json
import os
import re
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import Any
from uuid import UUID

import pytest
from shepherd_core import telemetry
from shepherd_core.domain.errors import SecretUnavailable
from shepherd_core.domain.errors.machine import SshRefused
from shepherd_core.domain.machine import Process
from shepherd_core.telemetry import Metric

from tests.conftest import log_lines
from tests.support.processes import ran

MACHINE = UUID("0a4bc1a8-7c5f-4c0f-9a53-6b4b5b1f0001")


@pytest.fixture(autouse=True)
def _unbound() -> Iterator[None]:
    yield
    telemetry.unbind()


def test_an_error_is_logged_with_its_cause(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        try:
            raise ConnectionRefusedError(111, "Connection refused")
        except OSError as error:
            raise SshRefused("nothing listens on 192.0.2.1") from error
    except SshRefused as error:
        telemetry.error("drift_limit_exceeded")
        telemetry.error("work failed", exc=error, machine=MACHINE)
        telemetry.warning("it goes on", attempt=2)
    without, line, warning = log_lines(capsys)
    assert ("exception" in without, without["level"]) == (False, "ERROR")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", warning.pop("timestamp"))  # as Lambda wants it
    assert warning.pop("location").startswith("test_an_error_is_logged_with_its_cause:")
    assert warning == {"level": "WARNING", "message": "it goes on", "service": "shepherd", "attempt": 2}
    assert (line["exception_name"], line["machine"]) == ("SshRefused", str(MACHINE))
    assert all(text in line["exception"] for text in ("nothing listens on 192.0.2.1", "Connection refused"))


VALUES: list[tuple[object, object]] = [
    (MACHINE, str(MACHINE)),
    (Process.RECOVERY, "ShepherdRecovery"),
    (SecretUnavailable("no answer"), "SecretUnavailable: no answer"),
    (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "2026-01-02T03:04:05+00:00"),
    (b"disk full\n", "disk full\n"),
    (b"\xff\x00", "\\xff\x00"),
    ("\ud800", "\ud800"),
    (ip_address("2001:db8::1"), "2001:db8::1"),
    (float("inf"), "inf"),
    (1.5, 1.5),
    (True, True),
    (None, None),
    ({MACHINE: [b"x", {Process.RECOVERY}]}, {str(MACHINE): ["x", ["ShepherdRecovery"]]}),
    ((1, "a"), [1, "a"]),
]
FORBIDDEN_IN_PYTHON = ("process", "name", "module", "args", "msg", "thread", "exc_info")
ON_EVERY_LINE = ("message", "level", "timestamp", "location", "service")


@pytest.mark.parametrize(
    ("message", "facts", "shown"),
    [
        *(("a", {"value": value}, {"value": shown}) for value, shown in VALUES),
        *(("a", {name: "x"}, {name: "x"}) for name in FORBIDDEN_IN_PYTHON),
        *(("a", {name: "x"}, {f"{name}_": "x", "message": "a", "level": "INFO"}) for name in ON_EVERY_LINE),
        *((message, {}, {"message": message}) for message in ("null", "12", '{"level": "x"}', "100 %s %d")),
    ],
)
def test_any_message_and_fact_can_be_logged(
    capsys: pytest.CaptureFixture[str], message: str, facts: dict[str, Any], shown: dict[str, object]
) -> None:
    telemetry.info(message, **facts)
    (line,) = log_lines(capsys)
    assert {name: line[name] for name in shown} == shown


def test_bound_keys_are_on_every_line_until_unbound(capsys: pytest.CaptureFixture[str]) -> None:
    """The lines of one invocation are found by its request id, also those of its other threads; the next has none."""
    telemetry.bind(request_id="r1", loop="initializer")
    telemetry.bind(provider="static")
    thread = threading.Thread(target=telemetry.info, args=("a",))
    thread.start()
    thread.join()
    telemetry.info("b", loop="other")
    telemetry.unbind()
    telemetry.info("c")
    first, second, third = log_lines(capsys)
    assert (first["request_id"], first["loop"], first["provider"]) == ("r1", "initializer", "static")
    assert (second["request_id"], second["loop"]) == ("r1", "other")
    assert not {"request_id", "loop", "provider"} & set(third)


def test_counts_are_one_line_with_the_metrics_that_alarms_evaluate(capsys: pytest.CaptureFixture[str]) -> None:
    """Alarms name their dimensions: with one more or one fewer they would see nothing. Each metric has a price."""
    telemetry.bind(request_id="r1", settings="abc")
    telemetry.emit("initializer", "static", {Metric.CLAIMED: 3, Metric.OLDEST_DUE_AGE: 12.5})
    (record,) = log_lines(capsys)
    aws = record.pop("_aws")
    assert 1_700_000_000_000 < aws.pop("Timestamp") < 10_000_000_000_000
    metrics = [{"Name": "oldest_due_age_seconds", "Unit": "Seconds"}]
    assert aws == {"CloudWatchMetrics": [{"Namespace": "Shepherd", "Dimensions": [["provider"]], "Metrics": metrics}]}
    bound, counts = {"request_id": "r1", "settings": "abc"}, {"claimed": 3, "oldest_due_age_seconds": 12.5}
    assert record == {"message": "counts", "loop": "initializer", "provider": "static", **bound, **counts}


def test_a_count_of_nothing_is_no_metric(capsys: pytest.CaptureFixture[str]) -> None:
    """An alarm needs no data to be over, and CloudWatch would charge for a month of zeros."""
    telemetry.emit("recoverer", "static", {Metric.QUARANTINED: 0, Metric.RECOVERY_LIMITED: 2})
    telemetry.emit("recoverer", "static", {Metric.QUARANTINED: 0, Metric.DEAD: 7})
    telemetry.emit("recoverer", "static", {})
    some, none = log_lines(capsys)
    assert some["quarantined"] == none["quarantined"] == 0
    assert [each["Name"] for each in some["_aws"]["CloudWatchMetrics"][0]["Metrics"]] == ["recovery_limited"]
    assert {"_aws", "recovery_limited"}.isdisjoint(none)


def test_every_count_can_be_emitted(capsys: pytest.CaptureFixture[str]) -> None:
    """CloudWatch drops records with a unit that it does not know."""
    telemetry.emit("provisioner", "static", dict.fromkeys(Metric, 1))
    (record,) = log_lines(capsys)
    assert {metric.value: record[metric.value] for metric in Metric} == {metric.value: 1 for metric in Metric}
    (directive,) = record["_aws"]["CloudWatchMetrics"]
    assert {each["Unit"] for each in directive["Metrics"]} <= {"Count", "Seconds"}


@pytest.mark.parametrize("variable", ["AWS_LAMBDA_LOG_LEVEL", "POWERTOOLS_LOG_LEVEL"])
def test_the_platform_sets_the_level(variable: str) -> None:
    code = "from shepherd_core import telemetry as t; t.info('a'); t.error('b')"
    (line,) = ran(sys.executable, "-c", code, env={**os.environ, variable: "ERROR"}).stdout.splitlines()
    assert json.loads(line)["message"] == "b"
