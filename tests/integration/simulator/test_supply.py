"""Machine sources of the simulator: the adapters find in them what the functions are told of them."""

import time
from pathlib import Path
from uuid import uuid4

import pytest
from shepherd_core.adapters import ssh_keys
from shepherd_core.domain.clock import Deadline, Permission, SystemClock
from shepherd_core.domain.machine import ProviderId
from shepherd_core.domain.provider import Provider
from shepherd_core.providers.kit.context import ProviderContext
from shepherd_core.settings import sources
from shepherd_core.settings.providers import find
from shepherd_core.wiring import adapters
from shepherd_core.wiring.providers import build

from simulator.environment.machine_source import MachineSource, SourceSpec
from simulator.machines.pool import MachinePool
from simulator.machines.server import MachineState
from simulator.providers import SimulatedProvider
from simulator.providers import machine_source as source_of
from tests.support.providers.redfish_rack import Secrets

MACHINES = 3


def provider_of(machine_source: MachineSource) -> Provider:
    """Return the adapter, built from what the functions are told and what an operator has stored."""
    secrets = Secrets(dict(machine_source.secrets))
    spec = find(machine_source.environment["SHEPHERD_PROVIDER"])
    context = ProviderContext(
        clock=SystemClock(),
        read=adapters.read,
        read_secret=secrets.read,
        invalidate_secret=secrets.invalidate,
        public_key=lambda: ssh_keys.public_line(machine_source.secrets["/shepherd/ssh-key"]),
    )
    return build(spec, sources.load(spec.settings)[0], context)


@pytest.mark.parametrize("name", ["redfish", "hetzner"])
def test_a_machine_that_hangs_that_was_there_before_is_brought_back(
    name: SimulatedProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The demo proves nothing if the machine that is rebooted is not the one that hangs."""
    told: list[tuple[str, str]] = []
    with (
        MachinePool(
            tmp_path, 0, boot_seconds=0, on_power_change=lambda machine, what: told.append((machine, what))
        ) as pool,
        source_of(name)(
            SourceSpec(
                pool=pool, folder=tmp_path, machines=MACHINES, minute=0.1, address="127.0.0.1", faults=(), seed=0
            )
        ) as machine_source,
    ):
        for variable, value in machine_source.environment.items():
            monkeypatch.setenv(variable, value)
        provider, deadline = provider_of(machine_source), Deadline(SystemClock(), 30)

        def wait_until_up(machine: str) -> None:
            while pool.state(machine) is not MachineState.UP:
                deadline.check()
                time.sleep(0.005)

        found = {machine.provider_id: machine for machine in provider.list_machines(deadline)}
        assert set(found) == set(machine_source.names()) == set(pool.names())
        assert {str(machine.address) for machine in found.values()} == {pool.address(each) for each in pool.names()}
        chosen = ProviderId(pool.names()[1])
        taken = provider.create_machine(found[chosen], uuid4(), deadline)
        assert (taken.provider_id, pool.reboots(chosen), told) == (chosen, 0, [])
        wait_until_up(chosen)
        pool.hang(chosen)
        provider.reboot(taken.provider_id, Permission(deadline))
        while not pool.reboots(chosen):
            deadline.check()
            time.sleep(0.005)
        wait_until_up(chosen)
        assert {machine for machine, _ in told} == {chosen}
        assert machine_source.calls > 0
        assert machine_source.errors == []
