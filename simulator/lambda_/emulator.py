"""
The functions under AWS's runtime interface emulator: real bootstrap, real context, enforced timeout, no Docker.

The emulator is a program in the wheel of the SAM command line and stands for
the Lambda service; the bootstrap is ``awslambdaric``, as in Lambda's images
for Python. It runs with this Python and its installed packages.
"""

import http.client
import json
import math
import os
import platform
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from simulator.closeable import Closeable
from simulator.lambda_.service import ROOT, FunctionConfig, Invocation

_INVOCATIONS = "/2015-03-31/functions/function/invocations"
_ATTEMPTS = 3
_START_SECONDS = 10
_KILL_SECONDS = 10
"""How many seconds after the timeout an answer may come."""


class Emulator(Closeable):
    """Invokes functions by name, with one warm environment each. Safe to use from any thread."""

    def __init__(self, functions: Mapping[str, FunctionConfig], log: Path) -> None:
        """
        Prepare to run *functions*; all their output goes to the file *log*.

        Raises:
            FileNotFoundError: the emulator is not installed.
        """
        self._functions = functions
        self._program = _program()
        self._log = log.open("ab")
        self._locks = {name: threading.Lock() for name in functions}
        self._environments: dict[str, _EmulatorProcess] = {}

    def close(self) -> None:
        """Kill every environment, busy or not."""
        for environment in self._environments.values():
            environment.kill()
        self._log.close()

    def invoke(self, name: str, event: Mapping[str, Any]) -> Invocation:
        """Invoke a function with *event* and return the outcome; throttled while the function is busy."""
        lock, config, began = self._locks[name], self._functions[name], time.monotonic()
        if not lock.acquire(blocking=False):
            return Invocation(name, 0.0, throttled=True)
        try:
            if name not in self._environments:
                self._environments[name] = _started(self._program, name, config, self._log)
            answer = self._environments[name].post(event, config.timeout_seconds + _KILL_SECONDS)
        finally:
            lock.release()
        return Invocation.answered(name, time.monotonic() - began, answer.decode(errors="replace"))


class _EmulatorProcess:
    """A process of the emulator, which restarts the process of the function after it had to kill it."""

    def __init__(self, program: Path, name: str, config: FunctionConfig, log: IO[bytes]) -> None:
        emulator, runtime = _free_ports()
        folder = ROOT / "functions" / name
        self._port = emulator
        self._process = subprocess.Popen(
            [
                program,
                *("--runtime-interface-emulator-address", f"127.0.0.1:{emulator}"),
                *("--runtime-api-address", f"127.0.0.1:{runtime}"),
                *("--log-level", "error"),
                *(sys.executable, "-m", "simulator.lambda_.bootstrap", config.pace_argument, "app.lambda_handler"),
            ],
            cwd=folder,
            env={
                "PATH": os.defpath,
                "AWS_LAMBDA_FUNCTION_NAME": name,
                "AWS_LAMBDA_FUNCTION_TIMEOUT": str(math.ceil(config.timeout_seconds)),
                "AWS_LAMBDA_LOG_FORMAT": "JSON",
                "AWS_LAMBDA_LOG_LEVEL": "INFO",
                "LAMBDA_TASK_ROOT": str(folder),
                **config.environment,
            },
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def answers(self) -> bool:
        """Wait until the emulator accepts events; return False if it has exited instead."""
        end = time.monotonic() + _START_SECONDS
        while self._process.poll() is None:
            with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", self._port)):
                return True
            if time.monotonic() > end:
                raise TimeoutError(f"the emulator did not start within {_START_SECONDS} s")
            time.sleep(0.01)
        return False

    def post(self, event: Mapping[str, Any], seconds: float) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=seconds)
        try:
            connection.request("POST", _INVOCATIONS, json.dumps(event))
            return connection.getresponse().read()
        finally:
            connection.close()

    def kill(self) -> None:
        """Kill all of it; the emulator is stopped first and killed last, so that neither logs the end of the other."""
        self._process.send_signal(signal.SIGSTOP)
        for entry in os.scandir("/proc"):
            with suppress(ValueError, ProcessLookupError):  # no process, or none any more
                pid = int(entry.name)
                if pid != self._process.pid == os.getsid(pid):
                    os.kill(pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()


def _started(program: Path, name: str, config: FunctionConfig, log: IO[bytes]) -> _EmulatorProcess:
    for _ in range(_ATTEMPTS):
        environment = _EmulatorProcess(program, name, config, log)
        if environment.answers():
            return environment
        environment.kill()  # another process took one of its ports
    raise RuntimeError(f"the emulator does not start: see {log.name}")


def _program() -> Path:
    processor = {"aarch64": "arm64"}.get(platform.machine(), platform.machine())
    pattern = f"lib/python3*/site-packages/samcli/local/rapid/aws-lambda-rie-{processor}"
    for program in (ROOT / ".venv-sam").glob(pattern):
        return program
    raise FileNotFoundError(f"there is no .venv-sam/{pattern}: run make .venv-sam/.ready")


def _free_ports() -> tuple[int, int]:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        return one.getsockname()[1], other.getsockname()[1]
