"""Finds the user of this computer at the other end of a connection. Linux tells, other systems do not."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


def user_id(client: tuple[str, int], server: tuple[str, int]) -> int | None:
    """
    Return the user id of the program at *client*, the other end of a connection to *server*; None: not known.

    Both are IPv4 addresses of this computer. -1: there is no such connection, or it was closed at the other end.
    """
    here, there = _hexadecimal(server), _hexadecimal(client)
    seen = False
    for table in _TABLES:
        try:
            lines = table.read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            if here not in line:
                continue
            _, local, remote, _, _, _, _, user, _, inode, *_ = line.split()
            # In the table of IPv6, an IPv4 address is the end of a mapped one (::ffff:127.0.0.1).
            seen |= local.endswith(here)
            if local.endswith(there) and remote.endswith(here) and inode != "0":
                return int(user)
    return -1 if seen else None


def _hexadecimal(address: tuple[str, int]) -> str:
    """Return *address* as the kernel prints it: the number in the order of the processor, and the port."""
    (number,) = struct.unpack("=I", socket.inet_aton(address[0]))
    return f"{number:08X}:{address[1]:04X}"
