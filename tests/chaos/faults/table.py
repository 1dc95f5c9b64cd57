"""The table of all faults of provider, AWS, database and machines, and of the loop that each is tried on."""

from tests.chaos.faults.at_machines import MACHINES
from tests.chaos.faults.at_provider import PROVIDER
from tests.chaos.faults.at_services import AWS, DATABASE
from tests.chaos.faults.stage import Fault

__all__ = ["ELSEWHERE", "FAULTS", "MACHINES", "NAMED"]

FAULTS: tuple[Fault, ...] = (*PROVIDER, *AWS, *DATABASE)

ELSEWHERE = {
    ("401", "initializer"): "loops/test_initializer.py::test_a_machine_without_a_known_address_fails",
    ("404", "initializer"): "loops/test_initializer.py::test_a_machine_without_a_known_address_fails",
    ("503", "initializer"): "loops/test_initializer.py::test_a_machine_without_a_known_address_fails",
}
"""Faults that other tests in ``tests/integration`` cover with whole loops."""

NAMED = (
    "401", "403", "404", "422", "429 with Retry-After", "500", "503", "timeout after the effect", "empty page",
    "page that repeats", "listing that shrinks in the middle", "creation that succeeds late",
    "device in an unknown state", "two devices with one token", "capacity taken by others",
    "SSH refused", "SSH black hole", "SSH banner and nothing more", "SSH authentication refused",
    "SSH host key changed", "disk full", "connection lost in the upload", "agent that hangs",
    "agent that floods stdout without end", "agent that answers garbage", "agent that exits 1",
    "agent that answers for another machine", "SSM throttled", "parameter missing", "agent object missing",
    "agent object changed in the middle", "database full", "database read-only", "database out of connections",
    "schema older", "schema newer", "clock of the function wrong by an hour",
)  # fmt: skip
"""All faults; a test checks that each of them is tried."""
