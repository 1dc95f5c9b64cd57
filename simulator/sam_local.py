"""The functions under `sam local invoke`: as `sam build` built them, in containers, where a Docker engine answers."""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
import time
from ipaddress import ip_network
from typing import TYPE_CHECKING, Any

import yaml

from simulator.lambda_service import ROOT, Invocation

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from simulator.lambda_service import FunctionConfig

_NETWORK = "bridge"
"""Where Docker puts containers unless told otherwise. SAM cannot give them this computer's own network."""

_SAM = ROOT / ".venv-sam" / "bin" / "sam"


class SamLocal:
    """The functions by name. Each invocation is a container of its own, which sees this computer at ``gateway()``."""

    def __init__(self, functions: Mapping[str, FunctionConfig], log: Path, build: Path) -> None:
        """
        Prepare to run *functions* out of *build*, which `sam build` wrote; their output goes to the file *log*.

        Memory and timeout are the template's, and so is what the functions' environments here do not name.
        """
        self._functions = functions
        self._log = log
        template = yaml.safe_load((build / "template.yaml").read_text(encoding="utf-8"))
        # SAM hands over no variable that the template does not name, and in AWS this one has no place in it.
        template["Globals"]["Function"]["Environment"]["Variables"]["AWS_ENDPOINT_URL"] = ""
        self._template = build / "local.yaml"
        self._template.write_text(yaml.safe_dump(template, sort_keys=False), encoding="utf-8")
        self._overrides = build / "environment.json"
        self._overrides.write_text(
            json.dumps({logical_id(name): dict(config.environment) for name, config in functions.items()}),
            encoding="utf-8",
        )

    def invoke(self, name: str, event: Mapping[str, Any]) -> Invocation:
        """Hand *event* to the function and return what came of it; takes a container's start longer than it does."""
        began = time.monotonic()
        credentials = {key: value for key, value in self._functions[name].environment.items() if key.startswith("AWS_")}
        with self._log.open("ab") as log:
            run = subprocess.run(
                [
                    *(_SAM, "local", "invoke", logical_id(name)),
                    *("--template", self._template),
                    *("--event", "-"),
                    *("--env-vars", self._overrides),
                    *("--parameter-overrides", f"Architecture={platform.machine().replace('aarch64', 'arm64')}"),
                    "--skip-pull-image",
                ],
                cwd=ROOT,
                env={
                    **{key: value for key, value in os.environ.items() if not key.startswith("AWS_")},
                    **credentials,
                    "SAM_CLI_TELEMETRY": "0",
                },
                input=json.dumps(event).encode(),
                stdout=subprocess.PIPE,
                stderr=log,
                check=False,
            )
        return _invocation(name, time.monotonic() - began, run.returncode, run.stdout.decode().strip())


def gateway() -> str:
    """
    Return the address of this computer in the containers' network.

    Raises:
        OSError: no Docker engine answers.
    """
    command = ["docker", "network", "inspect", _NETWORK]
    try:
        found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        reason = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else error
        raise OSError(f"sam local invoke needs a Docker engine: {shlex.join(command)}: {reason}") from error
    network = json.loads(found)[0]["IPAM"]["Config"][0]
    return network.get("Gateway") or str(next(ip_network(network["Subnet"]).hosts()))


def _invocation(name: str, seconds: float, status: int, answer: str) -> Invocation:
    result = json.loads(answer) if answer.startswith("{") else None
    if result is None or status != 0:
        return Invocation(name, seconds, error=answer or f"sam ended with status {status}")
    if "errorType" in result:
        return Invocation(name, seconds, error=f"{result['errorType']}: {result['errorMessage']}")
    return Invocation(name, seconds, result)


def logical_id(function: str, what: str = "Function") -> str:
    """Return what the template calls a function of ``functions/``, or, by another *what*, something that is its own."""
    return "".join(map(str.capitalize, function.split("_"))) + what


def main() -> int:
    """Return the exit status: 1, and say why, where nothing can be run here."""
    try:
        gateway()
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
