"""The command that shows what the functions logged about a machine."""

from collections import deque
from collections.abc import Iterable
from datetime import timedelta
from typing import Annotated

import typer
from shepherd_core.bmdb.wire import server
from shepherd_core.settings.deployment import OperatorSettings
from shepherd_core.wiring.settings import load

from shepherdctl.database import bmdb
from shepherdctl.deployment.function_logs import FUNCTIONS, LogLine, lines
from shepherdctl.descriptions.state import called
from shepherdctl.options import MachineArgument
from shepherdctl.output.formats import at, duration, span
from shepherdctl.output.printing import Column, Form, Output, counted, document, note, one_of, table
from shepherdctl.output.readable_log import described

_HIDDEN = frozenset({"machine_id", "loop", "provider", "request_id", "settings"})
_LONGEST = 2_000
"""Characters of a line in a table."""


def logs(
    machine: MachineArgument,
    *,
    seconds: Annotated[
        float,
        typer.Option("--since", parser=duration, metavar="TIME", help="How far to look back: 90s, 15m, 2h, 1d."),
    ] = "1h",  # type: ignore[assignment]  # typer parses it
    functions: Annotated[
        list[str] | None,
        typer.Option(
            "--function",
            parser=one_of(*FUNCTIONS),
            metavar="NAME",
            help=f"Only this function: {', '.join(FUNCTIONS)}. May be given several times.",
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, max=1_000_000, metavar="COUNT", help="At most this many lines, the newest.")
    ] = 100,
    output: Output = Form.TABLE,
) -> None:
    """
    Show what the functions logged about a machine, newest last.

    Reads the stack's log groups in CloudWatch Logs, with your AWS credentials and
    region; SHEPHERD_LOGS names the stack if it is not "shepherd", or the log file
    of a simulated environment. JSON has the whole lines, in
    "record". The agent API does not
    log reports that it accepts. For a machine that is gone, give its whole
    machine id.

    Examples:
      shepherdctl logs 3f2a
      shepherdctl logs rack1-3 --since 1d --function initializer
      shepherdctl logs 3f2a -o json | jq '.lines[] | select(.level == "ERROR")'
    """
    source = load(OperatorSettings)[0].logs
    with bmdb() as connection:
        machine_id, name = called(connection, machine)
        now = server.now(connection)
    shown: deque[LogLine] = deque(maxlen=limit)
    total = 0
    for line in lines(source, str(machine_id), now - timedelta(seconds=seconds), functions or FUNCTIONS):
        shown.append(line)
        total += 1
    if output is Form.JSON:
        document(
            {
                "lines": [
                    {
                        "at": line.at,
                        "function": line.function,
                        "level": line.record.get("level"),
                        "message": line.record["message"],
                        "record": line.record,
                    }
                    for line in shown
                ]
            }
        )
    elif shown:
        note(f"machine {name}")
        print_lines(shown)
    if total > limit:
        note(f"only the last {counted(limit, 'line')} of {total} shown: see --limit")
    if not total:
        note(f"nothing was logged about machine {name} in the last {span(seconds)}")


def print_lines(shown: Iterable[LogLine]) -> None:
    """Print lines of the log in human-readable form."""
    table(
        [Column("TIME"), Column("FUNCTION"), Column("MESSAGE", prose=True)],
        [(at(line.at), line.function, described(line.record, _HIDDEN)[:_LONGEST]) for line in shown],
    )
