"""
Machines whose SSH servers attack the client that logs in: each attack is a few bytes, or an endless stream.

Run as ``python -m tests.support.agents.hostile_server PORT PUBLIC_LINE``: serves all attacks at PORT, each at its own
address, and writes a line when it is ready; ends with its standard input.
"""

import asyncio
import logging
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain, repeat
from pathlib import Path
from subprocess import PIPE

from asyncssh.packet import String, UInt32

from tests.support.agents.ssh_server import Process, SshServer

MANY = 2**32 - 1
VERSION = b"SSH-2.0-OpenSSH_9.9\r\n"
_MEGABYTE = bytes(1 << 20)
_MSG_EXT_INFO, _MSG_CHANNEL_DATA = 7, 94


def _packet(payload: bytes) -> bytes:
    padding = 16 - (5 + len(payload)) % 8
    return struct.pack(">IB", 1 + len(payload) + padding, padding) + payload + bytes(padding)


def _drip(data: bytes) -> Iterator[bytes]:
    for each in data:
        time.sleep(0.05)
        yield bytes([each])


BEFORE_LOGIN: dict[str, Callable[[], Iterable[bytes]]] = {
    "a giant packet": lambda: chain([VERSION, struct.pack(">I", 2**31 - 4)], repeat(_MEGABYTE)),
    "an endless line": lambda: repeat(b"x" * 65_536),
    "endless lines": lambda: repeat(b"Welcome!\r\n" * 1_000),
    "a slow drip": lambda: _drip(b"SSH-2.0-" + bytes(1_000_000)),
    "packets without end that do nothing": lambda: chain([VERSION], repeat(_packet(b"\2" + bytes(11)) * 4_000)),
}
"""What a listener sends to each client, until the client leaves."""


def listen(address: str, port: int, attack: Callable[[], Iterable[bytes]]) -> None:
    """Send the same to each client, as long as this process lives."""
    listener = socket.create_server((address, port))

    def send(client: socket.socket) -> None:
        with suppress(OSError), client:
            for data in attack():
                client.sendall(data)

    def accept() -> None:
        while True:
            threading.Thread(target=send, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()


def _flood(stream: str) -> Callable[[Process], Awaitable[None]]:
    async def flood(process: Process) -> None:
        writer = getattr(process, stream)
        while not process.channel.is_closing():
            writer.write(_MEGABYTE)
            await writer.drain()

    return flood


async def _flood_without_window(process: Process) -> None:
    transport = process.channel.get_connection()._transport
    assert transport is not None
    while not (transport.is_closing() or process.channel.is_closing()):
        if transport.get_write_buffer_size() < len(_MEGABYTE):
            process.channel.send_packet(_MSG_CHANNEL_DATA, String(bytes(32_000)))
        else:
            await asyncio.sleep(0.001)


AFTER_LOGIN: dict[str, dict[str, object]] = {
    "extensions without end": {"on_login": lambda connection: connection.send_packet(_MSG_EXT_INFO, UInt32(MANY))},
    "output without end": {"program": _flood("stdout")},
    "complaints without end": {"program": _flood("stderr")},
    "more output than there is room for": {"program": _flood_without_window},
    "no answer": {"program": lambda _: asyncio.sleep(60)},
}
"""What makes a server that knows our key misbehave: its attributes."""

ADDRESSES = {name: f"127.43.0.{number}" for number, name in enumerate((*BEFORE_LOGIN, *AFTER_LOGIN), start=1)}
"""The address of each attack."""


@contextmanager
def attackers(port: int, public_line: str) -> Iterator[None]:
    """Serve all attacks in a process of low priority, which takes no time from the neighbours."""
    command = [sys.executable, "-m", __name__, str(port), public_line]
    with subprocess.Popen(command, cwd=Path(__file__).parents[3], stdin=PIPE, stdout=PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        try:
            yield
        finally:
            process.kill()


def main(port: int, public_line: str) -> None:
    os.nice(10)
    logging.disable()
    for name, attack in BEFORE_LOGIN.items():
        listen(ADDRESSES[name], port, attack)
    with ExitStack() as stack:
        for name, fault in AFTER_LOGIN.items():
            server = SshServer(public_line, address=ADDRESSES[name], port=port)
            vars(server).update(fault)
            stack.enter_context(server)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.read()
        os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
