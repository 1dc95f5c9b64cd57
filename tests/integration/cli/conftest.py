"""The command line of the test's fleet, and of machines of EC2."""

from collections.abc import Iterator
from uuid import UUID

import pytest
from shepherd_core.adapters import ssh_keys
from shepherd_core.domain.clock import Deadline, SystemClock
from shepherd_core.providers.ec2.adapter import Ec2Provider
from shepherd_core.settings.base import variable
from shepherd_core.settings.providers.ec2 import Ec2Settings

from tests.support.bmdb.capacity import provided, provisioner
from tests.support.bmdb.fleet import HOUR, Fleet
from tests.support.command_line import CommandLine
from tests.support.providers.ec2_api import FLEET, IMAGE, Ec2Api, ec2_api, subnets

_OUR_LINE = ssh_keys.public_line(ssh_keys.generate())


class Ec2Fleet:
    """Three machines that were created an hour ago, of six that the settings allow."""

    def __init__(self, fleet: Fleet, api: Ec2Api) -> None:
        self._api = api
        given = {"fleet": FLEET, "limit": 6, "subnets": ",".join(subnets()), "image": IMAGE, "machine_type": "m5.metal"}
        self._provider = Ec2Provider(Ec2Settings.model_validate(given), lambda: _OUR_LINE, SystemClock())
        self.environment = {"SHEPHERD_PROVIDER": "ec2"}
        self.environment |= {variable(Ec2Settings, name): str(value) for name, value in given.items()}
        creator = provisioner(self._provider, fleet.connection, SystemClock(), max_machines=3, drift_limit=0)
        creator.run(Deadline(SystemClock(), 600), "a test")
        fleet.pass_time(HOUR)
        self.machines: dict[str, UUID] = provided(fleet)
        """By provider id."""

    def create(self, token: UUID) -> str:
        """Create a machine past the BMDB, and return its provider id."""
        deadline = Deadline(SystemClock(), 60)
        capacity = next(each for each in self._provider.list_machines(deadline) if each.availability == "KnownUnused")
        return self._provider.create_machine(capacity, token, deadline).provider_id

    def end(self, name: str) -> None:
        self._api.set_state(name, "terminated", "Client.UserInitiatedShutdown")

    @property
    def living(self) -> set[str]:
        gone = ("terminated", "shutting-down")
        return {found.id for found in self._api.instances() if found._state.name not in gone}


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
