import pytest
from pydantic_core import PydanticUndefined
from shepherd_core.domain.errors import ConfigError
from shepherd_core.settings.base import Settings
from shepherd_core.settings.functions.bmdb import BmdbSettings
from shepherd_core.settings.functions.loops import InitializerSettings, ProvisionerSettings, RecovererSettings
from shepherd_core.settings.functions.specs import FUNCTIONS
from shepherd_core.settings.providers import BUILT_IN
from shepherd_core.settings.providers.equinix import EquinixSettings
from shepherd_core.settings.sources import load

FIELDS = [(settings, name) for settings in FUNCTIONS.values() for name in settings.model_fields]

RECOVERER = {"BMDB_HOST": "db.example", "PROVIDER": "static"}
INITIALIZER = {**RECOVERER, "AGENT_ENDPOINT": "https://agents.example"}
EQUINIX = {"PROVIDER_PROJECT": "project", "PROVIDER_CREDENTIAL_PARAMETER": "/key"}
EQUINIX |= {"PROVIDER_FLEET": "shepherd-", "PROVIDER_KEY_NAME": "shepherd"}


def given(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    for name, value in values.items():
        monkeypatch.setenv(f"SHEPHERD_{name}", value)


def faults(*settings: type[Settings]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(*settings)
    return list(caught.value.faults)


def test_every_fault_of_every_type_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """With value and requirement. An empty variable is not set: a template can leave a value out in no other way."""
    given(monkeypatch, BMDB_HOST="", BMDB_PORT="", PROVIDER="aws", CONCURRENCY="0", SSH_PORT="70000")
    given(monkeypatch, PROVIDER_FLEET="FIXME-")
    found = faults(InitializerSettings, ProvisionerSettings, EquinixSettings)  # of which two share their first ones
    told = {fault.split()[0].removeprefix("SHEPHERD_"): fault for fault in found}
    wrong = {"AGENT_ENDPOINT", "BMDB_HOST", "CONCURRENCY", "PROVIDER", "PROVIDER_FLEET", "SSH_PORT"}
    wrong |= {"PROVIDER_CREDENTIAL_PARAMETER", "PROVIDER_KEY_NAME", "PROVIDER_PROJECT"}
    assert (set(told), len(found)) == (wrong, len(told))
    host = "Host name of the database, or the folder of its Unix socket."
    assert told["BMDB_HOST"] == f"SHEPHERD_BMDB_HOST is not set. {host}"
    assert told["PROVIDER"].startswith(f"SHEPHERD_PROVIDER is 'aws': must be {', '.join(BUILT_IN)} ")
    assert told["PROVIDER"].endswith("or that of another package.")
    assert told["SSH_PORT"].startswith("SHEPHERD_SSH_PORT is '70000': Input should be less than or equal to 65535")
    assert told["SSH_PORT"].endswith("SSH port of the machines.")


# With which settings, the variable, values that are refused, and values that are taken.
VALUES: list[tuple[type[Settings], dict[str, str], str, tuple[str, ...], tuple[str, ...]]] = [
    *(
        (EquinixSettings, EQUINIX, name, ("FIXME", "shepherd-FIXME-", ""), ("shepherd",))
        for name in ("PROVIDER_FLEET", "PROVIDER_KEY_NAME")
    ),
    # Agents reach it by TLS, or on the machine.
    (
        InitializerSettings,
        INITIALIZER,
        "AGENT_ENDPOINT",
        (
            *("http://agents.example.com", "http://10.0.0.1:8080", "ftp://agents.example.com", "//agents.example.com"),
            *("https://user:password@agents.example.com", "user:password@agents.example.com", "https://"),
            *("https://agents.example.com/?fleet=a", "https://agents.example.com#1"),
        ),
        (
            "agents.example.com:443",
            "https://agents.example.com/fleet",
            "http://127.0.0.1:8080",
            "http://localhost:8080",
        ),
    ),
    # What is no time would make a wait that never ends; comparisons with no number are all false.
    (RecovererSettings, RECOVERER, "HEARTBEAT_TIMEOUT_SECONDS", ("nan", "inf", "-1", "0", "86401", "soon"), ("86400",)),
    *(
        (RecovererSettings, RECOVERER, name, ("nan",), ())
        for name in ("MAX_DEAD_SHARE", "MAX_STEPS_PER_HOUR", "CONCURRENCY")
    ),
    # It becomes part of a command on the machines, without quotes; an empty one is the default.
    (InitializerSettings, INITIALIZER, "AGENT_PATH", ("agent", "/root/my agent", "/root/'agent'"), ("/root/agent", "")),
    # A token is signed for the name of a host.
    (BmdbSettings, {"BMDB_HOST": "/run/postgresql"}, "BMDB_AUTH", ("iam",), ("password",)),
]


@pytest.mark.parametrize(("settings", "others", "name", "refused", "taken"), VALUES)
def test_a_value_that_cannot_serve_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    settings: type[Settings],
    others: dict[str, str],
    name: str,
    refused: tuple[str, ...],
    taken: tuple[str, ...],
) -> None:
    given(monkeypatch, **others)
    for value in refused:
        given(monkeypatch, **{name: value})
        (fault,) = faults(settings)
        assert fault.startswith(f"SHEPHERD_{name} is {value!r}: " if value else f"SHEPHERD_{name} is not set")
    for value in taken:
        given(monkeypatch, **{name: value})
        assert str(getattr(load(settings)[0], name.lower().removeprefix("provider_"))) != ""


@pytest.mark.parametrize(("settings", "name"), FIELDS, ids=lambda part: getattr(part, "__name__", part))
def test_every_setting_is_described_and_its_default_valid(settings: type[Settings], name: str) -> None:
    field = settings.model_fields[name]
    assert field.description
    assert field.description.endswith(".")
    if name.endswith("_seconds"):
        assert "econds" in field.description
    if field.default is not PydanticUndefined and field.default is not None:  # None is: not set
        settings.__pydantic_validator__.validate_assignment(settings.model_construct(), name, field.default)
