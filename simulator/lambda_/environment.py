"""
An execution environment of a function, as in Lambda: a process that handles one event at a time.

Run as ``python -m simulator.lambda_.environment HANDLER_FILE FD PACE``; PACE is a JSON object. Reads one
JSON request a line from standard input and answers with one JSON line on file
descriptor FD; standard output is for the function's logs.
"""

import importlib.util
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from shepherd_core.domain.pace import Pace
from shepherd_core.wiring import pace


@dataclass(frozen=True)
class Context:
    """The context object that Lambda gives a handler."""

    aws_request_id: str
    function_name: str
    end: float

    def get_remaining_time_in_millis(self) -> int:
        """Return the milliseconds until the environment is killed."""
        return max(0, int((self.end - time.monotonic()) * 1000))


def main(handler_file: str, answers: TextIO) -> None:
    """Load the handler and serve requests until standard input ends."""
    path = Path(handler_file)
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_app", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be imported")
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
    pace.current = Pace(**json.loads(sys.argv[3]))
    main(sys.argv[1], os.fdopen(int(sys.argv[2]), "w"))
