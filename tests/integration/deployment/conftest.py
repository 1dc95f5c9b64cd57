from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bmdb.fleet import Fleet
from tests.support.deployment import function_process
from tests.support.providers.scripted_http import Answer, Script, scripted_server


@pytest.fixture(autouse=True)
def _a_process_of_its_own() -> Iterator[None]:
    """Forget what a process keeps between invocations, and close it, as the end of the process would."""
    function_process.end()
    yield
    function_process.end()


@pytest.fixture
def cloudformation() -> Iterator[Script]:
    with scripted_server(lambda _: Answer()) as server:
        yield server


@pytest.fixture
def environment(fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the settings that all functions get, which are in the environment: a database, and a list of nothing."""
    (tmp_path / "list.json").write_text("[]")
    settings = {
        **fleet.variables,
        "SHEPHERD_PROVIDER": "static",
        "SHEPHERD_PROVIDER_MACHINES": str(tmp_path / "list.json"),
        "SHEPHERD_CREATION_SECONDS": "0",
        "SHEPHERD_AGENT_ENDPOINT": "http://127.0.0.1:9",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    return settings
