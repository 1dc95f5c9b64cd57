"""The command that shows what fails across the fleet."""

from shepherd_core.bmdb.machines import overview
from shepherd_core.bmdb.machines.lookup import provider_ids

from shepherdctl import fleet_status
from shepherdctl.database import bmdb
from shepherdctl.descriptions.conditions import only
from shepherdctl.descriptions.cures import CURES, cures, told
from shepherdctl.options import LocationOption, ProviderOption
from shepherdctl.output.conditions import described, note_pauses, print_conditions
from shepherdctl.output.formats import in_full, loop_name, relative
from shepherdctl.output.json_fields import in_words
from shepherdctl.output.printing import Column, Form, Output, document, ids, note, table
from shepherdctl.selection import check_locations


def causes(provider: ProviderOption = None, location: LocationOption = None, output: Output = Form.TABLE) -> None:
    """
    Show what is wrong, the most urgent first, and count what fails now by cause.

    Begins with the conditions that "status" shows. Then counts machines whose
    last work failed and whose agent has not reported since, machines that wait
    for the budget of recovery, by what the last look at them found, machines in
    quarantine, and capacity under a penalty. CAUSE is the newest cause of its
    kind. EXAMPLES are machines or capacity.

    Examples:
      shepherdctl causes
      shepherdctl causes --provider redfish --location rack3
      shepherdctl machine list --cause ssh-timed-out
      shepherdctl causes -o json | jq '.causes[] | select(.kind == "ssh-refused")'
    """
    with bmdb() as connection:
        check_locations(connection, [location] if location else [])
        found = overview.failures(connection, provider=provider, location=location)
        fleet = fleet_status.read(connection)
        named = provider_ids(connection, (id_ for one in found if one.of_machines for id_ in one.examples))
    wrong = only(fleet_status.judged(fleet), provider, location, fleet.machines)
    if output is Form.JSON:
        failing = [{**in_words(one), "cure": CURES.get(one.kind or "")} for one in found]
        document({"conditions": described(wrong), "causes": failing})
        return
    print_conditions(wrong, fleet.now)
    columns = [
        Column("COUNT", number=True),
        Column("LOOP"),
        Column("CAUSE", prose=True),
        Column("LAST"),
        Column("EXAMPLES"),
    ]
    short = iter(ids(example for one in found for example in one.examples))
    table(
        columns,
        [
            (
                one.count,
                loop_name(one.loop).capitalize(),
                told(one.kind, one.cause),
                one.failed_at and relative(one.failed_at, fleet.now),
                ", ".join(in_full(named.get(example), next(short)) for example in one.examples),
            )
            for one in found
        ],
    )
    for cure in cures(one.kind for one in found):
        note(cure)
    note_pauses(fleet.pauses)
    if not (found or wrong):
        note("nothing fails")
