"""The command line of the test's fleet, and of machines of EC2."""

from collections.abc import Iterator

import pytest
from shepherd_core.domain.clock import SystemClock

from tests.integration.cli.ec2_fleet import Ec2Fleet
from tests.support.bmdb.fleet import Fleet
from tests.support.command_line import CommandLine
from tests.support.providers.ec2_api import ec2_api


@pytest.fixture
def shepherdctl(fleet: Fleet) -> CommandLine:
    return CommandLine(fleet.settings)


@pytest.fixture
def ec2(fleet: Fleet, shepherdctl: CommandLine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ec2Fleet]:
    """Return machines that ``shepherdctl`` finds, in a process of its own too; nobody waits until one is off."""
    monkeypatch.setattr(SystemClock, "sleep", lambda *_: None)
    with ec2_api() as api:
        monkeypatch.setenv("AWS_ENDPOINT_URL_EC2", api.server.url)
        ec2 = Ec2Fleet(fleet, api)
        shepherdctl.environment |= ec2.environment
        yield ec2
