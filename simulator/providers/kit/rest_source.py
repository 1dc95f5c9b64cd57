"""The machine source that simulates a provider with a ``RestApi``."""

from abc import abstractmethod
from collections.abc import Collection, Mapping
from typing import ClassVar

from simulator.environment.machine_source import MachineSource, SourceSpec, ssh_key
from simulator.providers.kit.machines import FakeMachine, Options
from simulator.providers.kit.rest import RestApi


class RestSource(MachineSource):
    """An account at a provider with one credential."""

    kind = "servers at a simulated provider"
    provider: ClassVar[str]
    """Its name."""
    api: ClassVar[type[RestApi]]
    credential: ClassVar[str] = "{}"
    """The form of the credential, with the secret in braces: ``client:{}``."""
    _server: RestApi

    def __init__(self, spec: SourceSpec) -> None:
        secret = self.credential.format(spec.secret)
        options = Options(provision_seconds=3 * spec.minute, action_seconds=spec.minute / 4, seed=spec.seed)
        self._server = self.api(spec.pool, secret=secret, options=options, faults=spec.faults, address=spec.address)
        parameter = f"/shepherd/{self.provider}-credential"
        given = {"API_URL": self._server.url, **self.settings(spec)}
        self.environment = {
            "SHEPHERD_PROVIDER": self.provider,
            "SHEPHERD_PROVIDER_CREDENTIAL_PARAMETER": parameter,
            **{f"SHEPHERD_PROVIDER_{name}": value for name, value in given.items()},
        }
        self.secrets = {parameter: secret, **ssh_key()[0]}

    def names(self) -> Collection[str]:
        """See ``MachineSource``."""
        return {machine.id for machine in self._server.snapshot()}

    def in_use(self) -> dict[str, str | None]:
        """See ``MachineSource``."""
        return {machine.id: self.token(machine) for machine in self._server.snapshot()}

    @abstractmethod
    def settings(self, spec: SourceSpec) -> Mapping[str, str]:
        """Return the provider's own settings without ``SHEPHERD_PROVIDER_``: the limit, for example."""

    @abstractmethod
    def token(self, machine: FakeMachine) -> str | None:
        """Return the token that a machine was created with."""
