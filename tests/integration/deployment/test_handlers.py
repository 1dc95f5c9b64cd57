import importlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import pytest
from shepherd_core import handlers
from shepherd_core.adapters import ssh_keys
from shepherd_core.adapters.aws.secrets import SsmSecretStore
from shepherd_core.bmdb.machines import pauses
from shepherd_core.domain.clock import Deadline
from shepherd_core.domain.errors import ConfigError, DriftLimitExceeded, EventInvalid
from shepherd_core.domain.pace import Pace
from shepherd_core.providers.latitude import name_of
from shepherd_core.settings.functions.specs import LOOPS
from shepherd_core.telemetry import Metric
from shepherd_core.wiring import adapters, loops, pace
from shepherd_core.wiring.loops import Function

from agent.shepherd_agent.ed25519 import verify
from simulator.lambda_.environment import Context
from simulator.providers.kit.hardware import NoHardware
from simulator.providers.latitude.api import PROJECT, LatitudeApi
from tests.conftest import log_lines
from tests.support.bmdb.capacity import provided
from tests.support.bmdb.fleet import Fleet
from tests.support.bmdb.recovery import EARLIER_TICK
from tests.support.deployment import function_process
from tests.support.metrics_page import documented, loops_of

ROOT = Path(__file__).parents[3]
SSH_KEY_PARAMETER = "/shepherd/ssh-key"
API_KEY = "an-api-key"
PUBLIC_LINE = ssh_keys.public_line(ssh_keys.generate())


