"""The machine source that simulates your own racks behind OpenStack Ironic."""

from collections.abc import Collection
from contextlib import ExitStack
from typing import Self

from simulator.environment.machine_source import MachineSource, SourceSpec, ssh_key
from simulator.providers.ironic.fake import FakeIronic
from simulator.providers.ironic.service import IronicService, RealIronic, installed
from simulator.providers.kit.machines import Options
from simulator.temporary_folder import temporary_folder

_PARAMETER = "/shepherd/ironic-credential"
_CLASS = "simulated"


class Source(MachineSource):
    """Nodes of Ironic: of the real service where it is installed, else of the fake."""

    kind = f"nodes of OpenStack Ironic ({'a fake' if installed() is None else 'the real service'})"
    creation_note = "(Ironic deploys an image, which takes some minutes)"
    power_note = "(by Ironic, at the Recoverer's request)"

    def __init__(self, spec: SourceSpec) -> None:
        self._spec = spec
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        spec, credential = self._spec, f"shepherd:{self._spec.secret}"
        options = Options(provision_seconds=3 * spec.minute, action_seconds=spec.minute / 4, per_page_cap=1000)
        try:
            if (environment := installed()) is None:
                self._server = FakeIronic(
                    spec.pool, secret=credential, options=options, faults=spec.faults, address=spec.address
                )
            else:
                folder = self._stack.enter_context(temporary_folder("ironic-"))
                service = IronicService(environment, folder, credential, seconds=max(1, round(spec.minute)))
                self._stack.enter_context(service)
                self._server = RealIronic(
                    spec.pool, service, secret=credential, options=options, faults=spec.faults, address=spec.address
                )
            super().__enter__()
            self._server.enroll(_CLASS, [spec.pool.reserve() for _ in range(spec.machines)])
        except BaseException:
            self._stack.close()
            raise
        self.environment = {
            "SHEPHERD_PROVIDER": "ironic",
            "SHEPHERD_PROVIDER_API_URL": self._server.url,
            "SHEPHERD_PROVIDER_CREDENTIAL_PARAMETER": _PARAMETER,
            "SHEPHERD_PROVIDER_FLEET": "simulated",
            "SHEPHERD_PROVIDER_MACHINE_TYPE": _CLASS,
            "SHEPHERD_PROVIDER_IMAGE": "https://images.invalid/image.qcow2",
            "SHEPHERD_PROVIDER_IMAGE_CHECKSUM": "0" * 64,
        }
        self.secrets = {_PARAMETER: credential, **ssh_key()[0]}
        return self

    def close(self) -> None:
        """See ``MachineSource``."""
        super().close()
        self._stack.close()

    def names(self) -> Collection[str]:
        """See ``MachineSource``."""
        return set(self.in_use())

    def in_use(self) -> dict[str, str | None]:
        """See ``MachineSource``."""
        found: dict[str, str | None] = self._server.instances()
        return found
