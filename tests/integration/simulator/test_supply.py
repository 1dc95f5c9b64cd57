"""What supplies a simulated world with machines: the adapters find in it what the functions are told of it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, get_args
from uuid import uuid4

import pytest
from shepherd_core.adapters import ssh_keys
from shepherd_core.domain.clock import Deadline, SystemClock
from shepherd_core.domain.machine import ProviderId
from shepherd_core.providers.hetzner.adapter import HetznerProvider
from shepherd_core.providers.redfish.adapter import RedfishProvider
from shepherd_core.settings import sources
from shepherd_core.settings.providers import HetznerSettings, RedfishSettings
from shepherd_core.wiring import adapters

from shepherdctl.commands.demo import ProviderName
from simulator.environment.machine_source import MACHINE_SOURCES, SourceSpec
from simulator.machines.pool import MachinePool, MachineState
from tests.support.providers.redfish_rack import Secrets

if TYPE_CHECKING:
    from pathlib import Path

    from shepherd_core.domain.provider import Provider

    from simulator.environment.machine_source import MachineSource

MACHINES = 3


def provider_of(machine_source: MachineSource) -> Provider:
    """Return the adapter, built from what the functions are told and what an operator has stored."""
    secrets = Secrets(dict(machine_source.secrets))
    if machine_source.environment["SHEPHERD_PROVIDER"] == "hetzner":
        (settings,) = sources.load(HetznerSettings)
        key = ssh_keys.public_line(machine_source.secrets["/shepherd/ssh-key"])
        credential = settings.hetzner_credential_parameter
        return HetznerProvider(settings, lambda: secrets.read(credential), lambda: key, SystemClock())
    (rack,) = sources.load(RedfishSettings)
    return RedfishProvider(
        rack,
        lambda: adapters.read(rack.redfish_list),
        SystemClock(),
        read_secret=secrets.read,
        invalidate_secret=secrets.invalidate,
        read_ca=lambda: adapters.read(rack.redfish_ca_source or ""),
    )


@pytest.mark.parametrize("name", ["redfish", "hetzner"])
def test_a_wedged_machine_that_was_there_before_is_brought_back(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The demo tells nothing true if what it is told to reboot is not what hangs."""
    told: list[tuple[str, str]] = []
    with (
        MachinePool(
            tmp_path, 0, boot_seconds=0, on_power_change=lambda machine, what: told.append((machine, what))
        ) as pool,
        MACHINE_SOURCES[name](
            SourceSpec(pool=pool, machines=MACHINES, minute=0.1, address="127.0.0.1", faults=(), seed=0)
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
        victim = ProviderId(pool.names()[1])
        taken = provider.create_machine(found[victim], uuid4(), deadline)
        assert (taken.provider_id, pool.reboots(victim), told) == (victim, 0, [])
        wait_until_up(victim)
        pool.hang(victim)
        provider.reboot(taken.provider_id, deadline)
        while not pool.reboots(victim):
            deadline.check()
            time.sleep(0.005)
        wait_until_up(victim)
        assert {machine for machine, _ in told} == {victim}
        assert machine_source.calls > 0
        assert machine_source.errors == []


def test_the_command_line_offers_every_supply() -> None:
    """Making a world takes seconds to import, so the command line says by itself what there is."""
    assert get_args(ProviderName) == tuple(MACHINE_SOURCES)
