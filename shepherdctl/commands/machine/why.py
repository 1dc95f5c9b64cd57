"""The command that tells why a machine is worked on, or is not."""

from rich.text import Text
from shepherd_core.bmdb.machines import explain, queries
from shepherd_core.bmdb.machines.explain import Verdict
from shepherd_core.bmdb.work.work import HealthTimeouts
from shepherd_core.settings.functions import load

from shepherdctl.database import bmdb
from shepherdctl.formats import relative
from shepherdctl.options import MachineArgument
from shepherdctl.output import Column, Form, Output, document, table
from shepherdctl.state import Settings


def why(machine: MachineArgument, output: Output = Form.TABLE) -> None:
    """
    Tell for each process whether a loop would take the machine on now, and if not, why.

    The first thing that blocks it, when that ends, and when it will be tried if
    nothing else happens. Judged as the loops judge, with the timeouts
    that the environment sets (SHEPHERD_HEARTBEAT_TIMEOUT_SECONDS and
    SHEPHERD_STARTUP_TIMEOUT_SECONDS).

    Examples:
      shepherdctl machine why 3f2a
      shepherdctl machine why 3f2a -o json | jq -r '.processes[].blocked_by'
    """
    (settings,) = load(Settings)
    silence = HealthTimeouts(
        startup_timeout_seconds=settings.startup_timeout_seconds,
        heartbeat_timeout_seconds=settings.heartbeat_timeout_seconds,
    )
    with bmdb(settings) as connection:
        machine_id = queries.find_machine(connection, machine)
        verdicts, now = explain.why(connection, machine_id, silence)
    if output is Form.JSON:
        document({"machine_id": machine_id, "processes": [_plain(verdict) for verdict in verdicts]})
        return
    table(
        [Column("PROCESS"), Column("ELIGIBLE"), Column("BECAUSE", prose=True), Column("ENDS"), Column("NEXT TRY")],
        [
            (
                verdict.process,
                Text("yes", "green") if verdict.eligible else "no",
                verdict.because,
                verdict.until and relative(verdict.until, now),
                "next run" if verdict.eligible else verdict.next_at and relative(verdict.next_at, now),
            )
            for verdict in verdicts
        ],
    )


def _plain(verdict: Verdict) -> dict[str, object]:
    return {
        "process": verdict.process,
        "eligible": verdict.eligible,
        "blocked_by": verdict.blocked_by,
        "because": verdict.because,
        "until": verdict.until,
        "next_at": verdict.next_at,
    }
