import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from shepherd_core.domain.errors import ConfigError
from shepherd_core.domain.provider import Capability
from shepherd_core.settings.functions.specs import FUNCTIONS, LOOPS
from shepherd_core.settings.providers import BUILT_IN, find
from shepherd_core.wiring import loops

from bench import coldstart
from tests.support.deployment import function_process

ROOT = Path(__file__).parents[3]
LAYER = ROOT / "layers" / "shepherd_core"
PROVIDERS = {name: find(name).always for name in BUILT_IN}

# What takes long to import, and what only some functions or only some invocations need, or none.
HEAVY = {"aws_lambda_powertools", "boto3", "botocore", "cryptography", "google", "moto", "nacl"}
HEAVY |= {"paramiko", "requests", "rich", "sushy", "typer"}
# What a function needs of it before it is asked for anything. The Recoverer's provider is the one with an API; the
# agent API is built when the first request is there, and every request takes both.
BUILT = {"initializer": {"google"}, "recoverer": {"requests"}, "agent_api": {"google", "nacl"}}
# What it needs of it to reach a provider, where that is something other than HTTP; boto3 comes with the first call, as
# for a secret.
OF_PROVIDERS: dict[str, set[str]] = {"static": set(), "redfish": {"requests", "sushy"}, "ec2": set()}
# What a loop cannot do without; the others only look.
WANTED = {"provisioner": Capability.CREATE, "recoverer": Capability.REBOOT}


def test_every_loop_has_a_function_and_an_event() -> None:
    assert {path.parent.name for path in ROOT.glob("functions/*/app.py")} == set(FUNCTIONS)
    assert {path.stem for path in ROOT.glob("events/*.json")} == set(FUNCTIONS)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_handler_only_hands_over(function: str) -> None:
    """What is decided in a handler escapes the tests of the package, and the command line that runs loops too."""
    assert len((ROOT / "functions" / function / "app.py").read_text(encoding="utf-8").splitlines()) < 30


SECRETS_ELSEWHERE = {
    "SHEPHERD_PROVIDER_MACHINES": "https://example.com/machines.json",
    "SHEPHERD_AGENT_SOURCE": "s3://bucket/agent",
    "SHEPHERD_BMDB_PASSWORD_PARAMETER": "/shepherd/bmdb",
    "SHEPHERD_BMDB_CA_SOURCE": "ssm:/shepherd/ca",
}
IAM = {"SHEPHERD_BMDB_AUTH": "iam", "SHEPHERD_BMDB_HOST": "db.example"}
SETTINGS: dict[str, dict[str, str]] = {"default": {}, "kept": SECRETS_ELSEWHERE, "iam": IAM}


@cache
def loaded(function: str) -> dict[str, frozenset[str]]:
    """Return the modules after the import, and after *function* is built with these settings: in forks of a process."""
    choices = {**SETTINGS, **{name: {"SHEPHERD_PROVIDER": name} for name in PROVIDERS if function == "updater"}}
    programs = {name: coldstart.built(function, **settings) for name, settings in choices.items()}
    whole = f"""
import json, os, sys
sys.path[:0] = {coldstart.PATHS!r}
import functions.{function}.app
print(json.dumps(["import", list(sys.modules)]), flush=True)
from shepherd_core.wiring import adapters, agent_endpoint, loops
for name, program in {programs!r}.items():
    if os.fork() == 0:
        exec(program)
        print(json.dumps([name, list(sys.modules)]), flush=True)
        os._exit(0)
    assert os.wait()[1] == 0
"""
    return {name: frozenset(modules) for name, modules in printed(whole)}


def printed(program: str, level: str = "INFO") -> list[Any]:
    """Return what *program* prints as JSON, in a new process without site packages, as on Lambda."""
    command = [sys.executable, "-S", "-c", program]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env={"POWERTOOLS_LOG_LEVEL": level})
    return [json.loads(line) for line in done.stdout.splitlines()]


def heavy(modules: frozenset[str]) -> set[str]:
    return HEAVY & {module.partition(".")[0] for module in modules}


@pytest.mark.parametrize("stage", ["import", *SETTINGS])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_loads_no_library_before_it_is_needed(function: str, stage: str) -> None:
    """SSH comes with the first machine that is due, AWS with the first secret: most cold starts find neither."""
    assert heavy(loaded(function)[stage]) == (set() if stage == "import" else BUILT.get(function, set()))


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_function_loads_its_own_providers_code_and_libraries_alone(provider: str) -> None:
    """The static provider needs no library for BMCs: it would cost time at each start, and trust."""
    modules = loaded("updater")[provider]
    prefix = "shepherd_core.providers."
    adapters = {module.removeprefix(prefix) for module in modules if module.startswith(prefix)}
    assert provider in adapters
    assert not [module for module in adapters for other in PROVIDERS.keys() - {provider} if module.startswith(other)]
    assert heavy(modules) == OF_PROVIDERS.get(provider, {"requests"})


def test_the_first_request_of_an_agent_collects_no_garbage() -> None:
    """And none that comes later looks at what the first one made."""
    program = f"""
import gc, json, sys
sys.path[:0] = {coldstart.PATHS!r}
from types import SimpleNamespace
from functions.agent_api.app import lambda_handler

class Event(dict):
    def __contains__(self, key):
        collections.clear()
        self.made.extend([] for _ in range(100_000))
        self.collects = bool(collections)
        return False

collections, event = [], Event()
gc.callbacks.append(lambda phase, info: collections.append(phase))
for event.made in [], []:
    try:
        lambda_handler(event, SimpleNamespace(aws_request_id="1"))
    except Exception as error:
        print(json.dumps([type(error).__name__, event.collects, gc.isenabled(), gc.get_freeze_count() > 100_000]))
"""
    assert printed(program, "CRITICAL") == [["EventInvalid", collects, True, True] for collects in (False, True)]


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Return what sets more than the settings of a function with any provider; its process ends with the test."""
    for name, value in coldstart.SETTINGS.items():
        monkeypatch.setenv(name, value)
    function_process.end()
    yield monkeypatch
    function_process.end()


@pytest.mark.parametrize(("loop", "provider"), [*product(LOOPS, PROVIDERS)])
def test_a_loop_takes_every_provider_that_is_able(loop: str, provider: str, environment: pytest.MonkeyPatch) -> None:
    environment.setenv("SHEPHERD_PROVIDER", provider)
    wanted, can = WANTED.get(loop), PROVIDERS[provider]
    if wanted is None or wanted in can:
        assert loops.build(loop).provider == provider
        return
    with pytest.raises(ConfigError) as caught:
        loops.build(loop)
    told = f"the provider is '{provider}', which cannot {wanted} machines. It can: {', '.join(sorted(can))}."
    assert told in str(caught.value)


def test_the_layer_has_no_library_and_page_of_the_command_line() -> None:
    """A function loads its layer at each cold start; Lambda itself brings boto3."""
    named = (ROOT / "requirements" / "shepherdctl.in").read_text(encoding="utf-8")
    libraries = set(re.findall(r"^[a-z0-9-]+", named, re.MULTILINE))
    layer = (LAYER / "requirements.txt").read_text(encoding="utf-8")
    assert "starlette" in libraries
    assert libraries.isdisjoint(re.findall(r"^([a-z0-9-]+).*==", layer, re.MULTILINE))
    suffixes = {path.suffix for path in (LAYER / "shepherd_core").rglob("*") if path.is_file()} - {".pyc"}
    assert suffixes <= {".py", ".pyi", ".sql", ""}
