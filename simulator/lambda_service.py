"""
A Lambda service for the functions of this repository: warm environments, concurrency limits, enforced timeouts.

Every environment is a real process with nothing but its function's environment
variables. It is kept for the next event, killed when an invocation takes too
long, and never given two events at once; an event for which there is no
environment and no room for one more is throttled.
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
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class FunctionConfig:
    """A function as the template configures it."""

    environment: Mapping[str, str]
    timeout_seconds: float
    concurrency: int = 2


@dataclass(frozen=True)
class Invocation:
    """What came of one event."""

    function: str
    seconds: float
    result: Mapping[str, Any] | None = None
    error: str | None = None
    """What the handler raised, or that it was killed."""
    throttled: bool = False


class _Environment:
    def __init__(self, name: str, config: FunctionConfig, log: IO[bytes]) -> None:
        reader, writer = os.pipe()
        handler = ROOT / "functions" / name / "app.py"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "simulator.lambda_environment", str(handler), str(writer)],
            cwd=ROOT,
            env={"PATH": os.defpath, **config.environment},
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=(writer,),
        )
        os.close(writer)
        self._answers = os.fdopen(reader, "rb", buffering=0)

    def handle(self, event: Mapping[str, Any], seconds: float) -> dict[str, Any] | None:
        """Return the answer; None: there was none in time, and the environment is dead."""
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
        """Kill it as Lambda does: without a word."""
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):  # there was a request in the pipe, and nobody to read it
                self._process.stdin.close()
        self._answers.close()


@dataclass
class _State:
    idle: list[_Environment] = field(default_factory=list)
    busy: set[_Environment] = field(default_factory=set)


class LambdaService:
    """The functions by name: the folder below ``functions/``. Safe to use from any thread."""

    def __init__(self, functions: Mapping[str, FunctionConfig], log: Path) -> None:
        """All output of all functions goes to the file *log*."""
        self._functions = functions
        self._log = log.open("ab")
        self._states = {name: _State() for name in functions}
        self._lock = threading.Lock()
        self._closed = False
        self.counts: Counter[tuple[str, str]] = Counter()
        """How often each function: invoked, failed, timed out, throttled, cold."""
        self.seconds: defaultdict[str, float] = defaultdict(float)
        """How long each function was at work."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill every environment, at work or not."""
        with self._lock:
            self._closed = True
            environments = [each for state in self._states.values() for each in (*state.idle, *state.busy)]
        for environment in environments:
            environment.kill()
        self._log.close()

    def invoke(self, name: str, event: Mapping[str, Any]) -> Invocation:
        """Hand *event* to the function and return what came of it; takes as long as the function."""
        config, state, began = self._functions[name], self._states[name], time.monotonic()
        with self._lock:
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
            state.idle.append(environment)
            if "error" in answer:
                self.counts[name, "failed"] += 1
        return Invocation(name, seconds, answer.get("result"), answer.get("error"))
