"""
Many heartbeats in one message, as a relay passes them on, and their answers.

Anyone can send a batch. So it is first split, which takes no memory, and the number
and the lengths of its entries are checked before anything in it is parsed.
"""

from __future__ import annotations

import hmac
from http import HTTPStatus
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from shepherd_core.agent.heartbeats import HeartbeatRefused, SignedBody
from shepherd_core.domain.pb.callback_pb2 import HeartbeatAnswer, HeartbeatBatchResponse, SignedHeartbeat

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shepherd_core.agent.received_request import AgentResponse

MOST_ENTRIES = 500
"""Heartbeats in a batch: as many as one statement records."""

_DOMAIN = b"shepherd-answer-v1"
_ENTRY_TAG = 0x0A  # field 1, of a message type
_ENVELOPE_BYTES = 256
"""What a SignedHeartbeat may have beside its body: an id, a time and a signature take 130 bytes."""
_LONGEST_LENGTH = 4  # bytes of a length: up to 256 MiB


def decode(message: bytes, path: str, body_bytes: int) -> list[SignedBody | HeartbeatRefused]:
    """
    Return the heartbeats of a HeartbeatBatch in its order, and the refusals of those that are not valid.

    *path* is what their signatures cover. No body is longer than *body_bytes*.

    Raises:
        HeartbeatRefused: *message* is not a HeartbeatBatch, or has none or too many heartbeats.
    """
    entries: list[memoryview] = []
    for entry in _split(message):
        if len(entries) == MOST_ENTRIES:
            text = f"the batch has more than {MOST_ENTRIES} heartbeats"
            raise HeartbeatRefused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text)
        entries.append(entry)
    if not entries:
        raise HeartbeatRefused(HTTPStatus.BAD_REQUEST, "the batch has no heartbeat")
    return [_entry(entry, path, body_bytes) for entry in entries]


def encode(answers: Iterable[tuple[bytes, AgentResponse]]) -> bytes:
    """Return the HeartbeatBatchResponse; each answer comes with the signature of its heartbeat."""
    encoded = (
        HeartbeatAnswer(status=answer.status, time=answer.time, body=answer.body, mac=_mac(signature, answer))
        for signature, answer in answers
    )
    return HeartbeatBatchResponse(answer=encoded).SerializeToString()


def _mac(signature: bytes, answer: AgentResponse) -> bytes:
    """Return the MAC by which the agent knows that we sent the answer, to this heartbeat; empty: there is no key."""
    if answer.response_key is None:
        return b""
    parts = (signature.hex(), str(int(answer.status)), str(answer.time))
    text = b"\n".join((_DOMAIN, *(part.encode() for part in parts), answer.body))
    return hmac.digest(answer.response_key, text, "sha256")


def _split(message: bytes) -> Iterator[memoryview]:
    """Yield the encoding of each entry."""
    rest = memoryview(message)
    while rest:
        length, shift, position = 0, 0, 1
        while rest[0] == _ENTRY_TAG and position < len(rest) and position <= _LONGEST_LENGTH:
            byte = rest[position]
            length, shift, position = length | (byte & 0x7F) << shift, shift + 7, position + 1
            if byte < 0x80:  # noqa: PLR2004 - the highest bit means that more bytes follow
                break
        else:
            raise _not_a_batch()
        if position + length > len(rest):
            raise _not_a_batch()
        yield rest[position : position + length]
        rest = rest[position + length :]


def _not_a_batch() -> HeartbeatRefused:
    return HeartbeatRefused(HTTPStatus.BAD_REQUEST, "the body is not a HeartbeatBatch")


def _entry(entry: memoryview, path: str, body_bytes: int) -> SignedBody | HeartbeatRefused:
    too_long = HeartbeatRefused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body is longer than {body_bytes} bytes")
    if len(entry) > body_bytes + _ENVELOPE_BYTES:
        return too_long
    try:
        signed = SignedHeartbeat.FromString(bytes(entry))
    except DecodeError:
        return HeartbeatRefused(HTTPStatus.BAD_REQUEST, "the entry is not a SignedHeartbeat")
    if len(signed.body) > body_bytes:
        return too_long
    return SignedBody(signed.machine_id, path, str(signed.time), signed.signature, signed.body)
