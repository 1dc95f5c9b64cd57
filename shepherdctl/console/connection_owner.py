"""Which user of this computer is at the other end of a connection: Linux says so, other systems do not."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


def user_id(client: tuple[str, int], server: tuple[str, int]) -> int | None:
    """
    Return the user id of the program at *client*, whose connection *server* accepted; None: the system does not say.

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
            # A program that listens at all addresses of IPv6 has those of IPv4 at their end.
            seen |= local.endswith(here)
            if local.endswith(there) and remote.endswith(here) and inode != "0":
                return int(user)
    return -1 if seen else None


def _hexadecimal(address: tuple[str, int]) -> str:
    """Return *address* as the kernel prints it: the number in the order of the processor, and the port."""
    (number,) = struct.unpack("=I", socket.inet_aton(address[0]))
    return f"{number:08X}:{address[1]:04X}"
