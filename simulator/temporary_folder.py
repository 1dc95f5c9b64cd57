"""Temporary folders: removed together with the processes in them, however the process that made them ends."""

# Also run by itself, without the rest of the package: the standard library only, and little of it.

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

_PATIENCE_SECONDS = 5.0
"""Time for PostgreSQL to stop by itself, then time for each harder signal."""


@contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """
    Yield a new folder, whose name begins with *prefix*; at the end, kill the processes in it, and remove it.

    Those are the processes whose ``TMPDIR`` is the folder, and PostgreSQL's programs
    whose data (``-D``) is in it. A separate process, which starts before the folder
    is made, does this: so it happens even if the present process is killed.
    """
    folder = Path(tempfile.gettempdir(), f"{prefix}{uuid.uuid4().hex[:12]}")
    command = [sys.executable, "-I", "-S", __file__, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True):
        folder.mkdir(mode=0o700)
        yield folder


def _running(folder: str) -> Iterator[int]:
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        with suppress(OSError):  # ended just now, or not ours to look at
            words = Path(entry.path, "cmdline").read_bytes().decode(errors="replace").split("\0")
            data = [word for option, word in pairwise(words) if option == "-D"]
            environment = Path(entry.path, "environ").read_bytes().split(b"\0")
            if any(Path(folder) in Path(word).parents for word in data) or f"TMPDIR={folder}".encode() in environment:
                yield int(entry.name)


def _remove(folder: str) -> None:
    began = time.monotonic()
    while time.monotonic() < began + 2 * _PATIENCE_SECONDS:
        # A PostgreSQL that is killed leaves shared memory behind.
        patient = time.monotonic() < began + _PATIENCE_SECONDS
        running = list(_running(folder))
        for pid in running:
            with suppress(OSError):
                postgres = Path(f"/proc/{pid}/comm").read_text() == "postgres\n"
                os.kill(pid, signal.SIGQUIT if postgres and patient else signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)
        if not running and not Path(folder).exists():
            return
        time.sleep(0.01)


if __name__ == "__main__":
    sys.stdin.buffer.read()  # ends when the process with the other end closes it or dies
    _remove(sys.argv[1])
