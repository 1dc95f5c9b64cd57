import faulthandler
from collections.abc import Iterator
from contextlib import closing

import pytest
from shepherd_core.adapters import ssh_keys
from shepherd_core.adapters.ssh.connection import SshConnection
from shepherd_core.adapters.ssh.dialer import SshDialer
from shepherd_core.domain.clock import Deadline

from tests.support.agents.ssh_server import KEY, SshServer


@pytest.fixture(autouse=True)
def _no_hanging() -> Iterator[None]:
    faulthandler.dump_traceback_later(60, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def server() -> Iterator[SshServer]:
    with SshServer(ssh_keys.public_line(KEY)) as server:
        yield server


@pytest.fixture
def connection(server: SshServer, deadline: Deadline) -> Iterator[SshConnection]:
    dialer = SshDialer(KEY, "root", server.port, connect_timeout=2)
    with closing(dialer.dial("127.0.0.1", None, deadline)) as connection:
        yield connection
