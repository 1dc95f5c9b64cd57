"""The one reader of answers from outside: bounded in size, in time as a whole, and in what parsing them takes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import urllib3

LONGEST_ANSWER = 32 * 1024 * 1024
"""In bytes, decompressed. A function has 512 MB; a listing of 100,000 Hetzner servers has some 30 MB."""
MOST_VALUES = 2_000_000
"""In one document. A value takes about 70 bytes in Python: these fit into a function's 512 MB. The listing of
100,000 Hetzner servers has 1.3 million."""

_PIECE = 65_536
_MULTIPLIERS = re.compile(rb"<!(ENTITY|ATTLIST)")
"""XML declarations, a few of which can stand for any number of elements and attributes."""


class AnswerTooLong(Exception):
    """An answer has more bytes or values than allowed."""


class AnswerTooLate(Exception):
    """An answer was incomplete when the time was up."""

    def __init__(self) -> None:
        super().__init__("the answer was incomplete when the time was up")


def read(response: urllib3.BaseHTTPResponse, seconds_left: Callable[[], float], longest: int = LONGEST_ANSWER) -> bytes:
    """
    Return the whole body, decompressed; a slow one exceeds the time by one part at most.

    Raises:
        AnswerTooLong: the body is longer than *longest* bytes.
        AnswerTooLate: *seconds_left* returned no more seconds before the end.
    """
    content = bytearray()
    while piece := response.read1(_PIECE, decode_content=True):
        content += piece
        if len(content) > longest:
            raise AnswerTooLong(f"the answer is longer than {longest} bytes")
        if seconds_left() <= 0:
            raise AnswerTooLate
    return bytes(content)


def check_values(document: bytes) -> None:
    """
    Check that *document*, JSON or XML, may be parsed.

    Raises:
        AnswerTooLong: it may have more than ``MOST_VALUES`` values.
    """
    if sum(map(document.count, (b",", b"[", b"{", b"<", b"="))) > MOST_VALUES:
        raise AnswerTooLong(f"it has more than {MOST_VALUES} values")
    # Zero bytes are left out: UTF-16 has them between letters.
    if _is_xml(document) and _MULTIPLIERS.search(document.replace(b"\0", b"")):
        raise AnswerTooLong("it is XML that declares entities or default attributes")


def _is_xml(document: bytes) -> bool:
    return document[:64].lstrip(b"\xef\xbb\xbf\xff\xfe\0 \t\r\n").startswith(b"<")
