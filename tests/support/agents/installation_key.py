"""An installation key, and requests signed with it; by code that is neither the agent's nor the command's."""

from tempfile import NamedTemporaryFile

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from shepherd_core.domain.pb.callback_pb2 import OSInstallationRequest, SignedInstallation

from agent.shepherd_agent.messages import TakeoverInit

KEY = Ed25519PrivateKey.from_private_bytes(b"i" * 32)
PUBLIC = KEY.public_key().public_bytes_raw()
NOW = 1_800_000_000_000
"""When agents are taken over, in milliseconds; later than any clock here says."""

_file = NamedTemporaryFile(prefix="installation-key-")  # noqa: SIM115 - as long as the process
_file.write(KEY.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
_file.flush()
FILE = _file.name
"""The private half, as operators have it."""


def taught(machine_id: str = "id", *keys: bytes) -> TakeoverInit:
    """Return the message of the takeover of a machine whose agent learns *keys*, by default ``PUBLIC``."""
    return TakeoverInit(machine_id, "http://127.0.0.1:1", b"", b"", keys or (PUBLIC,), NOW)


def signed_request(
    request: OSInstallationRequest,
    *,
    machine_id: str = "id",
    expires_at: int = NOW + 60_000,
    key: Ed25519PrivateKey = KEY,
    domain: bytes = b"shepherd-installation-v1\n",
) -> OSInstallationRequest:
    content = SignedInstallation(
        machine_id=machine_id, expires_at=expires_at, request=request.SerializeToString()
    ).SerializeToString()
    complete = OSInstallationRequest(signed=content, signature=key.sign(domain + content))
    complete.MergeFrom(request)
    return complete
