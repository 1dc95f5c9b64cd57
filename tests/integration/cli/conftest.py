"""The command line of the test's fleet."""

import pytest

from tests.support.bmdb.fleet import Fleet
from tests.support.command_line import CommandLine


@pytest.fixture
def shepherdctl(fleet: Fleet) -> CommandLine:
    return CommandLine(fleet.settings)
