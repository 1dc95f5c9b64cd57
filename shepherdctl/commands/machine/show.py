"""The command that shows all about one machine."""

from shepherd_core.bmdb.agents import installation
from shepherd_core.bmdb.agents.hardware import hardware_report
from shepherd_core.settings.functions.bmdb import BmdbSettings
from shepherd_core.wiring.settings import load

from shepherdctl.database import bmdb
from shepherdctl.descriptions import hardware, installations
from shepherdctl.descriptions.machine import rows
from shepherdctl.descriptions.state import observe_machine, with_pauses
from shepherdctl.options import MachineArgument
from shepherdctl.output.printing import Form, Output, document, facts


def show(machine: MachineArgument, output: Output = Form.TABLE) -> None:
    """
    Show everything that the BMDB knows about one machine.

    State, provider, agent, the last installation request and its outcome,
    hardware as reported by the agent, work, backoffs and pauses.

    Examples:
      shepherdctl machine show 3f2a
      shepherdctl machine show rack1-3 -o json | jq .hardware.disks
    """
    (settings,) = load(BmdbSettings)
    with bmdb(settings) as connection:
        found, observer = observe_machine(connection, machine)
        report = hardware_report(connection, found.machine_id)
        requested = installations.plain(installation.load(connection, found.machine_id))
    sent = None if report is None else hardware.plain(report.raw, report.reported_at)
    if output is Form.JSON:
        document({**with_pauses(found, observer), "installation": requested, "hardware": sent})
    else:
        facts(rows(found, observer, requested, sent))
