"""
A Lambda service for the functions of this repository: warm environments, concurrency limits, enforced timeouts.

Every environment is a real process with the environment variables of its
function alone. It handles one event at a time, is kept for the next one, and
is killed when an invocation exceeds the timeout. An event is throttled if all
environments are busy and the concurrency limit is reached.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

from shepherd_core.domain.pace import Pace

from simulator.closeable import Closeable

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class FunctionConfig:
    """The configuration of a function, as in the template."""

    environment: Mapping[str, str]
    timeout_seconds: float
    concurrency: int = 2
    pace: Pace = field(default_factory=Pace)
    """That of fleet time."""

    @property
    def pace_argument(self) -> str:
        """Return the pace as a function's process reads it."""
        return json.dumps(asdict(self.pace))


@dataclass(frozen=True)
class Invocation:
    """The outcome of one event."""

    function: str
    seconds: float
    result: Mapping[str, Any] | None = None
    error: str | None = None
    """The exception of the handler, or that it was killed."""
    throttled: bool = False

    @classmethod
    def answered(cls, function: str, seconds: float, answer: str) -> Invocation:
        """Return the outcome for the *answer* of a runtime: JSON, or text such as "Task timed out after …"."""
        try:
            result = json.loads(answer)
        except ValueError:
            return cls(function, seconds, error=answer)
        if "errorType" in result:
            return cls(function, seconds, error=f"{result['errorType']}: {result['errorMessage']}")
        return cls(function, seconds, result)


class Service(Protocol):
    """Runs functions."""

    def invoke(self, name: str, event: Mapping[str, Any]) -> Invocation:
        """Invoke a function with *event* and return the outcome."""


class _Environment:
    def __init__(self, name: str, config: FunctionConfig, log: IO[bytes]) -> None:
        reader, writer = os.pipe()
        handler = ROOT / "functions" / name / "app.py"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "simulator.lambda_.environment", str(handler), str(writer), config.pace_argument],
            cwd=ROOT,
            env={"PATH": os.defpath, **config.environment},
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=(writer,),
            start_new_session=True,  # so that Ctrl-C in a terminal does not reach it
        )
        os.close(writer)
        self.config = config
        self._answers = os.fdopen(reader, "rb", buffering=0)

    def handle(self, event: Mapping[str, Any], seconds: float) -> dict[str, Any] | None:
        """Return the answer; None: there was none in time, and the environment was killed."""
        request = {"request_id": str(uuid.uuid4()), "event": event, "seconds": seconds}
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self.kill()
            return None
        end, text = time.monotonic() + seconds, b""
        while not text.endswith(b"\n"):
            left = end - time.monotonic()
            chunk = b""
            if left > 0 and select.select([self._answers], [], [], left)[0]:
                chunk = self._answers.read(65_536) or b""
            if not chunk:
                self.kill()
                return None
            text += chunk
        answer: dict[str, Any] = json.loads(text)
        return answer

    def kill(self) -> None:
        """Kill it without warning, as Lambda does."""
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):  # an unread request was in the pipe
                self._process.stdin.close()
        self._answers.close()


@dataclass
class _State:
    idle: list[_Environment] = field(default_factory=list)
    busy: set[_Environment] = field(default_factory=set)


class LambdaService(Closeable):
    """Invokes functions by name: the folder below ``functions/``. Safe to use from any thread."""

    def __init__(self, functions: Mapping[str, FunctionConfig], log: Path) -> None:
        """All output of all functions goes to the file *log*."""
        self._functions = dict(functions)
        self._log = log.open("ab")
        self._states = {name: _State() for name in functions}
        self._lock = threading.Lock()
        self._closed = False
        self.counts: Counter[tuple[str, str]] = Counter()
        """Counts by function and outcome: invoked, failed, timed out, throttled, cold."""
        self.seconds: defaultdict[str, float] = defaultdict(float)
        """The total run time of each function."""

    def close(self) -> None:
        """Kill every environment, busy or not."""
        with self._lock:
            self._closed = True
            environments = [each for state in self._states.values() for each in (*state.idle, *state.busy)]
        for environment in environments:
            environment.kill()
        self._log.close()

    def configure(self, name: str, config: FunctionConfig) -> None:
        """Change the configuration of a function, for all invocations that begin from now on."""
        with self._lock:
            self._functions[name] = config
            outdated, self._states[name].idle = self._states[name].idle, []
        for environment in outdated:
            environment.kill()

    def invoke(self, name: str, event: Mapping[str, Any]) -> Invocation:
        """Invoke a function with *event* and return the outcome; takes as long as the function."""
        state, began = self._states[name], time.monotonic()
        with self._lock:
            config = self._functions[name]
            if self._closed or (not state.idle and len(state.busy) >= config.concurrency):
                self.counts[name, "throttled"] += 1
                return Invocation(name, 0.0, throttled=True)
            if not state.idle:
                self.counts[name, "cold"] += 1
                state.idle.append(_Environment(name, config, self._log))
            environment = state.idle.pop()
            state.busy.add(environment)
            self.counts[name, "invoked"] += 1
        answer = environment.handle(event, config.timeout_seconds)
        seconds = time.monotonic() - began
        with self._lock:
            state.busy.discard(environment)
            self.seconds[name] += seconds
            if answer is None:
                if not self._closed:
                    self.counts[name, "timed out"] += 1
                return Invocation(name, seconds, error=f"killed after {seconds:.1f} s")
            if environment.config is self._functions[name]:
                state.idle.append(environment)
            elif not self._closed:
                environment.kill()
            if "error" in answer:
                self.counts[name, "failed"] += 1
        return Invocation(name, seconds, answer.get("result"), answer.get("error"))
