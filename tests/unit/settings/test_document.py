import hashlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from shepherd_core.domain.errors import ConfigError
from shepherd_core.settings.document import LIMIT_BYTES, MAX_FAULTS, bounded, parse
from shepherd_core.settings.effective import effective
from shepherd_core.settings.functions.loops import RecovererSettings
from shepherd_core.settings.functions.specs import FUNCTIONS
from shepherd_core.settings.keys import kind, path, tables
from shepherd_core.settings.providers import BUILT_IN, names
from shepherd_core.settings.providers.static import StaticSettings
from shepherd_core.settings.sources import load

DOCUMENT = b"""\
version = 1
concurrency = 60

[bmdb]
bmdb_host = "db.example"

[recoverer]
heartbeat_timeout_seconds = 900

[provider.static]
machines = "machines.json"
"""


def faults(text: str) -> list[str]:
    return parse(f"version = 1\n{text}".encode())[1]


def test_environment_wins_over_document_and_document_over_deployment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deployment may give a default that its operator overrides, and what it must not lose."""
    read, _ = parse(DOCUMENT)
    monkeypatch.setenv("SHEPHERD_HEARTBEAT_TIMEOUT_SECONDS", "1200")
    monkeypatch.setenv("SHEPHERD_DEFAULT_CONCURRENCY", "10")
    monkeypatch.setenv("SHEPHERD_DEFAULT_STARTUP_TIMEOUT_SECONDS", "4000")
    monkeypatch.setenv("SHEPHERD_MAX_STEPS_PER_HOUR", "")  # empty: not set
    monkeypatch.setenv("SHEPHERD_BMDB_HOST", "")
    (settings,) = load(RecovererSettings, document=read)
    assert (settings.heartbeat_timeout_seconds, settings.concurrency) == (1200, 60)
    assert (settings.bmdb_host, settings.startup_timeout_seconds) == ("db.example", 4000)
    assert settings.max_steps_per_hour == RecovererSettings.model_fields["max_steps_per_hour"].default


def test_the_settings_of_a_provider_have_their_own_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """One word of an agent is not one of a provider, and one variable serves for whichever provider."""
    read, _ = parse(DOCUMENT)
    assert load(StaticSettings, document=read)[0].machines == "machines.json"
    monkeypatch.setenv("SHEPHERD_MACHINES", "nobody.json")
    monkeypatch.setenv("SHEPHERD_DEFAULT_PROVIDER_MACHINES", "default.json")
    assert load(StaticSettings, document=read)[0].machines == "machines.json"
    assert load(StaticSettings)[0].machines == "default.json"
    monkeypatch.setenv("SHEPHERD_PROVIDER_MACHINES", "others.json")
    assert load(StaticSettings, document=read)[0].machines == "others.json"


def test_the_provider_is_the_one_that_the_document_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless it has two: then nothing says which."""
    read, _ = parse(DOCUMENT)
    assert load(RecovererSettings, document=read)[0].provider == "static"
    both, _ = parse(DOCUMENT + b'[provider.redfish]\nmachines = "racks.json"\n')
    with pytest.raises(ConfigError, match="SHEPHERD_PROVIDER is not set"):
        load(RecovererSettings, document=both)
    monkeypatch.setenv("SHEPHERD_PROVIDER", "redfish")
    assert load(RecovererSettings, document=both)[0].provider == "redfish"


