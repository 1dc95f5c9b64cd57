"""When the agent sends its hardware report."""

from agent.shepherd_agent.hardware.inventory import Inventory


def test_hardware_is_reported_when_it_changed_and_once_a_day() -> None:
    """Until the endpoint has it. A look costs processor time that the machine needs, so there is one an hour."""
    hardware, hours, looks = [b"two disks"], [0.0], []

    def look() -> bytes:
        looks.append(hours[0])
        return hardware[0]

    inventory = Inventory(look, lambda: 1000 + hours[0] * 3600)

    def report(at: float) -> bytes:
        hours[0] = at
        return inventory.report()

    assert [report(0) for _ in range(3)] == [b"two disks"] * 3
    inventory.reported()
    hardware[0] = b"one disk"
    assert [report(at) for at in (0, 0.5, 3599 / 3600)] == [b""] * 3
    assert looks == [0]
    assert report(1) == b"one disk"
    inventory.reported()
    assert [report(at) for at in (1, 25 - 1 / 3600)] == [b""] * 2
    assert report(25) == b"one disk"
    inventory.reported()
    assert report(25) == b""
