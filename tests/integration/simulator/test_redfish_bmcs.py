"""The simulated rack: what the emulator says of the power is what happens to the machine."""

from pathlib import Path

import pytest
from shepherd_core.domain.clock import Deadline
from shepherd_core.domain.machine import ProviderId

from simulator.machines.pool import MachinePool
from simulator.machines.server import MachineState
from simulator.providers.kit.hardware import NoHardware
from simulator.providers.redfish.bmcs import RedfishRack
from tests.conftest import ManualClock
from tests.support.agents.machine_client import Client
from tests.support.providers.redfish_rack import provider
from tests.support.waiting import eventually


def test_a_machine_that_hangs_is_power_cycled_back_to_life_and_reinstalled(
    tmp_path: Path, clock: ManualClock, deadline: Deadline
) -> None:
    """A reset at the BMC really stops and starts the machine that answers SSH, and a boot from PXE wipes it."""
    with MachinePool(tmp_path / "pool", 0, boot_seconds=0.02) as pool:
        client = Client(pool)
        with RedfishRack(pool, tmp_path, machines=1, authorized_key=client.authorized_key, action_seconds=0.05) as rack:
            adapter = provider(rack, clock, boot_source="pxe")
            name = rack.names[0]
            client.wait_until_up(name)
            key = client.host_key(name)
            client.upload(name, "/root/kept", b"#!/bin/sh\n")
            pool.hang(name)
            adapter.power_cycle(ProviderId(name), deadline)
            rack.wait_until_idle()
            client.wait_until_up(name)
            assert client.host_key(name) == key
            assert client.run(name, "/root/kept").status == 0
            adapter.reinstall(ProviderId(name), deadline)
            rack.wait_until_idle()
            client.wait_until_up(name)
            assert client.host_key(name) != key
            assert rack.errors == []


def test_a_restart_ends_by_itself(tmp_path: Path, clock: ManualClock, deadline: Deadline) -> None:
    """The emulator switches a machine on again only when it is queried, which the demo does not do."""
    with (
        MachinePool(tmp_path / "pool", 0, boot_seconds=0.02) as pool,
        RedfishRack(pool, tmp_path, machines=1, authorized_key=Client(pool).authorized_key, action_seconds=0.1) as rack,
    ):
        name = rack.names[0]
        eventually(lambda: pool.state(name) is MachineState.UP)
        provider(rack, clock).reboot(ProviderId(name), deadline)
        eventually(lambda: rack.starts(name) == 1 and pool.state(name) is MachineState.UP)


def test_a_process_has_one_rack_at_a_time(tmp_path: Path) -> None:
    """The emulator keeps everything in its module: two would be one, and switch each other's machines."""
    first, second = (RedfishRack(NoHardware(), tmp_path, machines=1) for _ in range(2))
    with first, pytest.raises(RuntimeError, match="another rack"), second:
        pass
    with RedfishRack(NoHardware(), tmp_path, machines=2) as rack:
        assert rack.power(rack.names[1]) == "On"