def invoke(
    loop: str, event: Mapping[str, object] | None = None, request: str = "a-request", seconds: float = 300
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


@pytest.mark.parametrize("loop", ["provisioner", "recoverer"])
def test_a_dry_run_answers_what_the_next_run_does(
    fleet: Fleet, latitude: LatitudeApi, capsys: pytest.CaptureFixture[str], loop: str
) -> None:
    """And changes nothing itself. Of the key that the Initializer logs in with, the public half alone is read."""
    fleet.sql(EARLIER_TICK)
    machine = fleet.unhealthy_machine()
    server = latitude.add_active(name_of(machine, "1"))
    fleet.change(f"UPDATE machine_provided SET provider = 'latitude', provider_id = '{server.id}'")
    answer = invoke(loop, {"loop": loop, "scheduled_time": "2026-11-21T09:30:00Z", "dry_run": True})
    assert answer["dry_run"] is True
    assert {method for method, _ in latitude.calls} == ({"GET"} if loop == "provisioner" else set())
    assert fleet.events(machine) == []
    assert fleet.sql("SELECT count(*) FROM sessions") == [[0]]
    assert output(capsys)[0] == []
    done = invoke(loop)
    if loop == "provisioner":
        assert [each["capacity"]["reservation_id"] for each in answer["plan"]["create"]] == [f"{PROJECT}/2"]
        assert answer["plan"]["managed"] == 1
        assert (done["created"], len(provided(fleet))) == (1, 2)
        assert [key["public_key"] for key in latitude.keys.values()] == [PUBLIC_LINE]
    else:
        assert [work["machine_id"] for work in answer["plan"]] == [str(machine)]
        assert (done["finished"], latitude.calls["POST", "/servers/{id}/actions"]) == (1, 1)


@pytest.mark.parametrize("loop", LOOPS)
def test_answers_and_logs_count_alike(latitude: LatitudeApi, capsys: pytest.CaptureFixture[str], loop: str) -> None:
    answer = invoke(loop)
    (record,), _ = output(capsys)
    assert (record["loop"], record["provider"]) == (loop, "latitude")
    assert (answer["loop"], answer["provider"], answer["dry_run"]) == (loop, "latitude", False)
    counts = {name: value for name, value in answer.items() if name not in {"loop", "provider", "dry_run"}}
    assert {name: record[name] for name in counts} == counts
    assert measured(record) == {name: count for name, count in counts.items() if count and Metric(name).dimensions}
    of_loop = {name for name, row in documented("Metrics").items() if loop in loops_of(row[0])}
    assert set(counts) == of_loop - {Metric.LEFT, Metric.SETTINGS_REFUSED}  # which are counted only where they happened


def test_every_line_says_whose_it_is(environment: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """Lines of all invocations end in one place; the next invocation of the process does not inherit them."""
    Path(environment["SHEPHERD_PROVIDER_MACHINES"]).write_text('[{"ID": "a", "Addr": "192.0.2.1"}]')
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


def test_an_unknown_provider_hides_no_fault(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """And settings are read again by the next invocation."""
    monkeypatch.setenv("SHEPHERD_PROVIDER", "statik")
    monkeypatch.setenv("SHEPHERD_DRIFT_LIMIT", "-1")
    with pytest.raises(ConfigError) as caught:
        invoke("provisioner")
    assert {fault.split()[0] for fault in caught.value.faults} == {"SHEPHERD_PROVIDER", "SHEPHERD_DRIFT_LIMIT"}
    monkeypatch.setenv("SHEPHERD_PROVIDER", "static")
    monkeypatch.setenv("SHEPHERD_DRIFT_LIMIT", "1")
    assert invoke("provisioner")["created"] == 0


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


TICK, REQUEST = (json.loads((ROOT / "events" / f"{name}.json").read_text()) for name in ("recoverer", "agent_api"))
DEPLOYMENT = {"RequestType": "Create", "ResourceProperties": {"SchemaVersion": "1"}}
LONG = "x" * 5_000_000
recoverer = partial(handlers.invoke, "recoverer")


@pytest.mark.parametrize(
    ("function", "event", "text"),
    [
        *(
            (function, event, f"the event is {event!r}; it must be an object")
            for function in (recoverer, handlers.agent_api, handlers.migrate)
            for event in ("a text", ["a"], None, 7)
        ),
        (recoverer, {**TICK, "scheduled_time": "yesterday"}, "scheduled_time is 'yesterday'; it must be a time"),
        (recoverer, {**TICK, "scheduled_time": "2026-11-21T09:30:00"}, "scheduled_time is '2026-11-21T09:30:00'; it"),
        (recoverer, {**TICK, "scheduled_time": LONG}, "the event has 50000"),
        (recoverer, {**TICK, "loop": "x" * 60_000}, "the event is for the loop 'xxx"),
        (recoverer, {**TICK, "dry_run": "x" * 60_000}, "dry_run is 'xxx"),
        (recoverer, {"loop": "recoverer"}, "scheduled_time is missing"),
        (recoverer, {**TICK, "loop": "provisioner"}, "the event is for the loop 'provisioner'"),
        (recoverer, {**TICK, "dry_rnu": True}, "dry_rnu"),
        (recoverer, {**TICK, "dry_run": "false"}, "dry_run is 'false'"),
        (recoverer, {}, "loop is missing"),
        (recoverer, {"version": "0", "detail-type": "Scheduled Event", "detail": "{}"}, "loop is missing"),
        (handlers.migrate, {**DEPLOYMENT, "RequestType": ["x"]}, "RequestType is ['x']; it must be Create, Up"),
        (
            handlers.migrate,
            {**DEPLOYMENT, "ResourceProperties": "1"},
            "ResourceProperties is '1'; it must be an object",
        ),
        (handlers.migrate, {**DEPLOYMENT, "padding": LONG}, "the event has 5000"),
        (handlers.agent_api, {**REQUEST, "headers": ["x"]}, "headers is ['x']; it must be an object"),
        (
            handlers.agent_api,
            {**REQUEST, "headers": {"shepherd-time": 7}},
            "headers.'shepherd-time' is 7; it must be text",
        ),
        (handlers.agent_api, {**REQUEST, "rawPath": 7}, "rawPath is 7; it must be text"),
        (handlers.agent_api, {**REQUEST, "body": {}}, "body is {}; it must be text"),
        (handlers.agent_api, {**REQUEST, "body": "\u00e4"}, "body is '\u00e4'; it must be base64"),
        (handlers.agent_api, {**REQUEST, "isBase64Encoded": "no"}, "isBase64Encoded is 'no'; it must be true or false"),
        (handlers.agent_api, {**REQUEST, "requestContext": {}}, "requestContext.http is missing; it must be text"),
        (handlers.agent_api, {**REQUEST, "requestContext": 7}, "requestContext is 7; it must be an object"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_a_wrong_event_or_field_is_named(function: Callable[..., Any], event: Any, text: str) -> None:
    """Who invokes the function by hand sees only the message; a long value is shortened in it."""
    with pytest.raises(EventInvalid) as caught:
        function(event, Context("a-request", "by hand", time.monotonic() + 300))
    assert text in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.fixture
def initializer(environment: dict[str, str], aws: None, monkeypatch: pytest.MonkeyPatch) -> Function:
    monkeypatch.setattr(pace, "current", Pace(machine_seconds=30))
    return loops.build("initializer")


def test_without_work_no_ssh_key_is_needed(initializer: Function, fleet: Fleet, deadline: Deadline) -> None:
    """Nor is loaded what speaks SSH, which takes longer than all the rest."""
    initializer.run(deadline, "a test")
    fleet.provided_machine()
    assert len(initializer.plan(deadline)["plan"]) == 1  # type: ignore[arg-type]  # a list, for this function


def test_an_unusable_key_is_held_against_no_machine(initializer: Function, fleet: Fleet, deadline: Deadline) -> None:
    """It is the deployment's fault: the invocation fails, and the machines are as due as before."""
    machine_id = fleet.provided_machine()
    boto3.client("ssm").put_parameter(Name=SSH_KEY_PARAMETER, Value="hunter2", Type="SecureString")
    with pytest.raises(ConfigError, match="SSH key") as caught:
        initializer.run(deadline, "a test")
    assert "hunter2" not in str(caught.value)
    assert fleet.sql("SELECT event FROM work_history WHERE machine_id = :id ORDER BY 1", id=machine_id) == [
        ["Canceled"],
        ["Started"],
    ]
    assert len(initializer.plan(deadline)["plan"]) == 1  # type: ignore[arg-type]  # a list, for this function


def test_the_keys_for_installations_may_be_missing(aws: None) -> None:
    """A fleet on which nothing is installed needs none; but what is there must be keys."""
    parameter = "/shepherd/installation-key.pub"
    assert adapters.installation_keys(parameter) == ()
    key = ssh_keys.generate()
    function_process.end()
    ssm = boto3.client("ssm")
    ssm.put_parameter(Name=parameter, Value=ssh_keys.public_line(key), Type="String")
    (public,) = adapters.installation_keys(parameter)
    assert verify(public, ssh_keys.signer(key)(b"a message"), b"a message")
