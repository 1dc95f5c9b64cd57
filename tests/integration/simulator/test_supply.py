from pathlib import Path
from uuid import uuid4

import pytest
from shepherd_core.adapters import ssh_keys
from shepherd_core.domain.clock import Deadline, Permission, SystemClock
from shepherd_core.domain.machine import ProviderId
from shepherd_core.providers.kit.context import ProviderContext
from shepherd_core.settings import sources
from shepherd_core.settings.providers import find
from shepherd_core.wiring import adapters
from shepherd_core.wiring.providers import build

from simulator.environment.machine_source import SourceSpec
from simulator.machines.pool import MachinePool
from simulator.machines.server import MachineState
from simulator.providers import machine_source as source_of
from tests.support.providers.redfish_rack import Secrets
from tests.support.waiting import eventually


def test_a_rented_machine_that_hangs_is_brought_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo proves nothing if the machine that is rebooted is not the one that hangs; it tries racked ones."""
    told: list[tuple[str, str]] = []
    with (
        MachinePool(tmp_path, 0, boot_seconds=0, on_power_change=lambda *change: told.append(change)) as pool,
        source_of("hetzner")(
            SourceSpec(pool=pool, folder=tmp_path, machines=3, minute=0.1, address="127.0.0.1", faults=(), seed=0)
        ) as machine_source,
    ):
        for variable, value in machine_source.environment.items():
            monkeypatch.setenv(variable, value)
        secrets = Secrets(dict(machine_source.secrets))
        context = ProviderContext(
            clock=SystemClock(),
            read=adapters.read,
            read_secret=secrets.read,
            invalidate_secret=secrets.invalidate,
            public_key=lambda: ssh_keys.public_line(machine_source.secrets["/shepherd/ssh-key"]),
        )
        spec, deadline = find("hetzner"), Deadline(SystemClock(), 30)
        provider = build(spec, sources.load(spec.settings)[0], context)
        found = {machine.provider_id: machine for machine in provider.list_machines(deadline)}
        assert set(found) == set(machine_source.names()) == set(pool.names())
        assert {str(machine.address) for machine in found.values()} == {pool.address(each) for each in pool.names()}
        chosen = ProviderId(pool.names()[1])
        taken = provider.create_machine(found[chosen], uuid4(), deadline)
        assert (taken.provider_id, pool.reboots(chosen), told) == (chosen, 0, [])
        eventually(lambda: pool.state(chosen) is MachineState.UP)
        pool.hang(chosen)
        provider.reboot(taken.provider_id, Permission(deadline))
        eventually(lambda: pool.reboots(chosen) and pool.state(chosen) is MachineState.UP)
        assert {machine for machine, _ in told} == {chosen}
        assert (machine_source.calls > 0, machine_source.errors) == (True, [])
