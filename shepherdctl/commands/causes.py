"""The command that shows what fails across the fleet."""

from dataclasses import asdict

from shepherd_core.bmdb.machines import overview
from shepherd_core.bmdb.wire import server

from shepherdctl.database import bmdb
from shepherdctl.descriptions.cures import CURES, cures, told
from shepherdctl.options import LocationOption, ProviderOption
from shepherdctl.output.formats import loop_name, relative
from shepherdctl.output.printing import Column, Form, Output, document, ids, note, table


def causes(provider: ProviderOption = None, location: LocationOption = None, output: Output = Form.TABLE) -> None:
    """
    Count what fails now by cause, with examples and what to do about each cause.

    Counts machines whose last work failed and whose agent has not reported since,
    machines in quarantine, capacity under a penalty, and loops whose last tick
    failed. CAUSE is the newest cause of its kind. EXAMPLES are ids of machines or
    of capacity.

    Examples:
      shepherdctl causes
      shepherdctl causes --provider redfish --location rack3
      shepherdctl machine list --cause ssh-timed-out
      shepherdctl causes -o json | jq '.[] | select(.kind == "ssh-refused").count'
    """
    with bmdb() as connection:
        found = overview.failures(connection, provider=provider, location=location)
        now = server.now(connection)
    if output is Form.JSON:
        document(
            [{**asdict(one), "loop": loop_name(one.loop).lower(), "cure": CURES.get(one.kind or "")} for one in found]
        )
        return
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
                one.failed_at and relative(one.failed_at, now),
                " ".join(next(short) for _ in one.examples),
            )
            for one in found
        ],
    )
    for cure in cures(one.kind for one in found):
        note(cure)
    if not found:
        note("nothing fails")
