"""The commands on the settings: write a document, check it, show what is in force, change it; and lists of machines."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import boto3
import pytest
from shepherd_core.domain.errors import ConfigError, SourceMissing
from shepherd_core.settings.base import PLACEHOLDER
from shepherd_core.settings.deployment import DeploymentSettings
from shepherd_core.settings.document import parse
from shepherd_core.settings.effective import effective
from shepherd_core.settings.keys import tables
from shepherd_core.settings.providers import BUILT_IN, find

from shepherdctl.deployment import stored_settings
from shepherdctl.deployment.answers import model
from shepherdctl.deployment.template import parameters
from tests.support.command_line import CommandLine
from tests.support.deployment.examples import EXAMPLES, filled_in

STATIC = (
    'version = 1\nconcurrency = 5\n[recoverer]\nstartup_timeout_seconds = 2000\n[provider.static]\nmachines = "a"\n'
)
SHEPHERDCTL = CommandLine(None)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "settings.toml"
    path.write_text(STATIC)
    return path


@pytest.mark.parametrize("provider", BUILT_IN)
def test_a_new_document_is_refused_until_filled_in(file: Path, provider: str) -> None:
    """Anyone who forgets a prefix would change machines that are not theirs."""
    file.write_text(SHEPHERDCTL.read("settings", "init", "--provider", provider))
    parsed = {name: value for name, value in tomllib.loads(file.read_text()).items() if value}
    spec, answers = find(provider), ("region", "bucket", "bmdb_host")
    required = {name for name, field in spec.settings.model_fields.items() if field.is_required()} - set(spec.given)
    given = parsed["provider"][provider]
    assert given.keys() == required
    assert parsed == {"version": 1, "deployment": dict.fromkeys(answers, "FIXME"), "provider": {provider: given}}
    result = SHEPHERDCTL.told("settings", "check", str(file), status=1)
    named = [*(f"provider.{provider}.{name} is " for name in required), *(f"deployment.{name} is " for name in answers)]
    assert {each in result for each in named} == {True}
    assert result.count(": fill it in. ") == len(named)


@pytest.mark.parametrize("folder", EXAMPLES, ids=lambda folder: folder.name)
def test_an_example_is_refused_until_filled_in(file: Path, folder: Path) -> None:
    text = (folder / "shepherd.toml").read_text(encoding="utf-8")
    result = SHEPHERDCTL.told("settings", "check", str(folder / "shepherd.toml"), status=1)
    assert result.count(": fill it in. ") == len(re.findall(rf'^[^#\n]*"[^"\n]*{PLACEHOLDER}', text, re.MULTILINE))
    file.write_text(filled_in(folder)["shepherd.toml"])
    assert "no faults" in SHEPHERDCTL.told("settings", "check", str(file))


@pytest.mark.parametrize("provider", BUILT_IN)
def test_a_new_document_has_every_key_with_its_default(provider: str) -> None:
    lines = SHEPHERDCTL.read("settings", "init", "--provider", provider).splitlines()
    assert max(map(len, lines)) <= 110
    assert [line for line in lines if line.endswith(("<", ">", "≤", "≥"))] == []  # the number stands beside it
    plain = {line: line.removeprefix("# ") for line in lines if "FIXME" not in line}
    names = {line.removeprefix("# ").partition(" = ")[0] for line in lines if " = " in line}
    assert {name for keys in tables(provider).values() for name in keys} <= names
    assert model(parameters()).model_fields.keys() <= names
    kept = ("…", "BUCKET")
    text = [text if " = " in text and not any(each in text for each in kept) else line for line, text in plain.items()]
    document, faults = parse("\n".join(text).encode())
    assert faults == []
    values, defaults = effective(document).values, effective(None).values
    assert {key: values[key].value for key in defaults} == {key: value.value for key, value in defaults.items()}


@pytest.mark.parametrize("source", ["s3://shepherd-bucket/settings.toml", "ssm:/shepherd/settings", "file"])
def test_a_document_is_checked_where_it_is(file: Path, s3: Any, source: str) -> None:
    boto3.client("ssm").put_parameter(Name="/shepherd/settings", Value=STATIC, Type="String")
    told = SHEPHERDCTL.told("settings", "check", str(file) if source == "file" else source)
    assert told == f"no faults in document {parse(STATIC.encode())[0].hash}, provider static"


def test_the_environments_document_is_checked_unless_another_is_named(file: Path) -> None:
    named = CommandLine(None, {"SHEPHERD_SETTINGS": str(file)})
    assert "no faults in document " in named.told("settings", "check")
    refused = named.process("status")  # of its own: what an earlier command of this one knows is not the document's
    assert refused.returncode == 1
    assert "SHEPHERD_BMDB_HOST is not set, nor is bmdb.bmdb_host in the document" in " ".join(refused.stderr.split())
    alone = SHEPHERDCTL.told("settings", "check")
    assert alone.startswith("the provider is not known: its settings were not checked.")
    CommandLine(None, {"SHEPHERD_SETTINGS": "/nowhere"}).told("settings", "check", str(file))


def test_every_fault_is_listed_and_fails_the_command(file: Path) -> None:
    """What is right is shown beside them."""
    file.write_text(STATIC + "[provisioner]\ndrift_limit = -1\nx = 1\n[agent_api]\nheartbeat_interval_seconds = 9\n")
    checked = SHEPHERDCTL("settings", "check", str(file))
    assert checked.stderr.count("\n  - ") == 3
    as_json = SHEPHERDCTL("settings", "check", str(file), "-o", "json")
    assert as_json.stdout.count("provisioner.x is unknown") == 1
    shown = SHEPHERDCTL("settings", "show", str(file))
    assert "provisioner.drift_limit is -1" in shown.stderr
    assert "recoverer.startup_timeout_seconds" in shown.stdout
    assert "provisioner.drift_limit" not in shown.stdout
    assert [each.exit_code for each in (checked, as_json, shown)] == [1] * 3


def test_effective_values_are_shown_with_their_source(file: Path) -> None:
    environment = {"SHEPHERD_STARTUP_TIMEOUT_SECONDS": "3000", "SHEPHERD_DEFAULT_HEARTBEAT_TIMEOUT_SECONDS": "700"}
    shepherdctl = CommandLine(None, environment)
    found = shepherdctl.load("settings", "show", str(file))
    shown = {row["key"]: (row["value"], row["source"]) for row in found["settings"]}
    assert shown.items() >= {
        ("concurrency", (5, "document")),
        ("recoverer.startup_timeout_seconds", (3000, "environment")),
        ("recoverer.heartbeat_timeout_seconds", (700, "deployment")),
        ("recoverer.max_steps_per_hour", (20, "default")),
        ("provider.static.machines", ("a", "document")),
        ("SHEPHERD_PROVIDER", ("static", "document")),
        ("SHEPHERD_LOOP_MINUTES", (DeploymentSettings().loop_minutes, "default")),
    }
    assert "initializer.agent_endpoint" not in shown
    assert (found["provider"], found["faults"]) == ("static", [])
    changed = shepherdctl.load("settings", "show", str(file), "--changed")["settings"]
    assert changed == [row for row in found["settings"] if row["source"] != "default"]


# --- set ---

BUCKET, KEY = "shepherd-bucket", "settings.toml"
DEPLOYED = f"s3://{BUCKET}/{KEY}"
INTERVAL = "agent_api.heartbeat_interval_seconds"


@pytest.fixture
def s3(aws: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("SHEPHERD_SETTINGS", DEPLOYED)
    client = boto3.client("s3")
    client.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
    encryption = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "arn:aws:kms:eu-central-1:123456789012:key/1"}
    client.put_object(Bucket=BUCKET, Key=KEY, Body=STATIC.encode(), **encryption)
    return client


def deployed(s3: Any) -> dict[str, Any]:
    answer = s3.get_object(Bucket=BUCKET, Key=KEY)
    return {"key": answer.get("SSEKMSKeyId"), "text": answer["Body"].read().decode()}


def test_one_setting_of_a_deployment_is_changed(s3: Any) -> None:
    """Nor does an operator overwrite what another one wrote meanwhile."""
    before, stored = deployed(s3), stored_settings.read(DEPLOYED)
    for options in (["--dry-run"], ["--yes"]):
        assert deployed(s3) == before
        shown = SHEPHERDCTL.read("settings", "set", INTERVAL, "600", *options)
        changed = [line for line in shown.splitlines() if line[0] in "+-"]
        assert changed[2:] == ["+", "+[agent_api]", "+heartbeat_interval_seconds = 600"]
    after = {"key": before["key"], "text": f"{STATIC}\n[agent_api]\nheartbeat_interval_seconds = 600\n"}
    again = SHEPHERDCTL.told("settings", "set", INTERVAL, "600", "--yes")
    assert f"{INTERVAL} already has that value in document " in again
    with pytest.raises(SourceMissing, match="was changed by somebody else meanwhile"):
        stored_settings.replace(stored, b"version = 1")
    assert deployed(s3) == after


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([INTERVAL, "often"], f"{INTERVAL} is 'often': Input should be a valid integer. Seconds between two"),
        ([INTERVAL, "1e999"], f"{INTERVAL} is '1e999': Input should be a valid integer."),
        ([INTERVAL, "4000"], f"{INTERVAL} is 4000: "),
        ([INTERVAL, "6"], "heartbeat_interval_seconds is 6"),
        (["heartbeat_interval_seconds", "600"], "heartbeat_interval_seconds is unknown: it belongs in [agent_api]"),
        (["no.such", "1"], "no.such is unknown"),
        ([INTERVAL, "6\n0"], "it must be printable text on one line"),
        ([INTERVAL, "600", "/etc/settings.toml"], "'/etc/settings.toml' is not in S3"),
        (["recoverer.startup_timeout_seconds", "9"], "SHEPHERD_STARTUP_TIMEOUT_SECONDS is set here and wins over the"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_setting_that_would_be_refused_is_not_written(s3: Any, arguments: list[str], told: str) -> None:
    before, status = deployed(s3), 2 if "printable" in told else 1
    shepherdctl = CommandLine(None, {"SHEPHERD_STARTUP_TIMEOUT_SECONDS": "3000"})
    assert told in shepherdctl.told("settings", "set", *arguments, "--yes", status=status)
    assert deployed(s3) == before


@pytest.mark.parametrize(
    ("before", "key", "after"),
    [
        ("version = 1\n", "concurrency", "version = 1\nconcurrency = 7\n"),
        ("version = 1\r\n[updater]\r\n", "updater.x", "version = 1\r\n[updater]\r\nx = 7\r\n"),
        ("version = 1\n[a]\nx = 1\n[b]\nx = 2 # why\n", "b.x", "version = 1\n[a]\nx = 1\n[b]\nx = 7 # why\n"),
        ('version = 1\nx = "a # \\" b" # why\n', "x", "version = 1\nx = 7 # why\n"),
        ("version = 1\n[a]\n# x = 1\n\n# B.\n[b]\n", "a.x", "version = 1\n[a]\n# x = 1\nx = 7\n\n# B.\n[b]\n"),
        ("version = 1\n[a] # A\n\n# B.\n[b]\n", "a.x", "version = 1\n[a] # A\nx = 7\n\n# B.\n[b]\n"),
        ("version = 1\na = {x = 1}\n", "a.x", None),
        ("version = 1\na.x = 1\n", "a.x", None),
        ("version = 1\na = 1\n", "a.x", None),
        ('version = 1\ny = """\nx = 1"""\n', "x", None),
    ],
)
def test_a_change_leaves_all_else_as_it_was_written(before: str, key: str, after: str | None) -> None:
    """Comments are why people write the document by hand; a form that is not understood is not touched."""
    table, _, name = key.rpartition(".")
    if after is None:
        with pytest.raises(ConfigError, match="edit it by hand"):
            stored_settings.with_value(before, table, name, 7)
    else:
        assert stored_settings.with_value(before, table, name, 7) == after


# --- import-machines ---

BMC = {"Bmc": "https://10.0.1.7", "Credential": "/shepherd/bmc/rack1"}


@pytest.mark.parametrize(
    ("content", "provider", "entries"),
    [
        (
            "ID,Addr,Location,Labels\r\nr1,203.0.113.7,Rack 1,role=db gpu\r\n\r\nr2, 2001:db8::8 ,,\r\n",
            "static",
            [
                {"ID": "r1", "Addr": "203.0.113.7", "Location": "Rack 1", "Labels": "role=db gpu"},
                {"ID": "r2", "Addr": "2001:db8::8"},
            ],
        ),
        (
            '\ufeffbmc;credential;addr;id\nhttps://10.0.1.7;/shepherd/bmc/rack1;203.0.113.7;"r;ü"\n',
            "redfish",
            [{**BMC, "Addr": "203.0.113.7", "ID": "r;ü"}],
        ),
    ],
)
def test_spreadsheets_become_lists(file: Path, content: str, provider: str, entries: list[dict[str, str]]) -> None:
    file.write_bytes(content.encode())
    result = SHEPHERDCTL("settings", "import-machines", str(file), "--provider", provider)
    assert json.loads(result.stdout) == entries
    assert result.stderr == f"{len(entries)} machine{'s' * (len(entries) > 1)} for {provider}_list\n"


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"ID,Addr\nr1,203.0.113\n", "line 2: Addr is '203.0.113'; it must be the IP address"),
        (b"ID,Addr\nr1,203.0.113.7\n\nr1,203.0.113.8\n", "line 4: ID 'r1' is that of line 2 too; it must be unique"),
        (b"ID,Addr\n,203.0.113.7\n", "line 2: ID is missing; it must be a text of 1 to 128"),
        (b"ID,Addr\nr1,203.0.113.7,x\n", "line 2: there are 3 cells; it must have 2"),
        (b"ID,Addr,Owner\n", "line 1: column 3 is 'Owner'; it must be one of ID, Addr, Location, HostKey"),
        (b"ID,Addr,id\n", "line 1: column 3 is 'ID'; it must be one of"),
        (b"", "line 1: there is no column ID; it is required"),
        (b"ID,Addr\n,\n", "there is no machine below line 1"),
        (b'ID,Addr\n"r1"x,203.0.113.7\n', "line 2 is not CSV: "),
        (b"ID,Addr\n\xff,203.0.113.7\n", "is not UTF-8 in line 2: save it as CSV UTF-8"),
        (b"ID,Addr\nr\x1b[31m,203.0.113.7\n", "line 2: ID is 'r\\x1b[31m'; it must be"),
        (b"ID,Addr\n" + b"r,x\n" * 5000, "line 2: Addr"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_a_fault_is_named_with_line_column_and_value(file: Path, content: bytes, fault: str) -> None:
    """It is corrected in the spreadsheet, which has lines and columns; half a list would set machines aside."""
    file.write_bytes(content)
    refused = SHEPHERDCTL("settings", "import-machines", str(file), "--provider", "static")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert fault in refused.stderr
    assert len(refused.stderr.splitlines()) < 200
