"""The command that shows all about one machine."""

from collections import deque
from datetime import datetime, timedelta

from shepherd_core.bmdb.agents import installation
from shepherd_core.bmdb.agents.hardware import hardware_report
from shepherd_core.bmdb.recovery import explain
from shepherd_core.bmdb.work.history import read_history
from shepherd_core.domain.errors import ShepherdError
from shepherd_core.domain.states import State
from shepherd_core.settings.deployment import OperatorSettings
from shepherd_core.settings.functions.bmdb import BmdbSettings
from shepherd_core.wiring.settings import load

from shepherdctl.commands.history import print_events
from shepherdctl.commands.logs import print_lines
from shepherdctl.commands.machine.why import plain, print_verdicts
from shepherdctl.database import bmdb
from shepherdctl.deployment.function_logs import FUNCTIONS, lines
from shepherdctl.descriptions import commands, hardware, installations
from shepherdctl.descriptions.cures import cures
from shepherdctl.descriptions.history import fold
from shepherdctl.descriptions.machine import rows
from shepherdctl.descriptions.state import observe_machine, with_pauses
from shepherdctl.options import MachineArgument
from shepherdctl.output.printing import Column, Form, Output, document, facts, note, table

_EVENTS = 100
"""Events that are read; those in a row with the same cause are shown as one."""
_SHOWN = 8
"""Events, and lines of the log, that are shown."""
_LEVELS = {"WARNING", "ERROR", "CRITICAL"}


def show(machine: MachineArgument, output: Output = Form.TABLE) -> None:
    """
    Show everything about one machine, on one page.

    State, provider, agent, the last installation request and its outcome,
    hardware as reported by the agent, work, backoffs and pauses; what each loop
    would do now; its last events; the last warnings that the functions logged
    about it within an hour, where you may read the log; and what you would type
    next.

    Examples:
      shepherdctl machine show 3f2a
      shepherdctl machine show rack1-3 -o json | jq .hardware.disks
    """
    (settings,) = load(BmdbSettings)
    with bmdb(settings) as connection:
        found, observer = observe_machine(connection, machine)
        report = hardware_report(connection, found.machine_id)
        requested = installations.plain(installation.load(connection, found.machine_id))
        gone = found.state in (State.FORGOTTEN, State.RELEASED)
        verdicts = [] if gone else explain.why(connection, found.machine_id)
        events = read_history(connection, found.machine_id, _EVENTS)[::-1]
    sent = None if report is None else hardware.plain(report.raw, report.reported_at)
    if output is Form.JSON:
        loops = [plain(verdict) for verdict in verdicts]
        document({**with_pauses(found, observer), "installation": requested, "hardware": sent, "loops": loops})
        return
    facts(rows(found, observer, requested, sent))
    note("")
    print_verdicts(verdicts, observer.now)
    note("")
    last = fold(events)[-_SHOWN:]
    print_events(last, observer.now)
    above = {found.quarantine_kind, *found.failure_kinds}
    for cure in cures(
        kind for kind in (*(v.kind for v in verdicts), *(e.event.kind for e in last)) if kind not in above
    ):
        note(cure)
    note("")
    _print_warnings(str(found.machine_id), observer.now)
    table(
        [Column("TO DO NEXT"), Column("WHAT IT DOES", prose=True)],
        [(line, what) for line, what in commands.of_machine(found, observer)],
    )


def _print_warnings(machine_id: str, now: datetime) -> None:
    """Print the last lines of the functions' logs that are more than information, or why they cannot be read."""
    try:
        found = lines(load(OperatorSettings)[0].logs, machine_id, now - timedelta(hours=1), FUNCTIONS)
        warnings = deque((each for each in found if each.record.get("level") in _LEVELS), maxlen=_SHOWN)
    except ShepherdError as error:
        note(f"without its log: {error}")
        return
    print_lines(warnings)
