"""The operators' command line, as people and as programs call it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from typer.testing import CliRunner

from shepherdctl.main import app

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shepherd_core.config import BmdbSettings
    from typer.testing import Result

_SECONDS = 60


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

    def __call__(self, *arguments: str, width: int | None = None) -> Result:
        """Run it in this process: piped, or on a terminal of *width* columns."""
        terminal = {"FORCE_COLOR": "1", "COLUMNS": str(width)} if width else {}
        return CliRunner().invoke(app, arguments, env={**self.environment, **terminal})

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
            env={**os.environ, **self.environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
