"""
A heartbeat as it arrives: who signed it, and what it says.

Nothing of a body is decoded before its signature has been verified. The answer
names faults in a body, so that the agent can leave out that part.
"""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING
from uuid import UUID

from google.protobuf.message import DecodeError
from nacl.exceptions import BadSignatureError
from nacl.signing import VerifyKey

from shepherd_core.bmdb.agents import reports
from shepherd_core.domain.pb.callback_pb2 import HeartbeatRequest

if TYPE_CHECKING:
    from shepherd_core.domain.pb.callback_pb2 import AgentHardwareReport, OSInstallationReport

SIGNATURE_BYTES = 64

_DOMAIN = b"shepherd-agent-v1"
_TIME_DIGITS = 15  # the year 33658
_LARGEST = 2**63 - 1
_LONGEST_INTERVAL = 3_600
"""The longest interval that an agent obeys, in seconds."""
_MOST_FAILED_ATTEMPTS = 1_000
"""Larger numbers are stored as this one: what counts is whether any request was lost."""
_MOST_PARTS = 512
"""Processors, disks, network ports and warnings of a hardware report. A large server has some 200 disks."""


class HeartbeatRefused(Exception):
    """A heartbeat is refused, with a text for the agent and a reason for the log. Never leaves the agent API."""

    def __init__(self, status: HTTPStatus, text: str, why: str = "", time: int | None = None) -> None:
        """*time*: the database's, if it was asked, in milliseconds since the Unix epoch."""
        self.status = status
        self.text = text
        self.why = why or text
        self.time = time


@dataclass(frozen=True, slots=True)
class SignedBody:
    """A body, and the signature of its agent; nothing is verified yet."""

    machine: str
    """The id of the machine that it says it is from."""
    path: str
    """The request path that the signature covers."""
    time: str
    """The agent's time when it signed: milliseconds since the Unix epoch, if it is a number."""
    signature: bytes
    body: bytes

    def machine_id(self) -> UUID:
        """
        Return the id of the machine that it says it is from.

        Raises:
            HeartbeatRefused: it is not a UUID.
        """
        try:
            return UUID(self.machine)
        except ValueError as error:
            raise HeartbeatRefused(
                HTTPStatus.BAD_REQUEST,
                "the id of the machine, in the header Shepherd-Machine, is not a UUID",
            ) from error

    def is_by(self, public_key: bytes) -> bool:
        """Return whether the signature is by that key."""
        parts = (part.encode(errors="surrogatepass") for part in ("POST", self.path, self.time))
        # A malformed signature takes the same time to verify as a wrong one.
        signature = self.signature if len(self.signature) == SIGNATURE_BYTES else bytes(SIGNATURE_BYTES)
        try:
            VerifyKey(public_key).verify(b"\n".join((_DOMAIN, *parts, self.body)), signature)
        except BadSignatureError:
            return False
        return True

    def heartbeat(self, machine_id: UUID, public_key: bytes, told_interval: int) -> reports.Heartbeat:
        """
        Return the heartbeat in the body, whose signature *public_key* has verified.

        *told_interval* is the interval in the answer, in seconds; the answer may be lost.

        Raises:
            HeartbeatRefused: the body is not valid.
        """
        try:
            message = HeartbeatRequest.FromString(self.body)
        except DecodeError as error:
            raise HeartbeatRefused(HTTPStatus.BAD_REQUEST, "the body is not a HeartbeatRequest") from error
        if message.machine_id != str(machine_id):
            raise HeartbeatRefused(
                HTTPStatus.BAD_REQUEST,
                "the machine_id of the body is not that of the header Shepherd-Machine",
            )
        readable = self.time.isascii() and self.time.isdigit() and len(self.time) <= _TIME_DIGITS
        interval = message.report_interval_seconds
        installed = message.installation_report if message.HasField("installation_report") else None
        return reports.Heartbeat(
            machine_id=machine_id,
            public_key=public_key,
            signed_at=int(self.time) if readable else 0,
            report_interval_seconds=min(max(interval, told_interval), _LONGEST_INTERVAL) if interval else 0,
            failed_attempts=min(message.failed_attempts, _MOST_FAILED_ATTEMPTS),
            hardware=_hardware(message.hardware_report) if message.HasField("hardware_report") else None,
            installation=None if installed is None else _installation(installed),
        )


def _hardware(report: AgentHardwareReport) -> reports.ReportedHardware:
    node = report.report
    parts = len(node.cpu) + len(node.block_device) + len(node.network_interface) + len(report.warning)
    if parts > _MOST_PARTS:
        raise HeartbeatRefused(
            HTTPStatus.BAD_REQUEST, f"the hardware report has {parts} parts, more than {_MOST_PARTS}"
        )
    sums = {
        "hardware_threads": sum(cpu.hardware_threads for cpu in node.cpu),
        "memory_bytes": node.memory_installed_bytes,
        "disks": len(node.block_device),
        "disk_bytes": sum(disk.capacity_bytes for disk in node.block_device),
    }
    for name, value in sums.items():
        if not 0 <= value <= _LARGEST:
            raise HeartbeatRefused(
                HTTPStatus.BAD_REQUEST, f"hardware report: {name} is {value}; it must be 0 to {_LARGEST}"
            )
    return reports.ReportedHardware(raw=report.SerializeToString(), **sums)


def _installation(report: OSInstallationReport) -> reports.ReportedInstallation:
    outcome = report.WhichOneof("result")
    if outcome is None:
        raise HeartbeatRefused(HTTPStatus.BAD_REQUEST, "the installation report has no result")
    return reports.ReportedInstallation(
        raw=report.SerializeToString(),
        generation=report.generation,
        result="Success" if outcome == "success" else "Error",
    )
