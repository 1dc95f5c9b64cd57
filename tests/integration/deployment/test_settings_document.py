import json
from pathlib import Path
from typing import Any

import pytest
from shepherd_core import telemetry
from shepherd_core.domain.errors import ConfigError, ShepherdError, SourceMissing, SourceUnavailable
from shepherd_core.settings.functions.loops import InitializerSettings
from shepherd_core.telemetry import Metric
from shepherd_core.wiring import agent_endpoint, loops, settings
from shepherd_core.wiring.settings import RELOAD_SECONDS, DocumentInForce, fetch

from tests.conftest import ManualClock
from tests.integration.deployment.test_handlers import invoke, output
from tests.support.bmdb.fleet import Fleet
from tests.support.deployment import function_process

GOOD = "version = 1\n[recoverer]\nstartup_timeout_seconds = 2000\n"
BAD = "version = 1\n[recoverer]\nstartup_timeout_seconds = 0\nchunk = 3\n"


class Source:
    """Where the document is; where it is read from AWS, tests/integration/cli/test_settings.py reads it."""

    holds: str | ShepherdError = ""

    def __call__(self, _: str) -> bytes:
        if isinstance(self.holds, ShepherdError):
            raise self.holds
        return self.holds.encode()


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def in_force(source: Source, clock: ManualClock) -> DocumentInForce:
    return DocumentInForce("s3://shepherd-bucket/settings.toml", source, clock)


def startup(in_force: DocumentInForce) -> object:
    return in_force.refresh().tables["recoverer"]["startup_timeout_seconds"]


def test_warm_functions_see_a_change_after_a_minute(
    in_force: DocumentInForce, source: Source, clock: ManualClock
) -> None:
    """Stated in docs/settings.md; more often would put S3 into the path of every heartbeat."""
    source.holds = GOOD
    assert startup(in_force) == 2000
    source.holds = GOOD.replace("2000", "3000")
    clock.now += RELOAD_SECONDS - 0.1
    assert startup(in_force) == 2000
    clock.now += 0.1
    assert startup(in_force) == 3000
    changed = in_force.refresh()
    clock.now += RELOAD_SECONDS
    assert in_force.refresh() is changed, "what is as before is not checked again"


def test_a_cold_function_fails_with_every_fault(in_force: DocumentInForce, source: Source) -> None:
    """By defaults it might reboot what the operator's settings protect."""
    for missing in (SourceMissing(), SourceUnavailable()):
        source.holds = missing
        with pytest.raises(type(missing)):
            in_force.refresh()
    source.holds = BAD
    with pytest.raises(ConfigError) as caught:
        in_force.refresh()
    assert {fault.split()[0] for fault in caught.value.faults} == {
        "recoverer.chunk",
        "recoverer.startup_timeout_seconds",
    }
    source.holds = GOOD
    assert startup(in_force) == 2000, "and asks again at once"


@pytest.mark.parametrize(
    ("holds", "said"),
    [
        (BAD, "recoverer.chunk is unknown"),
        ("version = 1\n[recoverer", "is not TOML"),
        ("version = 1\n[recoverer]\nheartbeat_timeout_seconds = 60\n", "lose three requests"),
        (SourceMissing("it is gone"), "it is gone"),
        (SourceUnavailable("an outage"), "an outage"),
    ],
    ids=["faults", "no TOML", "rule", "gone", "outage"],
)
def test_a_refused_document_leaves_the_last_good_one_in_force(
    in_force: DocumentInForce,
    source: Source,
    clock: ManualClock,
    capsys: pytest.CaptureFixture[str],
    holds: str | ShepherdError,
    said: str,
) -> None:
    """A typing error must not stop a fleet; it is logged with every fault until it is mended."""
    source.holds = GOOD
    in_force.refresh()
    source.holds = holds
    for _ in range(2):
        clock.now += RELOAD_SECONDS
        assert startup(in_force) == 2000
        assert in_force.refused
        (line,) = output(capsys)[1]
        assert line["level"] == "ERROR"
        assert line["message"] == "settings document refused: the last good one stays in force"
        assert said in str(line["faults"])
    source.holds = GOOD
    clock.now += RELOAD_SECONDS
    assert startup(in_force) == 2000
    assert not in_force.refused


