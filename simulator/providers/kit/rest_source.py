"""The machine source that simulates a provider with a ``RestApi``."""

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from shepherd_core.providers.kit.hosting import read_mark

from simulator.environment.machine_source import MachineSource, SourceSpec, ssh_key
from simulator.providers.kit.machines import FakeMachine, Options
from simulator.providers.kit.rest import RestApi

FLEET = "simulated"


class RestSource(MachineSource):
    """An account at a provider with one credential."""

    kind = "servers at a simulated provider"
    provider: ClassVar[str]
    """Its name."""
    api: ClassVar[type[RestApi]]
    credential: ClassVar[str] = "{}"
    """The form of the credential, with the secret in braces: ``client:{}``."""
    settings: ClassVar[Mapping[str, str]] = {}
    """The provider's own settings without ``SHEPHERD_PROVIDER_``; ``{}`` stands for the URL of the API."""
    _server: RestApi

    def __init__(self, spec: SourceSpec) -> None:
        secret = self.credential.format(spec.secret)
        options = Options(provision_seconds=3 * spec.minute, action_seconds=spec.minute / 4, seed=spec.seed)
        self.secrets = {(parameter := f"/shepherd/{self.provider}-credential"): secret, **(key := ssh_key())[0]}
        self._server = self.api(
            spec.pool,
            secret=secret,
            options=options,
            faults=spec.faults,
            address=spec.address,
            **self.account(spec, key[1]),
        )
        common = {"API_URL": "{}", "FLEET": FLEET, "KEY_NAME": "shepherd", "LIMIT": str(spec.machines)}
        chosen = {**common, "CREDENTIAL_PARAMETER": parameter, **self.settings}
        self.environment = {
            "SHEPHERD_PROVIDER": self.provider,
            **{f"SHEPHERD_PROVIDER_{name}": value.format(self._server.url) for name, value in chosen.items()},
        }

    def names(self) -> Collection[str]:
        """See ``MachineSource``."""
        return {machine.id for machine in self._server.snapshot()}

    def in_use(self) -> dict[str, str | None]:
        """See ``MachineSource``."""
        return {machine.id: self.token(machine) for machine in self._server.snapshot()}

    def account(self, spec: SourceSpec, public_key: str) -> dict[str, Any]:  # noqa: ARG002 - for others
        """Return what else the API is made with; *public_key* is the line of the key that the functions have."""
        return {}

    def token(self, machine: FakeMachine) -> str | None:
        """Return the token that a machine was created with."""
        found = read_mark(FLEET, machine.name)
        return None if found is None else str(found[1])
