"""
One execution environment of a function, as Lambda would keep it: a process that handles one event at a time.

Run as ``python -m simulator.lambda_environment HANDLER_FILE FD``: reads one
JSON request a line from standard input, answers with one JSON line on the file
descriptor FD, and leaves standard output to the function's logs.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO


@dataclass(frozen=True)
class Context:
    """What Lambda tells a handler about its invocation."""

    aws_request_id: str
    function_name: str
    end: float

    def get_remaining_time_in_millis(self) -> int:
        """Return the time that is left until the environment is killed."""
        return max(0, int((self.end - time.monotonic()) * 1000))


def main(handler_file: str, answers: TextIO) -> None:
    """Load the handler and serve requests until standard input ends."""
    path = Path(handler_file)
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_app", path)
    if spec is None or spec.loader is None:
        message = f"{path} cannot be imported"
        raise ImportError(message)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for line in sys.stdin:
        request = json.loads(line)
        context = Context(request["request_id"], path.parent.name, time.monotonic() + request["seconds"])
        answer: dict[str, Any]
        try:
            answer = {"result": module.lambda_handler(request["event"], context)}
        except Exception as error:  # noqa: BLE001 - Lambda reports whatever a handler raises
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(sys.argv[1], os.fdopen(int(sys.argv[2]), "w"))
