"""The command that sums up the hardware of the fleet."""

from enum import StrEnum
from typing import Annotated

from rich.text import Text
from shepherd_core.bmdb.agents.hardware import FleetHardware, read_inventory

from shepherdctl.database import bmdb
from shepherdctl.options import LocationOption, ProviderOption
from shepherdctl.output.formats import size
from shepherdctl.output.printing import Column, counted, document, note, output_option, spreadsheet, table

_COUNTS = ("machines", "unreported", "hardware_threads", "memory_bytes", "disks", "disk_bytes")


class _Form(StrEnum):
    """The format in which the inventory is printed."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


def inventory(
    provider: ProviderOption = None,
    location: LocationOption = None,
    output: Annotated[
        _Form, output_option(_Form, "A human-readable table, one JSON document, or CSV for spreadsheets.")
    ] = _Form.TABLE,
) -> None:
    """
    Count machines, threads, memory and disks by provider and location.

    The figures come from the agents' hardware reports. A machine without one is
    counted in MACHINES and in NO REPORT. The table has rounded figures and a
    total; CSV and JSON have exact ones, in bytes. In CSV, a location that a
    spreadsheet would take for a formula gets an apostrophe in front.

    Examples:
      shepherdctl inventory
      shepherdctl inventory --provider static -o csv > inventory.csv
      shepherdctl inventory -o json | jq .total.memory_bytes
    """
    with bmdb() as connection:
        found = read_inventory(connection, provider=provider, location=location)
    total = FleetHardware("total", None, *(sum(getattr(each, name) for each in found) for name in _COUNTS))
    if output is _Form.JSON:
        document({"locations": found, "total": {name: getattr(total, name) for name in _COUNTS}})
        return
    if output is _Form.CSV:
        titles = ("provider", "location", *_COUNTS)
        spreadsheet(titles, [[getattr(each, name) for name in titles] for each in found])
        return
    columns = [
        Column("PROVIDER"),
        Column("LOCATION", prose=True),
        Column("MACHINES", number=True),
        Column("NO REPORT", number=True),
        Column("THREADS", number=True),
        Column("MEMORY", number=True),
        Column("DISKS", number=True),
        Column("CAPACITY", number=True),
    ]
    rows: list[tuple[object, ...]] = [(each.provider, each.location, *_figures(each)) for each in found]
    if len(rows) > 1:
        rows.append((Text(total.provider, "bold"), None, *(Text(figure, "bold") for figure in _figures(total))))
    table(columns, rows)
    if not found:
        note("there are no machines")
    elif total.unreported:
        note(f"{counted(total.unreported, 'machine')} sent no hardware report: their hardware is not counted")


def _figures(record: FleetHardware) -> list[str]:
    """Return the counts in human-readable form; blank if no machine reported."""
    known = record.machines > record.unreported
    hardware = (
        str(record.hardware_threads),
        size(record.memory_bytes),
        str(record.disks),
        size(record.disk_bytes),
    )
    return [str(record.machines), str(record.unreported), *(figure if known else "" for figure in hardware)]
