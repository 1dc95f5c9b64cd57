"""The machine source that simulates Equinix Metal."""

from typing import Any, ClassVar

from shepherd_core.providers.equinix.objects import TOKEN_TAG

from simulator.environment.machine_source import SourceSpec
from simulator.providers.equinix.api import EquinixApi
from simulator.providers.kit.machines import FakeMachine
from simulator.providers.kit.rest_source import RestSource

_PROJECT = "6c3c3c2f-0d0e-4f43-9b3e-5c0f5c1b7a10"


class Source(RestSource):
    """A project at Equinix Metal with reservations."""

    kind = "reservations at a simulated provider"
    creation_note = "(not contacted for five minutes, the usual boot time)"
    provider = "equinix"
    api = EquinixApi
    settings: ClassVar[dict[str, str]] = {"PROJECT": _PROJECT, "FLEET": "fleet-"}

    def account(self, spec: SourceSpec, public_key: str) -> dict[str, Any]:  # noqa: ARG002 - it comes with a device
        """See ``RestSource``."""
        return {"project_id": _PROJECT, "reservations": spec.machines}

    def token(self, machine: FakeMachine) -> str | None:
        """See ``RestSource``."""
        found = (each.removeprefix(TOKEN_TAG) for each in machine.fields["tags"] if each.startswith(TOKEN_TAG))
        return next(found, None)
