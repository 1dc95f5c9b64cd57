"""The settings: read from the environment, every fault told at once."""

import inspect

import pytest
from pydantic_core import PydanticUndefined
from shepherd_core.domain.errors import ConfigError
from shepherd_core.settings.base import Settings
from shepherd_core.settings.functions import bmdb, health, loops, services, shared
from shepherd_core.settings.functions.bmdb import BmdbSettings
from shepherd_core.settings.functions.loops import InitializerSettings, ProvisionerSettings, RecovererSettings
from shepherd_core.settings.providers import BUILT_IN
from shepherd_core.settings.providers.equinix import EquinixSettings
from shepherd_core.settings.sources import load

ALL = [
    settings
    for module in (bmdb, health, loops, services, shared)
    for _, settings in inspect.getmembers(module, inspect.isclass)
    if issubclass(settings, Settings) and settings is not Settings and settings.__module__ == module.__name__
]
FIELDS = [(settings, name) for settings in ALL for name in settings.model_fields]

INITIALIZER = {
    "BMDB_HOST": "db.example",
    "PROVIDER": "static",
    "AGENT_ENDPOINT": "https://agents.example",
}
EQUINIX = {
    "PROVIDER_PROJECT": "project",
    "PROVIDER_CREDENTIAL_PARAMETER": "/key",
    "PROVIDER_FLEET": "shepherd-",
    "PROVIDER_KEY_NAME": "shepherd",
}


def given(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    for name, value in values.items():
        monkeypatch.setenv(f"SHEPHERD_{name}", value)


def faults(*settings: type[Settings]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(*settings)
    return list(caught.value.faults)


def test_all_faults_of_all_types_are_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, PROVIDER="aws", CONCURRENCY="0", SSH_PORT="no", PROVIDER_FLEET="FIXME-")
    found = faults(InitializerSettings, ProvisionerSettings, EquinixSettings)  # of which two share their first ones
    assert sorted(fault.split()[0] for fault in found) == [
        "SHEPHERD_AGENT_ENDPOINT",
        "SHEPHERD_BMDB_HOST",
        "SHEPHERD_CONCURRENCY",
        "SHEPHERD_PROVIDER",
        "SHEPHERD_PROVIDER_CREDENTIAL_PARAMETER",
        "SHEPHERD_PROVIDER_FLEET",
        "SHEPHERD_PROVIDER_KEY_NAME",
        "SHEPHERD_PROVIDER_PROJECT",
        "SHEPHERD_SSH_PORT",
    ]


def test_a_fault_names_the_value_and_the_requirement(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, **INITIALIZER | {"PROVIDER": "aws"}, SSH_PORT="70000")
    port, provider = faults(InitializerSettings)
    assert provider.startswith(f"SHEPHERD_PROVIDER is 'aws': must be {', '.join(BUILT_IN)} ")
    assert provider.endswith("or that of another package.")
    assert port.startswith("SHEPHERD_SSH_PORT is '70000': Input should be less than or equal to 65535")
    assert port.endswith("SSH port of the machines.")


def test_an_empty_variable_is_one_that_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """A template can leave a value out in no other way."""
    given(monkeypatch, BMDB_HOST="", BMDB_PORT="")
    assert faults(BmdbSettings) == [
        "SHEPHERD_BMDB_HOST is not set. Host name of the database, or the folder of its Unix socket."
    ]
    given(monkeypatch, BMDB_HOST="db.example")
    assert load(BmdbSettings)[0].bmdb_port == 5432


@pytest.mark.parametrize("name", ["PROVIDER_FLEET", "PROVIDER_KEY_NAME"])
@pytest.mark.parametrize("value", ["FIXME", "shepherd-FIXME-", ""])
def test_a_required_setting_is_refused_if_empty(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    given(monkeypatch, **EQUINIX | {name: value})
    (fault,) = faults(EquinixSettings)
    assert fault.startswith(f"SHEPHERD_{name} is ")
    given(monkeypatch, **EQUINIX)
    load(EquinixSettings)


@pytest.mark.parametrize(
    ("endpoint", "accepted"),
    [
        ("agents.example.com:443", True),
        ("https://agents.example.com/fleet", True),
        ("http://127.0.0.1:8080", True),
        ("http://localhost:8080", True),
        ("http://agents.example.com", False),
        ("http://10.0.0.1:8080", False),
        ("ftp://agents.example.com", False),
        ("//agents.example.com", False),
        ("https://user:password@agents.example.com", False),
        ("user:password@agents.example.com", False),
        ("https://agents.example.com/?fleet=a", False),
        ("https://agents.example.com#1", False),
        ("https://", False),
    ],
)
def test_an_endpoint_is_reached_by_tls_or_on_the_machine(
    monkeypatch: pytest.MonkeyPatch, endpoint: str, accepted: bool
) -> None:
    given(monkeypatch, **INITIALIZER | {"AGENT_ENDPOINT": endpoint})
    found = [] if accepted else faults(InitializerSettings)
    assert [fault.partition(": ")[0] for fault in found] == [
        f"SHEPHERD_AGENT_ENDPOINT is '{endpoint}'" for _ in range(not accepted)
    ]
    if accepted:
        load(InitializerSettings)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("HEARTBEAT_TIMEOUT_SECONDS", value) for value in ("nan", "inf", "-1", "0", "86401", "soon")),
        *((name, "nan") for name in ("MAX_DEAD_SHARE", "MAX_STEPS_PER_HOUR", "CONCURRENCY")),
    ],
)
def test_a_number_out_of_its_range_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    """What is no time would make a wait that never ends; comparisons with no number are all false."""
    given(monkeypatch, BMDB_HOST="db.example", PROVIDER="static", **{name: value})
    (fault,) = faults(RecovererSettings)
    assert fault.startswith(f"SHEPHERD_{name} is '{value}': ")


@pytest.mark.parametrize("path", ["agent", "/root/my agent", "/root/'agent'", ""])
def test_the_agents_path_needs_no_quoting(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """It becomes part of a command on the machines; an empty one is the default."""
    given(monkeypatch, **INITIALIZER, AGENT_PATH=path)
    if path:
        (fault,) = faults(InitializerSettings)
        assert fault.startswith("SHEPHERD_AGENT_PATH is ")
    else:
        assert load(InitializerSettings)[0].agent_path == "/root/agent"


@pytest.mark.parametrize(("settings", "name"), FIELDS, ids=lambda part: getattr(part, "__name__", part))
def test_every_setting_is_described_and_its_default_valid(settings: type[Settings], name: str) -> None:
    field = settings.model_fields[name]
    assert field.description
    assert field.description.endswith(".")
    if name.endswith("_seconds"):
        assert "econds" in field.description
    if field.default is not PydanticUndefined and field.default is not None:  # None is: not set
        settings.__pydantic_validator__.validate_assignment(settings.model_construct(), name, field.default)
