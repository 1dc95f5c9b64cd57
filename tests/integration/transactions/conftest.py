"""Connections that break on demand."""

from collections.abc import Iterator

import pytest
from shepherd_core.bmdb.session import Session

from tests.support.bmdb.breaking_connection import BreakingConnection
from tests.support.bmdb.fleet import Fleet


@pytest.fixture
def breaking(fleet: Fleet) -> Iterator[BreakingConnection]:
    with BreakingConnection(fleet.settings) as proxy:
        yield proxy
        unused = proxy.armed
        fleet.disconnect()
    assert not unused, "the connection was never broken, so nothing was tested"


@pytest.fixture
def session(fleet: Fleet, breaking: BreakingConnection) -> Session:
    return fleet.open_session(connection=fleet.connect(breaking.settings))
