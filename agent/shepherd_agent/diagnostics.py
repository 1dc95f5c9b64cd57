"""Diagnostics for operators; they do not touch a running agent or its key."""

from __future__ import annotations

import dataclasses
import json
import os
import ssl
from pathlib import Path
from typing import TYPE_CHECKING

from .ed25519 import SEED_LENGTH, PrivateKey
from .hardware.kernel import Kernel
from .hardware.report import hardware_report
from .messages import HeartbeatResponse, heartbeat_request
from .refusal import AgentRefusal
from .reports.endpoint import Endpoint, NotDelivered
from .reports.reporter import Reporter

if TYPE_CHECKING:
    from collections.abc import Sequence

_BEGIN = b"-----BEGIN"


def describe() -> str:
    """Return the hardware report as JSON; bytes are hexadecimal, enum values are names."""
    report = hardware_report(Kernel())
    shown = dataclasses.asdict(report)
    shown["report"]["efi_support"] = report.report.efi_support.name
    for disk in shown["report"]["block_device"]:
        disk["protocol"] = disk["protocol"].name
    return json.dumps(shown, indent=2, default=bytes.hex)


def beat_once(machine_id: str, address: str, ca_file: str | None) -> Sequence[str]:
    """
    Send one heartbeat with a new key and return the result as lines of text.

    Raises:
        AgentRefusal: an argument is not valid.
        NotDelivered: the endpoint did not accept the heartbeat.
    """
    endpoint = Endpoint(address, certificate(ca_file) if ca_file else b"")
    key = PrivateKey(os.urandom(SEED_LENGTH))
    answer = Reporter(endpoint, key, machine_id).send("heartbeat", heartbeat_request(machine_id))
    try:
        request = HeartbeatResponse.decode(answer).installation
    except ValueError as error:
        raise NotDelivered(f"the answer is not a HeartbeatResponse: {error}") from error
    asked = "nothing" if request is None else f"installation {request.generation}, which was not started"
    return ["accepted", f"requested: {asked}"]


def certificate(path: str) -> bytes:
    """
    Return the certificate in the file *path*, PEM or DER, in DER.

    Raises:
        AgentRefusal: it cannot be read.
    """
    try:
        content = Path(path).read_bytes()
        return ssl.PEM_cert_to_DER_cert(content.decode()) if content.startswith(_BEGIN) else content
    except (OSError, ValueError) as error:
        raise AgentRefusal(f"the CA cannot be read: {error}") from error
