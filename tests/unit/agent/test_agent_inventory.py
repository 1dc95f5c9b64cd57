"""When the agent sends its hardware report."""

from agent.shepherd_agent.hardware.inventory import Inventory

HOUR = 3600.0


class Machine:
    """A machine that changes, and a clock."""

    def __init__(self) -> None:
        self.hardware = b"two disks"
        self.seconds = 1000.0
        self.looks = 0
        self.inventory = Inventory(self.collect, lambda: self.seconds)

    def collect(self) -> bytes:
        """Look at the machine."""
        self.looks += 1
        return self.hardware


def test_the_report_is_due_until_the_endpoint_has_it() -> None:
    """The first heartbeats may not get through."""
    machine = Machine()
    assert [machine.inventory.report() for _ in range(3)] == [b"two disks"] * 3
    machine.inventory.reported()
    assert machine.inventory.report() == b""


def test_the_machine_is_not_looked_at_with_each_heartbeat() -> None:
    """An inventory costs processor time that the machine needs for its work."""
    machine = Machine()
    for _ in range(100):
        machine.inventory.report()
        machine.seconds += HOUR / 100
    assert machine.looks == 1


def test_a_change_is_reported_within_the_hour() -> None:
    """A disk may have been pulled."""
    machine = Machine()
    machine.inventory.report()
    machine.inventory.reported()
    machine.hardware = b"one disk"
    machine.seconds += HOUR - 1
    assert machine.inventory.report() == b""
    machine.seconds += 1
    assert machine.inventory.report() == b"one disk"


def test_the_report_is_repeated_once_a_day() -> None:
    """Whatever became of the one before."""
    machine = Machine()
    machine.inventory.report()
    machine.inventory.reported()
    machine.seconds += 24 * HOUR - 1
    assert machine.inventory.report() == b""
    machine.seconds += 1
    assert machine.inventory.report() == b"two disks"
    machine.inventory.reported()
    assert machine.inventory.report() == b""
