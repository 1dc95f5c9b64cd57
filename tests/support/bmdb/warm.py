"""
Server processes that commands in this process use one after another, as ``fleet.Backends`` is for loops.

A new one reads the catalog and plans every statement again, which takes longer than all else that a command does.
"""

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

_MOST = 4
_Driver = wire._NamedStatements
_idle: dict[str, Driver] = {}
_lock = threading.Lock()
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


def _count(change: int) -> None:
    global _blocks  # noqa: PLW0603 - commands may run concurrently
    with _lock:
        _blocks += change
        vars(wire)["_NamedStatements"] = _connect if _blocks else _Driver


def _connect(user: str, sock: socket.socket | None = None, **options: Any) -> Driver:
    if sock is None or sock.family != socket.AF_UNIX:
        return _Driver(user, sock=sock, **options)
    key = repr((sock.getpeername(), user, options))
    driver = _idle.pop(key, None)
    try:
        if driver is not None:
            driver.run("RESET ALL")
    except FAULTS:  # a test ended it
        _end(driver)
        driver = None
    if driver is None:
        driver = _Driver(user, sock=sock, **options)
        driver.prepare = cache(driver.prepare)
    else:
        sock.shutdown(socket.SHUT_RDWR)  # the caller may still set its timeout
    driver.close = partial(_retire, driver, key, sock)
    return driver


def _retire(driver: Driver, key: str, sock: socket.socket) -> None:
    """Keep the server process for another connection, unless it is in a transaction or failed."""
    if driver._usock is not sock:
        sock.close()
    if isinstance(sys.exception(), FAULTS) or driver._transaction_status != IDLE or key in _idle:
        _end(driver)
        return
    driver.run("SET application_name = 'idle'")
    _idle[key] = driver
    if len(_idle) > _MOST:
        _end(_idle.pop(next(iter(_idle))))


def _end(driver: Driver) -> None:
    with suppress(*FAULTS):
        _Driver.close(driver)
