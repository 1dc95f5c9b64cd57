"""The command line of the agent."""

from __future__ import annotations

import sys
from pathlib import Path

from . import __version__
from .messages import takeover_error
from .refusal import Refusal
from .takeover import take_over

_USAGE = """\
usage: agent [--help | --version]

Takes over this machine: reads a TakeoverInit message from the standard input,
writes a TakeoverResponse to the standard output, and goes on in the background,
where it reports to the endpoint of the message that the machine is alive. An
agent that was started from the same file before is replaced.

environment:
  SHEPHERD_AGENT_HEARTBEAT_SECONDS   seconds between two heartbeats (60)

exit status: 0 taken over, 1 refused (the TakeoverResponse says why), 2 usage
"""


def main() -> int:
    """Run the agent and return its exit status."""
    arguments = sys.argv[1:]
    if arguments == ["--version"]:
        print(f"shepherd-agent {__version__}")
    elif arguments == ["--help"]:
        print(_USAGE, end="")
    elif arguments:
        print(_USAGE, end="", file=sys.stderr)
        return 2
    else:
        return _take_over()
    return 0


def _take_over() -> int:
    try:
        take_over(sys.stdin.buffer, sys.stdout.buffer, f"{Path(sys.argv[0]).resolve()}.pid")
    except Refusal as refusal:
        print(f"shepherd-agent: {refusal}", file=sys.stderr)
        sys.stdout.buffer.write(takeover_error(str(refusal)))
    return 1


if __name__ == "__main__":
    sys.exit(main())
