"""What the tests of deployed functions share."""

from collections.abc import Iterator

import pytest

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
