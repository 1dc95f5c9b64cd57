"""
The agent API's part of a heartbeat: a process that imports the function and handles the events on its standard input.

Run as ``python -m bench.heartbeats.function WARM`` with the function's environment: the first WARM events, one JSON
text a line, are not counted. Writes as JSON the median milliseconds of an event, by processor and by clock, the most
memory of the process in MB, and the last answer.
"""

import json
import resource
import statistics
import sys
import time
from base64 import b64decode

from shepherd_core.domain.pace import Pace
from shepherd_core.wiring import pace

from functions.agent_api.app import lambda_handler
from simulator.lambda_.environment import Context

_CONTEXT = Context("a-request", "agent_api", float("inf"))
_OK = 200


def main(warm: int) -> None:
    """Handle the events."""
    processor, clock = [], []
    for line in sys.stdin:
        event = json.loads(line)
        began = time.process_time(), time.perf_counter()
        answer = lambda_handler(event, _CONTEXT)  # type: ignore[arg-type]  # the part of the context that is used
        processor.append(time.process_time() - began[0])
        clock.append(time.perf_counter() - began[1])
        assert answer["statusCode"] == _OK, answer
    figures = {
        "cpu_ms": statistics.median(processor[warm:]) * 1000,
        "wall_ms": statistics.median(clock[warm:]) * 1000,
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "body": b64decode(str(answer["body"])).hex(),
        "headers": answer["headers"],
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    pace.current = Pace(report_seconds=0)
    main(int(sys.argv[1]))
