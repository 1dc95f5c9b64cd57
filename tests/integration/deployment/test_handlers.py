"""The functions as Lambda calls them: with what the schedules send, configured by the environment alone."""

import importlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from shepherd_core.adapters import ssh_keys
from shepherd_core.adapters.aws.secrets import SsmSecretStore
from shepherd_core.bmdb.machines import pauses
from shepherd_core.domain.errors import ConfigError, DriftLimitExceeded, EventInvalid
from shepherd_core.providers.latitude import name_of
from shepherd_core.settings.functions.specs import LOOPS
from shepherd_core.telemetry import Metric

from simulator.lambda_.environment import Context
from simulator.providers.kit.hardware import NoHardware
from simulator.providers.latitude.api import PROJECT, LatitudeApi
from tests.conftest import log_lines
from tests.support.bmdb.capacity import provided
from tests.support.bmdb.fleet import Fleet
from tests.support.bmdb.recovery import EARLIER_TICK
from tests.support.metrics_page import documented, loops_of

ROOT = Path(__file__).parents[3]
RARE = {Metric.LEFT, Metric.SETTINGS_REFUSED}
"""They are counted only where they happened."""
SSH_KEY_PARAMETER = "/shepherd/ssh-key"
API_KEY = "an-api-key"
PUBLIC_LINE = ssh_keys.public_line(ssh_keys.generate())


def invoke(
    loop: str, event: dict[str, object] | None = None, request: str = "a-request", seconds: float = 300
) -> dict[str, Any]:
    """Return what the function answers to *event*, by default the one that its schedule sends, after a trip as JSON."""
    handler = importlib.import_module(f"functions.{loop}.app").lambda_handler
    if event is None:
        event = json.loads((ROOT / "events" / f"{loop}.json").read_text())
    answer: dict[str, Any] = json.loads(json.dumps(handler(event, Context(request, loop, time.monotonic() + seconds))))
    return answer


