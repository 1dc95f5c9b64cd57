"""
The relay: passes on the heartbeats of the machines around it, and returns each the endpoint's answer.

It holds no key and need not be trusted: agents sign their heartbeats, and verify
the endpoint's answers. Limits on the number, bytes and time of connections bound
what a machine can make it use.
"""

from __future__ import annotations

import asyncio
import ipaddress
from base64 import b64decode, b64encode
from contextlib import suppress
from typing import TYPE_CHECKING

from ..diagnostics import certificate
from ..refusal import AgentRefusal
from ..reports.endpoint import Endpoint
from ..reports.reporter import MACHINE_HEADER, SIGNATURE_HEADER, TIME_HEADER
from .batch import Away, Batches
from .client import COLLECT_HEADER, MAC_HEADER
from .times import LONGEST_COLLECT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn

    Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_MOST_CONNECTIONS, _MOST_OF_AN_ADDRESS = 512, 16
_LONGEST_HEAD, _LONGEST_BODY = 8_192, 65_536
_REQUEST_SECONDS, _ANSWER_SECONDS = 5.0, LONGEST_COLLECT_SECONDS + 10.0
_LONGEST_ID, _TIME_DIGITS, _COLLECT_DIGITS, _SIGNATURE_BYTES = 64, 15, 4, 64
_REASONS = {200: "OK", 400: "Bad Request", 413: "Content Too Large", 503: "Service Unavailable"}


class _Invalid(Exception):
    """A request that is not passed on."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def run_relay(place: str, address: str, served: str, ca_file: str | None = None) -> NoReturn:
    """
    Listen at *place*, ``ADDRESS:PORT``, and pass heartbeats on to the endpoint at *address* until killed.

    *served* are the networks whose machines are answered, separated by commas.

    Raises:
        AgentRefusal: an argument is not valid, or the address cannot be listened at.
    """
    host, _, port = place.rpartition(":")
    try:
        ipaddress.ip_address(host.strip("[]"))
        number = int(port)
        networks = [ipaddress.ip_network(network.strip()) for network in served.split(",")]
    except ValueError as error:
        raise AgentRefusal(f"the relay needs ADDRESS:PORT and networks such as 10.0.0.0/24: {error}") from error
    ca_certificate = certificate(ca_file) if ca_file else b""
    Endpoint(address, ca_certificate)  # refuse a wrong address now, not with the first batch
    try:
        asyncio.run(_serve(host.strip("[]"), number, lambda: Endpoint(address, ca_certificate), networks))
    except (OSError, OverflowError) as error:
        raise AgentRefusal(f"the relay cannot listen at {place}: {error}") from error
    raise AgentRefusal("the relay ended")


async def _serve(host: str, port: int, make_endpoint: Callable[[], Endpoint], networks: Sequence[Network]) -> None:
    relay = RelayServer(Batches(make_endpoint), networks)
    server = await asyncio.start_server(relay.serve, host, port, limit=_LONGEST_HEAD, backlog=_MOST_CONNECTIONS)
    print("shepherd-agent: relay at", *(_place(sock.getsockname()) for sock in server.sockets), flush=True)
    await server.serve_forever()


def _place(name: tuple[str, int]) -> str:
    return f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"


class RelayServer:
    """The connections of a relay."""

    def __init__(self, batches: Batches, networks: Sequence[Network]) -> None:
        """Answer the machines in *networks*, and hang up on others."""
        self._batches = batches
        self._networks = networks
        self._connections: dict[str, int] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the one request of a connection."""
        peer = writer.get_extra_info("peername")
        address = str(peer[0]) if peer else ""
        of_address = self._connections.get(address, 0)
        crowded = of_address >= _MOST_OF_AN_ADDRESS or sum(self._connections.values()) >= _MOST_CONNECTIONS
        if crowded or not self._is_served(address):
            writer.transport.abort()
            return
        self._connections[address] = of_address + 1
        try:
            writer.write(await self._answer(reader))
            await asyncio.wait_for(writer.drain(), _REQUEST_SECONDS)
            writer.close()
        except (OSError, EOFError, asyncio.TimeoutError):  # noqa: UP041 - another one in Python 3.9
            writer.transport.abort()
        finally:
            self._connections[address] -= 1
            if not self._connections[address]:
                del self._connections[address]
            if not writer.is_closing():
                writer.transport.abort()

    def _is_served(self, address: str) -> bool:
        try:
            found = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
        found = getattr(found, "ipv4_mapped", None) or found
        return any(found in network for network in self._networks)

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        try:
            head, body = await asyncio.wait_for(_read(reader), _REQUEST_SECONDS)
            future = self._batches.add(*_signed(head), body, allowed_seconds(head))
            answer = await asyncio.wait_for(future, _ANSWER_SECONDS)
        except _Invalid as error:
            return _response(error.status, str(error).encode(), {})
        except (Away, asyncio.TimeoutError) as error:  # noqa: UP041
            return _response(503, str(error).encode() or b"there was no answer in time", {})
        headers = {TIME_HEADER: str(answer.time), MAC_HEADER: b64encode(answer.mac).decode()}
        return _response(answer.status, answer.body, headers)


def _response(status: int, body: bytes, headers: dict[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} {_REASONS.get(status, 'Answer')}", "Connection: close", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, *(f"{name}: {value}" for name, value in headers.items()), "\r\n"]).encode() + body


async def _read(reader: asyncio.StreamReader) -> tuple[dict[str, str], bytes]:
    """Return the headers, by lower-case name, and the body of a request."""
    try:
        text = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.LimitOverrunError as error:
        raise _Invalid(400, "the headers are too long") from error
    first, *lines = text.split("\r\n")
    if not first.startswith("POST /heartbeat HTTP/1."):
        raise _Invalid(400, "a relay answers only POST /heartbeat")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    length = headers.get("content-length", "")
    if "transfer-encoding" in headers or "content-encoding" in headers or not (length.isascii() and length.isdigit()):
        raise _Invalid(400, "the body needs a Content-Length, and no encoding")
    if len(length) > len(str(_LONGEST_BODY)) or int(length) > _LONGEST_BODY:
        raise _Invalid(413, f"the body is longer than {_LONGEST_BODY} bytes")
    return headers, await reader.readexactly(int(length))


def _signed(headers: dict[str, str]) -> tuple[bytes, int, bytes]:
    """Return machine, time and signature of a heartbeat, after a check of their form."""
    machine, time = headers.get(MACHINE_HEADER.lower(), ""), headers.get(TIME_HEADER.lower(), "")
    signature = b""
    with suppress(ValueError):
        signature = b64decode(headers.get(SIGNATURE_HEADER.lower(), ""), validate=True)
    # The endpoint gets the time as a number, but the signature covers its text: one must give the other.
    number = time.isascii() and time.isdigit() and len(time) <= _TIME_DIGITS and time == str(int(time))
    if not number or not machine.isascii() or len(machine) > _LONGEST_ID or len(signature) != _SIGNATURE_BYTES:
        raise _Invalid(400, "the request is not a signed heartbeat")
    return machine.encode(), int(time), signature


def allowed_seconds(headers: dict[str, str]) -> int:
    """Return how many seconds the agent lets the relay collect, at most the relay's limit; 0: it does not say."""
    text = headers.get(COLLECT_HEADER.lower(), "")
    valid = text.isascii() and text.isdigit() and len(text) <= _COLLECT_DIGITS
    return min(int(text), LONGEST_COLLECT_SECONDS) if valid else 0
