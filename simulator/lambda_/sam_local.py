"""The functions under `sam local invoke`: as `sam build` built them, in Docker containers."""

import json
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import yaml

from simulator.lambda_.service import ROOT, FunctionConfig, Invocation

_NETWORK = "bridge"
"""Docker's default network. SAM cannot give containers the network of this computer."""

_SAM = ROOT / ".venv-sam" / "bin" / "sam"

_UNSET = {"SHEPHERD_PATH_PREFIX": ""}
"""Variables of the template that are wrong here: the path in an agent's event is without the stack's id."""


class SamLocal:
    """Invokes functions by name. Each invocation is a new container, which reaches this computer at ``gateway()``."""

    def __init__(self, functions: Mapping[str, FunctionConfig], log: Path, build: Path) -> None:
        """
        Prepare to run *functions* from *build*, the output of `sam build`; their output goes to the file *log*.

        Memory, timeout and the variables that *functions* do not set are those of the template.
        """
        self._functions = functions
        self._log = log
        template = yaml.safe_load((build / "template.yaml").read_text(encoding="utf-8"))
        # SAM passes on only the variables that the template names. In AWS most settings are in a document instead.
        variables = template["Globals"]["Function"]["Environment"]["Variables"]
        variables |= {name: "" for config in functions.values() for name in config.environment}
        variables["SHEPHERD_SETTINGS"] = ""
        self._template = build / "local.yaml"
        self._template.write_text(yaml.safe_dump(template, sort_keys=False), encoding="utf-8")
        self._overrides = build / "environment.json"
        self._overrides.write_text(
            json.dumps({logical_id(name): {**_UNSET, **config.environment} for name, config in functions.items()}),
            encoding="utf-8",
        )

    def invoke(self, name: str, event: Mapping[str, Any]) -> Invocation:
        """Invoke a function with *event* and return the outcome; the time includes the start of a container."""
        began = time.monotonic()
        credentials = {key: value for key, value in self._functions[name].environment.items() if key.startswith("AWS_")}
        with self._log.open("ab") as log:
            run = subprocess.run(
                [
                    *(_SAM, "local", "invoke", logical_id(name)),
                    *("--template", self._template),
                    "--language-extensions",  # SAM reads samconfig.toml only beside the template
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
        seconds, answer = time.monotonic() - began, run.stdout.decode().strip()
        if run.returncode != 0 or not answer.startswith("{"):
            return Invocation(name, seconds, error=answer or f"sam ended with status {run.returncode}")
        return Invocation.answered(name, seconds, answer)


def gateway() -> str:
    """
    Return the address of this computer in the containers' network.

    Raises:
        OSError: there is no Docker engine.
    """
    command = ["docker", "network", "inspect", _NETWORK]
    try:
        found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        reason = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else error
        raise OSError(f"sam local invoke needs a Docker engine: {shlex.join(command)}: {reason}") from error
    network = json.loads(found)[0]["IPAM"]["Config"][0]
    return network.get("Gateway") or str(next(ip_network(network["Subnet"]).hosts()))


def logical_id(function: str, what: str = "Function") -> str:
    """Return the logical id in the template of a function in ``functions/``, or of its resource *what*."""
    return "".join(map(str.capitalize, function.split("_"))) + what


def main() -> int:
    """Check for a Docker engine; without one, print the reason and return 1."""
    try:
        gateway()
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
