"""A session whose connection breaks on demand."""

import pytest
from shepherd_core.bmdb.session import Session

from tests.support.bmdb.breaking_connection import BreakingConnection
from tests.support.bmdb.fleet import Fleet


@pytest.fixture
def session(fleet: Fleet, breaking: BreakingConnection) -> Session:
    return fleet.open_session(connection=fleet.connect(breaking.settings))
