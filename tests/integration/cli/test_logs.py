"""The command that shows what the functions logged about a machine: from CloudWatch Logs, against moto, or a file."""

import json
import os
import re
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import boto3
import pytest
from shepherd_core.bmdb.wire import server

from tests.support.bmdb.fleet import Fleet
from tests.support.command_line import CommandLine

FUNCTIONS = ("provisioner", "initializer", "recoverer", "updater", "agent-api")


@pytest.fixture
def machine_id(fleet: Fleet) -> UUID:
    return fleet.provided_machine()


@pytest.fixture(params=["stack", "file"])
def shepherdctl(
    request: pytest.FixtureRequest, aws: None, fleet: Fleet, machine_id: UUID, tmp_path: Path
) -> CommandLine:
    logged = []
    for minutes, function, message, about in (
        (90, "initializer", "too old", machine_id),
        (40, "initializer", "takeover failed", machine_id),
        (30, "recoverer", "remediation step", machine_id),
        (20, "initializer", "another machine", UUID(int=7)),
        (10, "agent-api", "request refused", machine_id),
    ):
        at = server.now(fleet.connection) - timedelta(minutes=minutes)
        record = {"level": "WARNING", "message": message, "timestamp": at.isoformat(), "machine_id": str(about)}
        record |= {} if function == "agent-api" else {"loop": function}
        record |= {"decision": "reboot \x1b[31m"} if function == "recoverer" else {}
        logged.append((function, {"timestamp": int(at.timestamp() * 1000), "message": json.dumps(record)}))
    if request.param == "file":
        file = tmp_path / "functions.log"
        file.write_text("".join(f"{each['message']}\n" for _, each in logged[::-1]) + f"no JSON {machine_id}\n")
        return CommandLine(fleet.settings, {"SHEPHERD_LOGS": str(file)})
    client = boto3.client("logs")
    for function in FUNCTIONS:
        stream = {"logGroupName": f"/aws/lambda/fleet-{function}", "logStreamName": "one"}
        client.create_log_group(logGroupName=stream["logGroupName"])
        client.create_log_stream(**stream)
        if own := [each for name, each in logged if name == function]:
            client.put_log_events(**stream, logEvents=own)
    return CommandLine(fleet.settings, {"SHEPHERD_LOGS": "fleet"})


def test_the_lines_about_one_machine_are_shown_in_their_order(shepherdctl: CommandLine, machine_id: UUID) -> None:
    found = shepherdctl.load("logs", "machine-1")
    assert [(line["function"], line["message"]) for line in found] == [
        ("initializer", "takeover failed"),
        ("recoverer", "remediation step"),
        ("agent-api", "request refused"),
    ]
    chosen = shepherdctl.load("logs", str(machine_id), "--since", "2h", "--function", "initializer")
    assert [line["message"] for line in chosen] == ["too old", "takeover failed"]
    cut = shepherdctl("logs", "machine-1", "--limit", "2")
    assert "recoverer  warning: remediation step (decision reboot \\x1b[31m)" in cut.stdout
    assert "takeover failed" not in cut.stdout
    assert "only the last 2 lines of 3 shown" in cut.stderr
    assert "nothing was logged about machine" in shepherdctl("logs", "machine-1", "--since", "5m").stderr


def test_a_provider_id_may_be_a_uuid(shepherdctl: CommandLine, fleet: Fleet) -> None:
    fleet.sql("UPDATE machine_provided SET provider_id = :name", name=str(UUID(int=8)))
    assert len(shepherdctl.load("logs", str(UUID(int=8)))) == 3
    assert [line["message"] for line in shepherdctl.load("logs", str(UUID(int=7)))] == ["another machine"]


@pytest.mark.parametrize(
    ("source", "fault"), [("nowhere", "the log group /aws/lambda/nowhere-"), ("./none", "the log none")]
)
def test_a_log_that_is_not_there_is_named(fleet: Fleet, machine_id: UUID, aws: None, source: str, fault: str) -> None:
    told = CommandLine(fleet.settings, {"SHEPHERD_LOGS": source}).told("logs", str(machine_id), status=1)
    assert (f"error: {fault}" in told, "SHEPHERD_LOGS" in told) == (True, True)


@pytest.mark.parametrize("shepherdctl", ["stack"], indirect=True)
def test_the_region_of_a_log_is_where_the_message_says(shepherdctl: CommandLine, machine_id: UUID) -> None:
    """AWS_REGION is only read on Lambda."""
    elsewhere = CommandLine(None, {**shepherdctl.environment, "AWS_DEFAULT_REGION": "eu-west-3"})
    (name,) = re.findall(r"([A-Z_]+) its region", elsewhere.told("logs", str(machine_id), status=1))
    there = CommandLine(None, {**elsewhere.environment, name: os.environ["AWS_DEFAULT_REGION"]})
    assert len(there.load("logs", str(machine_id))) == 3
