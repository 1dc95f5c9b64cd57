"""The command that makes the machine list of a provider from CSV."""

import csv
import io
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer
from shepherd_core.domain.errors.provider import ListingInvalid
from shepherd_core.providers.kit.machine_list import ListField, shown
from shepherd_core.settings.document import bounded

from shepherdctl.deployment.machine_lists import LISTS
from shepherdctl.output.printing import counted, note, one_of

_LARGEST = 10_000_000
"""Bytes; a list of machines may not be larger either."""


def import_machines(
    file: Annotated[Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False, help="The CSV file.")],
    *,
    provider: Annotated[
        str,
        typer.Option(parser=one_of(*LISTS), metavar=f"<{'|'.join(LISTS)}>", help="The provider that the list is for."),
    ],
) -> None:
    """
    Convert a CSV file to the machine list of a provider, and print it as JSON.

    The first line names the columns: the fields of the list (docs/providers), in
    any order and case. An empty cell leaves its field out. Commas, semicolons or
    tabs separate the cells. If there are faults, all are listed, with line,
    column, value and what was wanted, and no list is printed. Store the list
    where the setting `machines` says.

    Examples:
      shepherdctl settings import-machines a.csv --provider static > a.json
      aws s3 cp a.json s3://my-bucket/documents/machines.json
    """
    wanted = LISTS[provider](lambda: b"")
    lines, entries = _entries(_text(file), wanted.fields)
    try:
        wanted.parse(json.dumps(entries).encode(), lambda index: f"line {lines[index]}")
    except ListingInvalid as error:
        raise ListingInvalid("\n".join(bounded(str(error).splitlines()))) from error
    sys.stdout.write("[\n" + ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in entries) + "\n]\n")
    note(f"{counted(len(entries), 'machine')} for {provider}_list")


def _text(file: Path) -> str:
    """Return the content of the CSV file."""
    with file.open("rb") as stream:
        content = stream.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise ListingInvalid(f"{file} is larger than {_LARGEST} bytes: make several lists, or leave columns out")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ListingInvalid(f"{file} is not UTF-8 in line {line}: save it as CSV UTF-8") from error


def _entries(text: str, fields: Mapping[str, ListField]) -> tuple[list[int], list[dict[str, str]]]:
    """
    Return the entries in *text*, and the line in which each ends.

    Raises:
        ListingInvalid: the columns are wrong, or lines do not have one cell for each.
    """
    first = text.partition("\n")[0]
    rows = _rows(text, max(",;\t", key=first.count))
    _, titles = next(rows, (1, []))
    names = {name.lower(): name for name in fields}
    columns = [names.get(title.strip().lower(), title) for title in titles]
    faults = [
        f"line 1: column {number} is {shown(name)}; it must be one of {', '.join(fields)}, each at most once"
        for number, name in enumerate(columns, 1)
        if name not in fields or name in columns[: number - 1]
    ]
    faults += [
        f"line 1: there is no column {name}; it is required"
        for name, field in fields.items()
        if field.required and name not in columns
    ]
    lines, entries = [], []
    for line, cells in rows if not faults else ():
        if len(cells) != len(columns):
            faults.append(f"line {line}: there are {counted(len(cells), 'cell')}; it must have {len(columns)}")
        lines.append(line)
        entries.append({name: cell.strip() for name, cell in zip(columns, cells, strict=False) if cell.strip()})
    if not (faults or entries):
        faults.append("there is no machine below line 1; an empty list would set all machines aside")
    if faults:
        raise ListingInvalid("\n".join(["the CSV file is invalid:", *(f"  - {fault}" for fault in bounded(faults))]))
    return lines, entries


def _rows(text: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows that are not blank, each with the number of the line in which it ends."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield reader.line_num, cells
    except csv.Error as error:
        raise ListingInvalid(f"line {reader.line_num} is not CSV: {error}") from error
