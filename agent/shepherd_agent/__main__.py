"""The command line of the agent."""

from __future__ import annotations

import sys
from pathlib import Path

from . import __version__
from .diagnostics import beat_once, describe
from .messages import takeover_error
from .refusal import AgentRefusal
from .reports.endpoint import NotDelivered
from .takeover import take_over

_USAGE = """\
usage: agent [--dry-run | --once MACHINE_ID ENDPOINT [CA_FILE] | --help | --version]

Takes over this machine: reads a TakeoverInit message from standard input,
writes a TakeoverResponse to standard output, and continues in the background.
There it sends heartbeats to the endpoint that the message names, and reports
the hardware and the results of installations. It replaces an agent that was
started from the same file before.

diagnostics, without takeover; a running agent is left alone:
  --dry-run   print the hardware report as JSON; send nothing
  --once      send one heartbeat and print the answer. It is signed with a new
              key, which the endpoint does not know: the answer 401 means that
              the endpoint was reached and its certificate is valid

environment:
  SHEPHERD_AGENT_HEARTBEAT_SECONDS   seconds between two heartbeats, until the
                                     endpoint sets them (default: 60)
  SHEPHERD_AGENT_INSTALL_SECONDS     time limit of an installation in seconds
                                     (default: 3600)

files beside this one: agent.pid holds the process id of the running agent;
agent.install, if it exists and is executable, is run for each installation that
an operator signed; agent.generation holds the generation of the last one that
was started; agent.interval holds the seconds between two heartbeats that the
endpoint set

exit status: 0 taken over, 1 refused (the TakeoverResponse has the reason),
2 usage; with --once: 0 accepted, 1 not accepted
"""


def main() -> int:
    """Run the agent and return its exit status."""
    arguments = sys.argv[1:]
    if arguments == ["--version"]:
        print(f"shepherd-agent {__version__}")
    elif arguments == ["--help"]:
        print(_USAGE, end="")
    elif arguments == ["--dry-run"]:
        print(describe())
    elif arguments[:1] == ["--once"] and len(arguments) in (3, 4):
        return _beat_once(*arguments[1:])
    elif arguments:
        print(_USAGE, end="", file=sys.stderr)
        return 2
    else:
        return _take_over()
    return 0


def _beat_once(machine_id: str, address: str, ca_file: str | None = None) -> int:
    try:
        print(*beat_once(machine_id, address, ca_file), sep="\n")
    except (AgentRefusal, NotDelivered) as error:
        print(f"shepherd-agent: {error}", file=sys.stderr)
        return 1
    return 0


def _take_over() -> int:
    try:
        take_over(sys.stdin.buffer, sys.stdout.buffer, str(Path(sys.argv[0]).resolve()))
    except AgentRefusal as refusal:
        print(f"shepherd-agent: {refusal}", file=sys.stderr)
        sys.stdout.buffer.write(takeover_error(str(refusal)))
    return 1


if __name__ == "__main__":
    sys.exit(main())
