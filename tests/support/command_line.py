"""The operators' command line. Its processes are forked from one that has imported everything, which takes a second."""

import errno
import fcntl
import json
import multiprocessing
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from multiprocessing.context import ForkServerProcess
from multiprocessing.reduction import DupFd
from tempfile import TemporaryFile
from typing import IO, Any

import typer.main
import typer.testing
from shepherd_core.settings.functions.bmdb import BmdbSettings
from typer.testing import Result

from shepherdctl.main import app, main
from shepherdctl.output.json_fields import FIELDS, OPEN, VERSION
from tests.support.agents import installation_key
from tests.support.bmdb.warm import server_processes

_SECONDS = 60
_FORKING = multiprocessing.get_context("forkserver")
_FORKING.set_forkserver_preload([__name__, "shepherd_core.handlers", "boto3"])
# Whoever runs the tests may have wishes of their own about colours and width.
_PLAIN = {"COLUMNS": "80", "TERM": "xterm", "PAGER": "cat"} | dict.fromkeys(
    ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE")
)

COMMAND = typer.main.get_command(app)
"""All commands. Typer would make them again for each call, which takes longer than most calls."""


def every_command(group: Any = COMMAND, words: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    found: dict[tuple[str, ...], Any] = {}
    for name, each in group.commands.items():
        inner = hasattr(each, "commands")
        found.update(every_command(each, (*words, name)) if inner else {(*words, name): each})
    return found


for module in (typer.main, typer.testing):
    vars(module).update(dict.fromkeys(("get_command", "_get_command"), lambda _: COMMAND))


def commands() -> Iterator[tuple[tuple[str, ...], Any]]:
    return ((words, command) for words, command in every_command().items() if not command.hidden)


class CommandLine:
    """``shepherdctl`` with the settings of one database."""

    def __init__(self, settings: BmdbSettings | None, environment: Mapping[str, str] | None = None) -> None:
        """*environment* is what it gets besides; without *settings* there is no database."""
        self.environment = {"SHEPHERD_INSTALLATION_KEY_SOURCE": installation_key.FILE, **(environment or {})}
        if settings is not None:
            self.environment |= {
                "SHEPHERD_BMDB_HOST": settings.bmdb_host,
                "SHEPHERD_BMDB_NAME": settings.bmdb_name,
                "SHEPHERD_BMDB_USER": settings.bmdb_user,
                "SHEPHERD_BMDB_ROLES": settings.bmdb_roles or "",
            }

    def __call__(self, *arguments: str) -> Result:
        with server_processes():
            result = typer.testing.CliRunner().invoke(app, arguments, env={**_PLAIN, **self.environment})
        if arguments[-2:] == ("-o", "json") and result.stdout:
            content(result.stdout)
        return result

    def read(self, *arguments: str, status: int = 0) -> str:
        """Return what it prints when it ends with the exit status that is due."""
        result = self(*arguments)
        assert result.exit_code == status, result.output
        return result.stdout

    def told(self, *arguments: str, status: int = 0) -> str:
        """Return its messages on one line, without frames; it prints no data."""
        result = self(*arguments)
        assert (result.exit_code, result.stdout) == (status, ""), result.output
        return " ".join(without_styles(result.stderr).replace("│", " ").split())

    def load(self, *arguments: str, status: int = 0) -> Any:
        """Return the one JSON document that it prints, without its version; of one that has only a list, the list."""
        return content(self.read(*arguments, "-o", "json", status=status))

    def process(
        self, *arguments: str, output: IO[str] | None = None, meanwhile: Callable[[int], object] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run it in a process of its own, whose id *meanwhile* gets."""
        with TemporaryFile("w+") as kept, TemporaryFile("w+") as errors:
            process = self._start(_PLAIN, arguments, output=(output or kept).fileno(), errors=errors.fileno())
            try:
                if meanwhile is not None and process.pid is not None:
                    meanwhile(process.pid)
            finally:
                status = _ended(process)
            kept.seek(0)
            errors.seek(0)
            return subprocess.CompletedProcess(arguments, status, kept.read(), errors.read())

    def on_terminal(
        self,
        width: int,
        *arguments: str,
        typed: str | Iterable[tuple[str, str]] = "",
        status: int = 0,
        everything: bool = False,
    ) -> str:
        """
        Return what a terminal of that *width* shows: standard output, or *everything*, and what is *typed*.

        That is at once, or each text when the terminal shows the prompt before it; the character 3 interrupts.
        """
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
        errors = theirs if everything else None
        size: dict[str, str | None] = dict.fromkeys(("COLUMNS", "LINES"))  # as the terminal says
        process = self._start({**_PLAIN, **size}, arguments, inputs=theirs, output=theirs, errors=errors)
        os.close(theirs)
        shown, read = b"", 0
        try:
            for prompt, text in [("", typed)] if isinstance(typed, str) else typed:
                while (found := shown.find(prompt.encode(), read)) < 0:
                    assert select.select([ours], [], [], _SECONDS)[0], f"it shows {shown!r}"
                    shown += os.read(ours, 65_536)
                read = found + len(prompt.encode())
                os.write(ours, text.encode())
            while chunk := os.read(ours, 65_536):
                shown += chunk
        except OSError as error:
            if error.errno != errno.EIO:  # how Linux says that nobody writes to a terminal any more
                raise
        finally:
            os.close(ours)
            assert _ended(process) == status, shown
        return shown.decode()

    def _start(
        self,
        changes: Mapping[str, str | None],
        arguments: tuple[str, ...],
        *,
        output: int,
        inputs: int | None = None,
        errors: int | None = None,
    ) -> ForkServerProcess:
        changed = {**os.environ, **changes, **self.environment}
        environment = {name: value for name, value in changed.items() if value is not None}
        nothing = os.open(os.devnull, os.O_RDWR)
        try:
            streams = [nothing if each is None else each for each in (inputs, output, errors)]
            process = _FORKING.Process(target=_command, args=(arguments, environment, [*map(DupFd, streams)]))
            process.start()
        finally:
            os.close(nothing)
        return process


def _command(arguments: tuple[str, ...], environment: Mapping[str, str], streams: list[Any]) -> None:
    for number, stream in enumerate(streams):
        os.dup2(stream.detach(), number)
    if os.isatty(0):  # theirs is not the terminal of whoever runs the tests, which getpass would find
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - as long as the process
    sys.stdout = open(1, "w", buffering=1 if os.isatty(1) else -1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.argv = ["shepherdctl", *arguments]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where tests run in the background of a shell
    os.environ.clear()
    os.environ.update(environment)
    try:
        main()
    except Exception:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
        sys.exit(1)


def _ended(process: ForkServerProcess) -> int:
    process.join(_SECONDS)
    status = process.exitcode
    if status is None:
        process.kill()
        process.join()
    process.close()
    assert status is not None, f"it runs for longer than {_SECONDS} s"
    return status


def content(document: str) -> Any:
    version, *parts = json.loads(document).items()
    assert version == ("version", VERSION)
    assert undocumented(dict(parts)) == set()
    (_, first), *others = parts
    return first if not others and isinstance(first, list) else dict(parts)


def undocumented(value: object) -> set[str]:
    """Return the names of fields that ``FIELDS`` does not have."""
    if isinstance(value, list):
        return set().union(*map(undocumented, value))
    if not isinstance(value, dict):
        return set()
    return (value.keys() - FIELDS).union(*(undocumented(part) for name, part in value.items() if name not in OPEN))


def without_styles(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)
