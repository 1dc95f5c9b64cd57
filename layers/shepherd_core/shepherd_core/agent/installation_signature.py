"""
The signature of installation requests, by which agents tell an operator's from all others.

Agents learn the public keys at takeover. Everything between an operator and an
agent (database, endpoint, proxies) only passes requests on, and has no key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shepherd_core.domain.pb.callback_pb2 import OSInstallationRequest, SignedInstallation

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

VALID_SECONDS = 86_400
"""How long a request may wait for an agent. Long enough for a machine that is being recovered."""

_DOMAIN = b"shepherd-installation-v1"


def signed(request: OSInstallationRequest, machine_id: UUID, now: int, sign: Callable[[bytes], bytes]) -> bytes:
    """
    Return *request*, serialized, with a signature that agents of this machine alone accept, for ``VALID_SECONDS``.

    *now* is the time of day in milliseconds since the Unix epoch, *sign* returns the
    Ed25519 signature of a message.
    """
    installation = SignedInstallation(
        machine_id=str(machine_id), expires_at=now + VALID_SECONDS * 1000, request=request.SerializeToString()
    )
    content = installation.SerializeToString()
    complete = OSInstallationRequest(signed=content, signature=sign(_DOMAIN + b"\n" + content))
    complete.MergeFrom(request)
    return complete.SerializeToString()