@pytest.fixture
def file(fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "settings.toml"
    (tmp_path / "list.json").write_text("[]")
    path.write_text(f"""\
version = 1
[bmdb]
bmdb_host = "{fleet.settings.bmdb_host}"
bmdb_name = "{fleet.settings.bmdb_name}"
bmdb_user = "{fleet.settings.bmdb_user}"
[provider.static]
machines = "{tmp_path}/list.json"
""")
    monkeypatch.setenv("SHEPHERD_SETTINGS", str(path))
    return path


def replace(path: Path, text: str) -> None:
    path.write_text(text)
    if in_force := settings.in_force():
        in_force._next = 0.0


def append(path: Path, text: str) -> None:
    replace(path, path.read_text() + text)


def tick(loop: str, capsys: pytest.CaptureFixture[str]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return what a run of the loop logs: its lines, and its counts, which it answers, too."""
    answer = invoke(loop)
    (record,), lines = output(capsys)
    assert answer.get(Metric.SETTINGS_REFUSED) == record.get(Metric.SETTINGS_REFUSED)
    return lines, record


def test_every_tick_says_by_which_document_it_worked(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A change is logged once; a refusal is counted until it is mended, and leaves the last good one in force."""
    content = fetch(str(file))
    _, first = tick("provisioner", capsys)
    assert first["settings"] == settings.read(str(file), lambda _: content).hash
    append(file, "# another\n")
    good = file.read_text()
    (line,), changed = tick("provisioner", capsys)
    told = (line["message"], line["before"], line["now"])
    assert told == ("settings document changed", first["settings"], changed["settings"])
    assert first["settings"] != changed["settings"]
    append(file, "x = 1\n")
    _, refused = tick("provisioner", capsys)
    replace(file, good)
    _, mended = tick("provisioner", capsys)
    assert refused["settings"] == mended["settings"] == changed["settings"]
    counted = [record.get(Metric.SETTINGS_REFUSED) for record in (first, changed, refused, mended)]
    assert counted == [None, None, 1, None]


def test_a_loop_is_rebuilt_for_another_document_alone(file: Path) -> None:
    first = loops.build("updater")
    assert loops.build("updater") is first
    closed: list[bool] = []
    object.__setattr__(first, "close", lambda: closed.append(True))
    append(file, "# another\n")
    second = loops.build("updater")
    assert second is not first
    assert closed == [True]


def test_an_unbuildable_document_leaves_the_last_one_in_force(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The checks do not know what a provider can do: restart-agent needs none, a reboot of a list is refused."""
    append(file, '[recoverer]\nremediation_policy = "restart-agent,quarantine"\n')
    _, good = tick("recoverer", capsys)
    replace(file, file.read_text().replace("restart-agent", "reboot"))
    lines, record = tick("recoverer", capsys)
    assert (record["settings"], record[Metric.SETTINGS_REFUSED]) == (good["settings"], 1)
    assert "cannot reboot machines" in json.dumps(lines)


def test_the_agent_api_reads_the_document_too(file: Path) -> None:
    """It is the one function that knows no provider."""
    append(file, "[agent_api]\nheartbeat_interval_seconds = 60\n")
    assert agent_endpoint.build()._limits.interval_seconds == 60
    replace(file, file.read_text().replace("= 60", "= 90"))
    changed = agent_endpoint.build()
    assert changed._limits.interval_seconds == 90
    changed.close()


def test_the_endpoint_of_the_deployment_gives_way_to_the_documents(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A domain name of one's own is set in the document; the deployment knows only its API's own address."""
    monkeypatch.setenv("SHEPHERD_DEFAULT_AGENT_ENDPOINT", "https://own.example.com")
    assert settings.load(InitializerSettings)[0].agent_endpoint == "https://own.example.com"
    append(file, '[initializer]\nagent_endpoint = "https://agents.example.com"\n')
    function_process.end()
    assert settings.load(InitializerSettings)[0].agent_endpoint == "https://agents.example.com"


def test_without_a_document_nothing_is_read_and_nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHEPHERD_SETTINGS", "")
    assert settings.in_force() is None
    assert settings.log_keys().keys() == {"code"}
    assert settings.counts() == {}
    assert telemetry._bound == {}
