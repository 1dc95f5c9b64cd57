"""A machine at the far end of SSH."""

from __future__ import annotations

import faulthandler
from typing import TYPE_CHECKING

import pytest
from shepherd_core.adapters import ssh_keys

from tests.support.agents.ssh_server import KEY, SshServer

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _no_hanging() -> Iterator[None]:
    """End the tests when something waits without a limit."""
    faulthandler.dump_traceback_later(60, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def server() -> Iterator[SshServer]:
    """Return a machine that knows our key."""
    with SshServer(ssh_keys.public_line(KEY)) as server:
        yield server
