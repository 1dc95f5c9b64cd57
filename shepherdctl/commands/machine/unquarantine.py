"""The command that ends the quarantine of a machine."""

from shepherd_core.bmdb.machines import queries
from shepherd_core.settings.functions import BmdbSettings
from shepherd_core.wiring.settings import load

from shepherdctl import actions
from shepherdctl.database import bmdb
from shepherdctl.formats import relative
from shepherdctl.options import DryRun, MachineArgument, OwnerOption, ReasonOption, current_user
from shepherdctl.output import Form, Output, document, facts, note


def unquarantine(
    machine: MachineArgument,
    *,
    reason: ReasonOption,
    owner: OwnerOption = None,
    dry_run: DryRun = False,
    output: Output = Form.TABLE,
) -> None:
    """
    Take a machine out of quarantine.

    The Initializer then starts a new agent on it. If it cannot do so within
    the grace of the Recoverer, the remediation policy starts over with the
    first step, unless a look over SSH finds an agent or an installation.
    Owner and reason are stored in the machine's history.

    Examples:
      shepherdctl machine unquarantine 3f2a --reason "mainboard replaced"
    """
    owner = owner or current_user()
    (settings,) = load(BmdbSettings)
    with bmdb(settings) as connection:
        machine_id = queries.find_machine(connection, machine)
        now = queries.now(connection)
        ended = actions.unquarantine(connection, machine_id, owner=owner, reason=reason, dry_run=dry_run)
    if output is Form.JSON:
        document({"machine_id": machine_id, "dry_run": dry_run, **ended})
        return
    since = relative(ended["quarantined_at"], now)
    facts([("machine", machine_id), ("quarantined", since), ("cause", ended["cause"])])
    note("dry run: nothing was changed" if dry_run else "the Initializer starts an agent on it next")
