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
    now = server.now(fleet.connection)

    def line(
        minutes: int, function: str, message: str, about: object = machine_id, **facts: str
    ) -> tuple[str, int, str]:
        at = now - timedelta(minutes=minutes)
        facts |= {} if function == "agent-api" else {"loop": function}
        record = {
            "level": "WARNING",
            "message": message,
            "timestamp": at.isoformat(),
            "machine_id": str(about),
            **facts,
        }
        return function, int(at.timestamp() * 1000), json.dumps(record)

    logged = [
        line(90, "initializer", "too old"),
        line(30, "recoverer", "remediation step", decision="reboot \x1b[31m"),
        line(40, "initializer", "takeover failed"),
        line(20, "initializer", "another machine", about=UUID(int=7)),
        line(10, "agent-api", "request refused"),
    ]
    if request.param == "file":
        file = tmp_path / "functions.log"
        file.write_text("".join(f"{text}\n" for *_, text in logged) + f"no JSON {machine_id}\n")
        return CommandLine(fleet.settings, {"SHEPHERD_LOGS": str(file)})
    client = boto3.client("logs")
    for function in FUNCTIONS:
        group = f"/aws/lambda/fleet-{function}"
        client.create_log_group(logGroupName=group)
        client.create_log_stream(logGroupName=group, logStreamName="one")
        own = sorted((at, text) for name, at, text in logged if name == function)
        if own:
            events = [{"timestamp": at, "message": text} for at, text in own]
            client.put_log_events(logGroupName=group, logStreamName="one", logEvents=events)
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
    result = CommandLine(fleet.settings, {"SHEPHERD_LOGS": source}).told("logs", str(machine_id), status=1)
    assert f"error: {fault}" in result
    assert "SHEPHERD_LOGS" in result


@pytest.mark.parametrize("shepherdctl", ["stack"], indirect=True)
def test_the_region_of_a_log_is_where_the_message_says(shepherdctl: CommandLine, machine_id: UUID) -> None:
    """AWS_REGION is only read on Lambda."""
    elsewhere = CommandLine(None, {**shepherdctl.environment, "AWS_DEFAULT_REGION": "eu-west-3"})
    (name,) = re.findall(r"([A-Z_]+) its region", elsewhere.told("logs", str(machine_id), status=1))
    there = CommandLine(None, {**elsewhere.environment, name: os.environ["AWS_DEFAULT_REGION"]})
    assert len(there.load("logs", str(machine_id))) == 3