def test_every_fault_is_named_at_once() -> None:
    read, wrong = parse(b"""\
version = 1
concurency = 3
heartbeat_timeout_seconds = 900
chunks = { size = 3 }
agent_path = ["a"]
[recoverer]
heartbeat_timeout_seconds = "900"
max_steps_per_hour = 1.5
startup_timeout_seconds = 0
max_machines = 3
[provisioner]
assimilate = 1
creation_seconds = true
[elsewhere]
[provider.hetzner]
key_name = "FIXME"
[provider.acme]
""")
    found = sorted(fault.partition(". ")[0] for fault in wrong + effective(read).faults)
    assert found == [
        "SHEPHERD_PROVIDER_FLEET is not set, nor is provider.hetzner.fleet in the document",
        "agent_path is ['a']: Input should be a valid string",
        "chunks is unknown: shepherdctl settings init prints all keys",
        "concurency is unknown: did you mean concurrency?",
        "elsewhere is unknown: shepherdctl settings init prints all keys",
        "heartbeat_timeout_seconds is unknown: it belongs in [recoverer]",
        f"provider.acme is unknown: the providers are {', '.join(names())}",
        "provider.hetzner.key_name is 'FIXME': fill it in",
        "provisioner.assimilate is 1: Input should be a valid boolean",
        "provisioner.creation_seconds is true: Input should be a valid number",
        "recoverer.heartbeat_timeout_seconds is '900': Input should be a valid number",
        "recoverer.max_machines is unknown: it belongs in [provisioner]",
        "recoverer.max_steps_per_hour is 1.5: Input should be a valid integer",
        "recoverer.startup_timeout_seconds is 0: Input should be greater than 0",
    ]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("heartbeat_timeout_secnds = 900", "did you mean recoverer.heartbeat_timeout_seconds?"),
        ("[recoverer]\nheartbeat_timeout_secnds = 900", "did you mean recoverer.heartbeat_timeout_seconds?"),
        ("[initializer]\ndrift_limits = 900", "did you mean provisioner.drift_limit?"),
        ("[bmdb]\nconcurrency = 1", "it belongs at the top"),
        ('qwertz = "hunter2"', "shepherdctl settings init prints all keys"),
        ('[bmdb]\npassword = "hunter2"', "bmdb.password is unknown"),
        ('provider = "static"', "provider is 'static': it must be a table, [provider]"),
        ("recoverer = 5", "recoverer is 5: it must be a table, [recoverer]"),
        ("[[recoverer]]", "it must be a table, [recoverer]"),
        ("[recoverer]\nstartup_timeout_seconds = 2026-01-02", "Input should be a valid number"),
    ],
)
def test_a_fault_says_what_was_probably_meant(text: str, fault: str) -> None:
    (found,) = faults(text)
    assert fault in found
    assert "hunter2" not in found, "somebody may take the document for a place for passwords"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "version is missing"),
        (b"[recoverer]\n", "version is missing"),
        (b"version = 2\nnew = 1", "version is 2: this code reads version 1"),
        (b'version = "1"', "version is '1'"),
        (b"version = true", "version is true"),
        (b"version = 1.0", "version is 1.0"),
        (b"version = 1\nversion = 1", "is not TOML"),
        (b'{"version": 1}', "is not TOML"),
        (b"version = 1\na = \xff", "is not UTF-8: line 2 has the byte 0xff"),
        ("version = 1".encode("utf-16"), "is not UTF-8: line 1"),
        (b"version = 1\na = " + b"9" * 5000, "has a number with thousands of digits"),
        (b"version = 1\na = " + b"[" * 15_000, "nested too deep"),
        (b"version = 1\na = " + b"{a=" * 5_000, "nested too deep"),
        (b"version = 1 #" + b"x" * LIMIT_BYTES, "it may have at most 16384"),
    ],
    ids=lambda part: str(part)[:30],
)
def test_what_cannot_be_read_is_refused_with_the_reason(content: bytes, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(content)
    (fault,) = caught.value.faults
    assert reason in fault


@pytest.mark.parametrize("content", [b"version = 1\r\n[recoverer]\r\n", b"\xef\xbb\xbfversion = 1\n"])
def test_a_document_may_come_from_any_editor(content: bytes) -> None:
    assert parse(content)[1] == []


def test_very_many_faults_are_counted_and_not_all_listed() -> None:
    found = bounded(faults("\n".join(f"key{number} = 1" for number in range(500))))
    assert (len(found), found[-1]) == (MAX_FAULTS + 1, "and 450 more")


def test_every_setting_has_one_place() -> None:
    placed = [name for keys in tables().values() for name in keys]
    assert len(placed) == len(set(placed))
    assert {name for each in FUNCTIONS.values() for name in each.model_fields} - {"provider"} <= set(placed)


def test_the_hash_is_that_of_the_text() -> None:
    """`sha256sum settings.toml` begins with what the logs say."""
    assert parse(DOCUMENT)[0].hash == hashlib.sha256(DOCUMENT).hexdigest()[:12]


@given(st.binary(max_size=300))
@example(b"version=1\n" + b"a." * 3_000 + b"a=1")  # deeper than Python recurses; the time grows with the square
@example(b"version=1\n" + b"[[a]]\n" * 10_000)
def test_no_bytes_break_the_reader(content: bytes) -> None:
    try:
        read, found = parse(content)
    except ConfigError:
        return
    assert isinstance(effective(read).faults, list)
    assert all(isinstance(fault, str) for fault in found)


LITERALS = {
    "text": ('""', '"x"', '"\\U00000000"'),
    "boolean": ("true", "false"),
    "number": ("0", "-1", str(10**30), "1.5", "nan", "-inf"),
    "other": ("[1]", "{a = {b = 1}}", "2026-01-01T00:00:00Z"),
}


@pytest.mark.parametrize("sort", LITERALS)
def test_every_key_takes_or_names_a_value_of_any_type(sort: str) -> None:
    keys = tables(*BUILT_IN)
    for literal in LITERALS[sort]:
        text = "".join(
            f"[{table}]\n" * bool(table) + "".join(f"{name} = {literal}\n" for name in keys[table])
            for table in sorted(keys)
        )
        read, found = parse(f"version = 1\n{text}".encode())
        found += effective(read).faults
        for table, names_ in keys.items():
            for name, field in names_.items():
                if sort == "other" or (sort == "text" and kind(field.annotation) is not str):
                    assert any(fault.startswith(f"{path(table, name)} is ") for fault in found), (literal, name)
