"""Server processes for one connection after another: a new one plans all again, which takes longer than most tests."""

import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import Any

from pg8000.core import IDLE
from shepherd_core.bmdb.wire import driver as wire
from shepherd_core.bmdb.wire.driver import FAULTS, Driver

_MOST = 8
_Driver = wire._NamedStatements
_idle: list[tuple[str, Driver]] = []
_lock = threading.RLock()
_blocks = 0

os.register_at_fork(after_in_child=_idle.clear)  # they are the parent's


@contextmanager
def server_processes() -> Iterator[None]:
    """Within the block, let the driver prefer an idle server process of the same database and role to a new one."""
    _count(1)
    try:
        yield
    finally:
        _count(-1)


def end_idle() -> None:
    with _lock:
        while _idle:
            _end(_idle.pop()[1])


def _count(change: int) -> None:
    global _blocks  # noqa: PLW0603 - commands may run concurrently
    with _lock:
        _blocks += change
        vars(wire)["_NamedStatements"] = _connect if _blocks else _Driver


def _connect(user: str, sock: socket.socket | None = None, **options: Any) -> Driver:
    if sock is None or sock.family != socket.AF_UNIX:
        return _Driver(user, sock=sock, **options)
    key = repr((sock.getpeername(), user, options))
    driver = _taken(key)
    if driver is None:
        driver = _Driver(user, sock=sock, **options)
        driver.prepare = cache(driver.prepare)
    else:
        sock.shutdown(socket.SHUT_RDWR)  # the caller may still set its timeout
    driver.close = partial(_retire, driver, key, sock)
    return driver


def _taken(key: str) -> Driver | None:
    while True:
        with _lock:
            found = next((pair for pair in reversed(_idle) if pair[0] == key), None)
            if found is None:
                return None
            _idle.remove(found)
        try:
            found[1].run("RESET ALL")
        except FAULTS:  # a test ended it
            _end(found[1])
        except BaseException:  # a test killed the caller
            _end(found[1])
            raise
        else:
            return found[1]


def _retire(driver: Driver, key: str, sock: socket.socket) -> None:
    """Keep the server process for another connection, unless it is in a transaction or failed."""
    if driver._usock is not sock:
        sock.close()
    if isinstance(sys.exception(), FAULTS) or driver._transaction_status != IDLE:
        _end(driver)
        return
    try:
        driver.run("SET application_name = 'idle'")
    except FAULTS:
        _end(driver)
        return
    except BaseException:  # a test killed the caller
        _end(driver)
        raise
    with _lock:
        _idle.append((key, driver))
        if len(_idle) > _MOST:
            _end(_idle.pop(0)[1])


def _end(driver: Driver) -> None:
    with suppress(*FAULTS):
        _Driver.close(driver)