@pytest.fixture
def latitude(environment: dict[str, str], aws: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[LatitudeApi]:
    boto3.client("ssm").put_parameter(Name="/api-key", Value=API_KEY, Type="SecureString")
    SsmSecretStore().put(ssh_keys.public_parameter(SSH_KEY_PARAMETER), PUBLIC_LINE, secret=False)
    with LatitudeApi(NoHardware(), secret=API_KEY) as api:
        for name, value in {
            "SHEPHERD_PROVIDER": "latitude",
            "SHEPHERD_PROVIDER_CREDENTIAL_PARAMETER": "/api-key",
            "SHEPHERD_PROVIDER_API_URL": api.url,
            "SHEPHERD_PROVIDER_KEY_NAME": "shepherd",
            "SHEPHERD_PROVIDER_LIMIT": "2",
            "SHEPHERD_PROVIDER_MACHINE_TYPE": "c3-small-x86",
            "SHEPHERD_PROVIDER_PROJECT": PROJECT,
            "SHEPHERD_PROVIDER_LOCATION": "ASH",
        }.items():
            monkeypatch.setenv(name, value)
        yield api
        assert api.errors == []


def list_machines(environment: dict[str, str], *entries: tuple[str, str]) -> None:
    machines = [{"ID": name, "Addr": address} for name, address in entries]
    Path(environment["SHEPHERD_PROVIDER_MACHINES"]).write_text(json.dumps(machines))


def output(capsys: pytest.CaptureFixture[str]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    lines = log_lines(capsys)
    counts = [line for line in lines if line["message"] == "counts"]
    return counts, [line for line in lines if line not in counts]


def measured(record: dict[str, Any]) -> dict[str, float]:
    if "_aws" not in record:
        return {}
    (directive,) = record["_aws"]["CloudWatchMetrics"]
    assert (directive["Namespace"], directive["Dimensions"]) == ("Shepherd", [["provider"]])
    return {metric["Name"]: record[metric["Name"]] for metric in directive["Metrics"]}


def sessions(fleet: Fleet) -> int:
    found: int = fleet.sql("SELECT count(*) FROM sessions")[0][0]
    return found


# --- what comes back ---


def test_the_recoverer_reboots_unhealthy_machines(fleet: Fleet, latitude: LatitudeApi) -> None:
    fleet.sql(EARLIER_TICK)
    machine = fleet.unhealthy_machine()
    server = latitude.add_active(name_of(machine, "1"))
    fleet.change(f"UPDATE machine_provided SET provider = 'latitude', provider_id = '{server.id}'")
    assert invoke("recoverer")["finished"] == 1
    assert latitude.calls["POST", "/servers/{id}/actions"] == 1


def test_the_provisioner_puts_our_key_into_the_project(fleet: Fleet, latitude: LatitudeApi) -> None:
    """Of the key that the Initializer logs in with, the public half alone is read."""
    assert invoke("provisioner")["created"] == 2
    assert len(provided(fleet)) == 2
    (key,) = latitude.keys.values()
    assert key["public_key"] == PUBLIC_LINE


@pytest.mark.parametrize("loop", LOOPS)
def test_answers_and_logs_count_alike(latitude: LatitudeApi, capsys: pytest.CaptureFixture[str], loop: str) -> None:
    answer = invoke(loop)
    (record,), _ = output(capsys)
    assert (record["loop"], record["provider"]) == (loop, "latitude")
    assert (answer["loop"], answer["provider"], answer["dry_run"]) == (loop, "latitude", False)
    counts = {name: value for name, value in answer.items() if name not in {"loop", "provider", "dry_run"}}
    assert {name: record[name] for name in counts} == counts
    assert measured(record) == {name: count for name, count in counts.items() if count and Metric(name).dimensions}
    assert set(counts) == {name for name, row in documented("Metrics").items() if loop in loops_of(row[0])} - RARE


def test_every_line_says_whose_it_is(environment: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """Lines of all invocations end in one place; the next invocation of the process does not inherit them."""
    list_machines(environment, ("a", "192.0.2.1"))
    invoke("provisioner", request="first")
    _, lines = output(capsys)
    assert lines
    assert {(line["request_id"], line["loop"], line["provider"]) for line in lines} == {
        ("first", "provisioner", "static")
    }
    with pytest.raises(EventInvalid):
        invoke("provisioner", {}, request="second")
    _, (line,) = output(capsys)
    assert line["request_id"] == "second"
    assert "provider" not in line


def test_a_warm_invocation_uses_the_connection_that_is_open(fleet: Fleet, environment: dict[str, str]) -> None:
    for _ in range(2):
        invoke("provisioner")
    connections = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'shepherd'"
    )
    assert fleet.sql(connections) == [[1]]


@pytest.mark.parametrize("loop", ["provisioner", "recoverer"])
def test_a_dry_run_answers_the_plan_and_changes_nothing(
    fleet: Fleet, latitude: LatitudeApi, capsys: pytest.CaptureFixture[str], loop: str
) -> None:
    machine = fleet.unhealthy_machine()
    server = latitude.add_active(name_of(machine, "1"))
    fleet.change(f"UPDATE machine_provided SET provider = 'latitude', provider_id = '{server.id}'")
    answer = invoke(loop, {"loop": loop, "scheduled_time": "2026-11-21T09:30:00Z", "dry_run": True})
    assert answer["dry_run"] is True
    if loop == "provisioner":
        assert [creation["capacity"]["reservation_id"] for creation in answer["plan"]["create"]] == [f"{PROJECT}/2"]
    else:
        assert [work["machine_id"] for work in answer["plan"]] == [str(machine)]
    assert {method for method, _ in latitude.calls} == ({"GET"} if loop == "provisioner" else set())
    assert fleet.events(machine) == []
    assert sessions(fleet) == 0
    assert output(capsys)[0] == []


# --- refusals ---


def test_an_unknown_provider_hides_no_fault(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for provider, limit in (("statik", "-1"), ("static", "1")):
        monkeypatch.setenv("SHEPHERD_PROVIDER", provider)
        monkeypatch.setenv("SHEPHERD_DRIFT_LIMIT", limit)
        if provider == "static":
            assert invoke("provisioner")["created"] == 0, "they are read again"
            return
        with pytest.raises(ConfigError) as caught:
            invoke("provisioner")
        assert {fault.split()[0] for fault in caught.value.faults} == {"SHEPHERD_PROVIDER", "SHEPHERD_DRIFT_LIMIT"}


def test_an_invocation_too_short_for_its_settings_is_refused(environment: dict[str, str], aws: None) -> None:
    """The timeout of the function and the time limit of a machine are set in two places."""
    with pytest.raises(ConfigError, match="work on one machine may take 125 s"):
        invoke("initializer", seconds=60)


def test_a_discrepancy_is_measured_and_fails_the_invocation(
    fleet: Fleet, environment: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """An alarm watches the metric; the failure alone could be anything."""
    for _ in range(4):
        fleet.provided_machine()
    fleet.pass_time(3600)
    with pytest.raises(DriftLimitExceeded):
        invoke("provisioner")
    (record,), lines = output(capsys)
    assert measured(record) == {"drift_limit_exceeded": 1, "drifted": 4}
    assert lines[-1]["message"] == "invocation failed"
    assert "machine-3" in lines[-1]["exception"]
    assert pauses.pauses_in_force(fleet.connection) == []
