"""The commands on the settings: write a document, check it, show what is in force."""

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
from tests.support.command_line import CommandLine, without_styles
from tests.support.deployment.examples import EXAMPLES, filled_in

STATIC = (
    'version = 1\nconcurrency = 5\n[recoverer]\nstartup_timeout_seconds = 2000\n[provider.static]\nmachines = "a"\n'
)


@pytest.fixture
def shepherdctl() -> CommandLine:
    return CommandLine(None)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "settings.toml"
    path.write_text(STATIC)
    return path


@pytest.mark.parametrize("provider", BUILT_IN)
def test_a_new_document_is_refused_until_filled_in(shepherdctl: CommandLine, tmp_path: Path, provider: str) -> None:
    """Anyone who forgets a prefix would change machines that are not theirs."""
    path = tmp_path / "settings.toml"
    path.write_text(shepherdctl.read("settings", "init", "--provider", provider))
    parsed = {name: value for name, value in tomllib.loads(path.read_text()).items() if value}
    required = {
        name
        for name, field in find(provider).settings.model_fields.items()
        if field.is_required() and name not in find(provider).given
    }
    answers = dict.fromkeys(("region", "bucket", "bmdb_host"), "FIXME")
    assert parsed == {"version": 1, "deployment": answers, "provider": {provider: parsed["provider"][provider]}}
    assert parsed["provider"][provider].keys() == required
    result = shepherdctl.told("settings", "check", str(path), status=1)
    named = [*(f"provider.{provider}.{name} is " for name in required), *(f"deployment.{name} is " for name in answers)]
    assert {each in result for each in named} == {True}
    assert result.count(": fill it in. ") == len(named)


@pytest.mark.parametrize("folder", EXAMPLES, ids=lambda folder: folder.name)
def test_an_example_is_refused_until_filled_in(shepherdctl: CommandLine, tmp_path: Path, folder: Path) -> None:
    text = (folder / "shepherd.toml").read_text(encoding="utf-8")
    result = shepherdctl.told("settings", "check", str(folder / "shepherd.toml"), status=1)
    assert result.count(": fill it in. ") == len(re.findall(rf'^[^#\n]*"[^"\n]*{PLACEHOLDER}', text, re.MULTILINE))
    (tmp_path / "shepherd.toml").write_text(filled_in(folder)["shepherd.toml"])
    assert "no faults" in shepherdctl.told("settings", "check", str(tmp_path / "shepherd.toml"))


@pytest.mark.parametrize("provider", BUILT_IN)
def test_a_new_document_has_every_key_with_its_default(shepherdctl: CommandLine, provider: str) -> None:
    lines = shepherdctl.read("settings", "init", "--provider", provider).splitlines()
    assert max(map(len, lines)) <= 110
    assert [line for line in lines if line.endswith(("<", ">", "≤", "≥"))] == []  # the number stands beside it
    settings = [line.removeprefix("# ") for line in lines if " = " in line and "…" not in line and "FIXME" not in line]
    names = {line.partition(" = ")[0].removeprefix("# ") for line in lines if " = " in line}
    assert {name for keys in tables(provider).values() for name in keys} <= names
    assert model(parameters()).model_fields.keys() <= names
    text = "\n".join(
        line.removeprefix("# ") if line.removeprefix("# ") in settings and "BUCKET" not in line else line
        for line in lines
        if "FIXME" not in line
    )
    document, faults = parse(text.encode())
    assert faults == []
    values = effective(document).values
    assert {key: values[key].value for key in effective(None).values} == {
        key: value.value for key, value in effective(None).values.items()
    }


@pytest.mark.parametrize("source", ["s3://shepherd-bucket/settings.toml", "ssm:/shepherd/settings", "file"])
def test_a_document_is_checked_where_it_is(shepherdctl: CommandLine, file: Path, aws: None, source: str) -> None:
    boto3.client("s3").create_bucket(
        Bucket="shepherd-bucket", CreateBucketConfiguration={"LocationConstraint": "eu-central-1"}
    )
    boto3.client("s3").put_object(Bucket="shepherd-bucket", Key="settings.toml", Body=STATIC.encode())
    boto3.client("ssm").put_parameter(Name="/shepherd/settings", Value=STATIC, Type="String")
    result = shepherdctl("settings", "check", str(file) if source == "file" else source)
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == f"no faults in document {parse(STATIC.encode())[0].hash}, provider static\n"


def test_the_environments_document_is_checked_unless_another_is_named(file: Path) -> None:
    assert "no faults in document " in CommandLine(None, {"SHEPHERD_SETTINGS": str(file)})("settings", "check").stderr
    alone = CommandLine(None)("settings", "check")
    assert alone.exit_code == 0
    assert alone.stderr.startswith("the provider is not known: its settings were not checked.")
    CommandLine(None, {"SHEPHERD_SETTINGS": "/nowhere"}).told("settings", "check", str(file))


