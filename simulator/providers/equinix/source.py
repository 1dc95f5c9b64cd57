"""The machine source that simulates Equinix Metal."""

from collections.abc import Collection

from shepherd_core.providers.equinix.objects import TOKEN_TAG

from simulator.environment.machine_source import MachineSource, SourceSpec, ssh_key
from simulator.providers.equinix.api import EquinixApi
from simulator.providers.kit.machines import Options


class Source(MachineSource):
    """A project at Equinix Metal with reservations."""

    kind = "reservations at a simulated provider"
    creation_note = "(not contacted for five minutes, the usual boot time)"

    def __init__(self, spec: SourceSpec) -> None:
        project, parameter = "6c3c3c2f-0d0e-4f43-9b3e-5c0f5c1b7a10", "/shepherd/equinix-credential"
        self._server: EquinixApi = EquinixApi(
            spec.pool,
            project_id=project,
            api_key=spec.secret,
            reservations=spec.machines,
            options=Options(provision_seconds=3 * spec.minute, action_seconds=spec.minute / 4, seed=spec.seed),
            faults=spec.faults,
            address=spec.address,
        )
        self.environment = {
            "SHEPHERD_PROVIDER": "equinix",
            "SHEPHERD_PROVIDER_PROJECT": project,
            "SHEPHERD_PROVIDER_CREDENTIAL_PARAMETER": parameter,
            "SHEPHERD_PROVIDER_API_URL": self._server.url,
            "SHEPHERD_PROVIDER_FLEET": "fleet-",
            "SHEPHERD_PROVIDER_KEY_NAME": "shepherd",
        }
        self.secrets = {parameter: spec.secret, **ssh_key()[0]}

    def names(self) -> Collection[str]:
        """See ``MachineSource``."""
        return {device.id for device in self._server.devices()}

    def in_use(self) -> dict[str, str | None]:
        """See ``MachineSource``."""
        return {
            device.id: next((tag.removeprefix(TOKEN_TAG) for tag in device.tags if tag.startswith(TOKEN_TAG)), None)
            for device in self._server.devices()
        }
