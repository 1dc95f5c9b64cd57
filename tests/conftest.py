"""What every test stands on: an environment without our variables, and a clock that a test moves."""

import gc
import json
import os
import time
from collections.abc import Iterator
from functools import cache
from threading import RLock
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from shepherd_core.domain.clock import Deadline, SystemClock

_OURS = ("SHEPHERD_", "AWS_", "POWERTOOLS_")
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_FAKE_AWS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_SESSION_TOKEN": "testing",
    "AWS_DEFAULT_REGION": "eu-central-1",
    "AWS_REGION": "eu-central-1",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
    # Moto would give every account of a test a thousand images, which takes longer than the test.
    "MOTO_EC2_LOAD_DEFAULT_AMIS": "false",
}

# At import, before any test module is imported: nobody's real account, database or machines may be reached.
for _name in list(os.environ):
    if _name.upper().startswith(_OURS) or _name.upper() in _PROXIES:
        del os.environ[_name]
os.environ.update(_FAKE_AWS)
os.environ["TZ"] = "UTC"  # of the times that commands print
time.tzset()

# The contract suite is a plain module: without this its assertions would not say what they compared.
pytest.register_assert_rewrite("tests.integration.providers.contract.provider_contract")

# A check that fails now and then is none: where others wait for it, the examples are always the same.
# How fast a computer draws examples is no defect.
_TOO_SLOW = [HealthCheck.too_slow]
settings.register_profile("default", deadline=None, print_blob=True, max_examples=50, suppress_health_check=_TOO_SLOW)
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
# For a long search: --hypothesis-profile=long --hypothesis-seed=N.
settings.register_profile("long", settings.get_profile("default"), max_examples=500)
settings.load_profile("ci" if "CI" in os.environ else "default")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a provider of another package be tested here: ``pytest --provider PACKAGE``."""
    parser.addoption("--provider", metavar="PACKAGE", help="run the tests in this package, which is installed, alone")


def pytest_configure(config: pytest.Config) -> None:
    """Run the tests of that package."""
    if package := config.getoption("--provider"):
        config.args[:] = [package]
        config.option.pyargs = True


def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    """Leave out the contract's tests of what a provider lacks."""

    def needs(item: pytest.Function) -> set[str]:
        action = item.callspec.params.get("action") if hasattr(item, "callspec") else None
        return {action, *(name for mark in item.iter_markers("needs") for name in mark.args)}

    items[:] = [item for item in items if not getattr(item.cls, "lacks", frozenset()) & needs(item)]


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over what was imported: it would examine all of it again during every test."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000)


class ManualClock:
    """A Clock whose elapsed time only moves when it is told to, or when somebody sleeps on it."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.slept: list[float] = []
        self.behind = 0.0
        """By how many seconds the time of day is behind that of the database."""

    def monotonic(self) -> float:
        return self.now

    def time_of_day(self) -> int:
        return SystemClock().time_of_day() - round(self.behind * 1000)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += max(0.0, seconds)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def deadline() -> Deadline:
    return Deadline(SystemClock(), 60)


@cache
def read_models_once() -> None:
    """Let all clients of boto3 in this process share what is made of AWS's models, and moto its lists of methods."""
    from botocore.client import ClientCreator  # noqa: PLC0415 - as moto, below
    from botocore.loaders import Loader  # noqa: PLC0415 - the same
    from moto.core import responses  # noqa: PLC0415 - the same

    loaded: dict[Any, Any] = {}
    models: dict[str, Any] = {}
    methods: dict[Any, dict[str, Any]] = {}
    load, create = ClientCreator._load_service_model, ClientCreator._create_methods

    def model(self: Any, service_name: str, api_version: str | None = None) -> Any:
        if service_name not in models:
            models[service_name] = load(self, service_name, api_version)
        return models[service_name]

    def methods_of(self: Any, service_model: Any) -> dict[str, Any]:
        if service_model not in methods:
            methods[service_model] = create(self, service_model)
        return dict(methods[service_model])  # what a session adds is its own

    Loader._cache = property(lambda _: loaded, lambda *_: None)
    ClientCreator._load_service_model, ClientCreator._create_methods = model, methods_of
    responses.method_names_from_class = cache(responses.method_names_from_class)  # type: ignore[attr-defined]


@pytest.fixture
def aws() -> Iterator[None]:
    from moto import mock_aws  # noqa: PLC0415 - it takes a second to import, and most tests do without AWS
    from moto.core.botocore_stubber import BotocoreStubber  # noqa: PLC0415

    read_models_once()
    answer, one_at_a_time = BotocoreStubber.process_request, RLock()

    def process_request(self: BotocoreStubber, request: Any) -> Any:
        with one_at_a_time:  # AWS answers one call as a whole; moto lets a thread see half of what another one puts
            return answer(self, request)

    with mock_aws(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(BotocoreStubber, "process_request", process_request)
        yield


def log_lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """Return what was logged since the last call."""
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]
