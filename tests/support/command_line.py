"""The operators' command line, as people and as programs call it."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from typing import TYPE_CHECKING, Any

from typer.testing import CliRunner

from shepherdctl.main import app

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shepherd_core.settings.functions import BmdbSettings
    from typer.testing import Result

_SECONDS = 60
# Whoever runs the tests may have wishes of their own about colours and width.
_PLAIN = {"COLUMNS": "80", "TERM": "xterm", "FORCE_COLOR": None, "NO_COLOR": None, "TTY_COMPATIBLE": None}


class CommandLine:
    """``shepherdctl`` with the settings of one database."""

    def __init__(self, settings: BmdbSettings | None, environment: Mapping[str, str] | None = None) -> None:
        """*environment* is what it gets besides; without *settings* there is no database."""
        self.environment = dict(environment or {})
        if settings is not None:
            self.environment |= {
                "SHEPHERD_BMDB_HOST": settings.bmdb_host,
                "SHEPHERD_BMDB_NAME": settings.bmdb_name,
                "SHEPHERD_BMDB_USER": settings.bmdb_user,
            }

    def __call__(self, *arguments: str) -> Result:
        """Run it in this process, piped."""
        return CliRunner().invoke(app, arguments, env={**_PLAIN, **self.environment})

    def read(self, *arguments: str) -> str:
        """Return what it prints when all is well."""
        result = self(*arguments)
        assert result.exit_code == 0, result.output
        return result.stdout

    def load(self, *arguments: str) -> Any:
        """Return the one JSON document that it prints."""
        return json.loads(self.read(*arguments, "-o", "json"))

    def process(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run it as a process of its own, which reads its settings for the first time."""
        return subprocess.run(
            [sys.executable, "-c", "from shepherdctl.main import main; main()", *arguments],
            env=self._environment(_PLAIN),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )

    def on_terminal(self, width: int, *arguments: str, typed: str = "", status: int = 0) -> str:
        """Return what a terminal of *width* columns shows of standard output, and of what is *typed* there."""
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
        process = subprocess.Popen(
            [sys.executable, "-c", "from shepherdctl.main import main; main()", *arguments],
            env=self._environment({**_PLAIN, "COLUMNS": None}),
            stdin=theirs,
            stdout=theirs,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs)
        os.write(ours, typed.encode())
        received = b""
        try:
            while chunk := os.read(ours, 65_536):
                received += chunk
        except OSError as error:
            if error.errno != errno.EIO:  # how Linux says that nobody writes to a terminal any more
                raise
        finally:
            os.close(ours)
            assert process.wait(_SECONDS) == status
        return received.decode()

    def _environment(self, changes: Mapping[str, str | None]) -> dict[str, str]:
        changed = {**os.environ, **changes, **self.environment}
        return {name: value for name, value in changed.items() if value is not None}


def without_styles(text: str) -> str:
    """Return *text* without the codes for colours and bold letters."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)