def test_every_fault_is_listed_and_fails_the_command(shepherdctl: CommandLine, file: Path) -> None:
    """What is right is shown beside them."""
    file.write_text(STATIC + "[provisioner]\ndrift_limit = -1\nx = 1\n[agent_api]\nheartbeat_interval_seconds = 9\n")
    checked = shepherdctl("settings", "check", str(file))
    assert checked.stderr.count("\n  - ") == 3
    as_json = shepherdctl("settings", "check", str(file), "-o", "json")
    assert as_json.stdout.count("provisioner.x is unknown") == 1
    shown = shepherdctl("settings", "show", str(file))
    assert "provisioner.drift_limit is -1" in shown.stderr
    assert "recoverer.startup_timeout_seconds" in shown.stdout
    assert "provisioner.drift_limit" not in shown.stdout
    assert [each.exit_code for each in (checked, as_json, shown)] == [1] * 3


def test_effective_values_are_shown_with_their_source(file: Path) -> None:
    environment = {"SHEPHERD_STARTUP_TIMEOUT_SECONDS": "3000", "SHEPHERD_DEFAULT_HEARTBEAT_TIMEOUT_SECONDS": "700"}
    shepherdctl = CommandLine(None, environment)
    found = shepherdctl.load("settings", "show", str(file))
    shown = {row["key"]: (row["value"], row["source"]) for row in found["settings"]}
    assert shown["concurrency"] == (5, "document")
    assert shown["recoverer.startup_timeout_seconds"] == (3000, "environment")
    assert shown["recoverer.heartbeat_timeout_seconds"] == (700, "deployment")
    assert shown["recoverer.max_steps_per_hour"] == (20, "default")
    assert shown["provider.static.machines"] == ("a", "document")
    assert shown["SHEPHERD_PROVIDER"] == ("static", "document")
    assert shown["SHEPHERD_LOOP_MINUTES"] == (DeploymentSettings().loop_minutes, "default")
    assert "initializer.agent_endpoint" not in shown
    assert (found["provider"], found["faults"]) == ("static", [])
    changed = shepherdctl.load("settings", "show", str(file), "--changed")["settings"]
    assert changed == [row for row in found["settings"] if row["source"] != "default"]


def test_other_commands_read_the_document(file: Path) -> None:
    shepherdctl = CommandLine(None, {"SHEPHERD_SETTINGS": str(file)})
    result = shepherdctl.process("status")
    assert result.returncode == 1
    assert "SHEPHERD_BMDB_HOST is not set, nor is bmdb.bmdb_host in the document" in result.stderr


# --- set ---

DEPLOYED = "s3://shepherd-bucket/settings.toml"
INTERVAL = "agent_api.heartbeat_interval_seconds"


@pytest.fixture
def s3(aws: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("SHEPHERD_SETTINGS", DEPLOYED)
    client = boto3.client("s3")
    client.create_bucket(Bucket="shepherd-bucket", CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
    encryption = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "arn:aws:kms:eu-central-1:123456789012:key/1"}
    client.put_object(Bucket="shepherd-bucket", Key="settings.toml", Body=STATIC.encode(), **encryption)
    return client


def deployed(s3: Any) -> dict[str, Any]:
    answer = s3.get_object(Bucket="shepherd-bucket", Key="settings.toml")
    return {"key": answer.get("SSEKMSKeyId"), "text": answer["Body"].read().decode()}


def test_one_setting_of_a_deployment_is_changed(shepherdctl: CommandLine, s3: Any) -> None:
    before = deployed(s3)
    for options in (["--dry-run"], ["--yes"]):
        assert deployed(s3) == before
        shown = shepherdctl.read("settings", "set", INTERVAL, "600", *options)
        assert [line for line in shown.splitlines() if line[0] in "+-"][2:] == [
            "+",
            "+[agent_api]",
            "+heartbeat_interval_seconds = 600",
        ]
    assert deployed(s3) == {"key": before["key"], "text": f"{STATIC}\n[agent_api]\nheartbeat_interval_seconds = 600\n"}
    assert f"{INTERVAL} already has that value in document " in shepherdctl.told(
        "settings", "set", INTERVAL, "600", "--yes"
    )


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
        (
            ["recoverer.startup_timeout_seconds", "9"],
            "SHEPHERD_STARTUP_TIMEOUT_SECONDS is set here and wins over the document",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_setting_that_would_be_refused_is_not_written(s3: Any, arguments: list[str], told: str) -> None:
    before = deployed(s3)
    result = CommandLine(None, {"SHEPHERD_STARTUP_TIMEOUT_SECONDS": "3000"})("settings", "set", *arguments, "--yes")
    assert result.exit_code in {1, 2}
    assert told in " ".join(without_styles(result.stderr).replace("│", " ").split())
    assert deployed(s3) == before


def test_two_operators_do_not_overwrite_each_other(shepherdctl: CommandLine, s3: Any) -> None:
    stored = stored_settings.read(DEPLOYED)
    shepherdctl.read("settings", "set", INTERVAL, "600", "--yes")
    with pytest.raises(SourceMissing, match="was changed by somebody else meanwhile"):
        stored_settings.replace(stored, b"version = 1")
    assert deployed(s3)["text"].endswith("heartbeat_interval_seconds = 600\n")


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
