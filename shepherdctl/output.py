"""
What is printed: data on standard output, as tables for people, JSON or CSV; messages on standard error.

Nothing that comes from machines or providers may act on the terminal: it is
printed as text, without markup and without control characters.
"""

import csv
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from shepherdctl.formats import iso

_UNLIMITED = 100_000
"""Columns of what is not a terminal: every record stays on one line, for grep and its like."""

_FORMULA = ("=", "+", "-", "@")
_SHORTEST_ID = 8
_GAP = 2
_PROSE = 24
"""The narrowest that prose is wrapped to as long as something else can be left out."""


class Form(StrEnum):
    """How data is printed."""

    TABLE = "table"
    JSON = "json"


def one_of(*names: str) -> Callable[[str], str]:
    """Return a parser of an option that is one of *names*."""

    def parse(text: str) -> str:
        if text not in names:
            message = f"{text!r} is none of {', '.join(names)}."
            raise typer.BadParameter(message)
        return text

    return parse


Output = Annotated[
    Form,
    typer.Option(
        "--output",
        "-o",
        parser=lambda text: Form(one_of(*Form)(text)),
        metavar="<table|json>",
        help="A table for people, or one JSON document for programs.",
    ),
]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    title: str
    spare: int = 0
    """Columns with the highest number go first where the terminal is too narrow for all; 0: stays."""
    prose: bool = False
    """May be wrapped where that saves other columns."""
    number: bool = False
    """Stands on the right, where numbers can be compared."""


def ids(whole: Iterable[object]) -> list[str]:
    """Return ids as they are printed: on a terminal as short as can be without two being alike, else whole."""
    names = ["" if identity is None else str(identity) for identity in whole]
    if not sys.stdout.isatty():
        return names
    length = _SHORTEST_ID
    while len({name[:length] for name in names}) < len(set(names)):
        length += 1
    return [name[:length] for name in names]


def table(columns: Sequence[Column], rows: Sequence[Sequence[object]]) -> None:
    """
    Print *rows*; a Text keeps its style, None is left blank.

    Columns in which nothing stands are left out, and so everything is when there are no rows.
    """
    shown = [index for index in range(len(columns)) if any(row[index] not in (None, "") for row in rows)]
    if not shown:
        return
    console = _stdout()
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(columns[index].title), *(row[index].cell_len for row in cells)) for index in range(len(columns))]

    def needed() -> int:
        return sum(_GAP + min(widths[i], _PROSE if columns[i].prose else widths[i]) for i in shown) - _GAP

    while needed() > console.width and any(columns[index].spare for index in shown):
        shown.remove(max(shown, key=lambda index: columns[index].spare))
    whole = needed() <= console.width  # else everything may be broken up: better in two lines than not at all
    grid = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for index in shown:
        column = columns[index]
        grid.add_column(
            column.title,
            justify="right" if column.number else "left",
            overflow="fold",
            no_wrap=whole and not column.prose,
        )
    for row in cells:
        grid.add_row(*(row[index] for index in shown))
    _print(console, grid)


def facts(rows: Sequence[tuple[str, object]]) -> None:
    """Print one thing, a fact on each line; those that are None are left out."""
    console = _stdout()
    grid = Table.grid(padding=(0, _GAP, 0, 0))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows:
        if value is not None:
            grid.add_row(name, _cell(value))
    _print(console, grid)


def counted(number: int, noun: str) -> str:
    """Return the number with its noun: ``1 machine``, ``2 machines``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def document(value: object) -> None:
    """Print *value* as one JSON document: ids as strings, times as ISO 8601 in UTC."""
    sys.stdout.write(json.dumps(plain(value), indent=2) + "\n")


def spreadsheet(titles: Sequence[str], rows: Iterable[Sequence[str | int | None]]) -> None:
    """
    Print *rows* as CSV (RFC 4180): a header, lines that end in CR LF, quotes where they are needed, one line a row.

    A text that a spreadsheet would calculate gets an apostrophe in front, which makes it a text there too.
    """
    writer = csv.writer(sys.stdout)
    writer.writerow(titles)
    for row in rows:
        writer.writerow([_inert(value) if isinstance(value, str) else value for value in row])


def note(message: str) -> None:
    """Print a message for people."""
    Console(stderr=True, highlight=False).print(Text(_safe(message)), soft_wrap=True)


def complain(message: str) -> None:
    """Print why the command failed."""
    Console(stderr=True, highlight=False).print(Text.assemble(("error: ", "bold red"), _safe(message)), soft_wrap=True)


def plain(value: object) -> Any:
    """Return *value* in terms that JSON has."""
    match value:
        case None | bool() | int() | float():
            return value
        case datetime():
            return iso(value)
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case _:
            return str(value)


def _stdout() -> Console:
    console = Console(highlight=False)
    if not sys.stdout.isatty():  # the console itself may have been told to pretend, for the sake of colours
        console.width = _UNLIMITED
    return console


def _print(console: Console, grid: Table) -> None:
    """Print *grid* without the blanks that fill its lines up."""
    with console.capture() as captured:
        console.print(grid)
    for line in captured.get().splitlines():
        sys.stdout.write(line.rstrip() + "\n")


def _cell(value: object) -> Text:
    style = value.style if isinstance(value, Text) else ""
    return Text(_line("" if value is None else str(value)), style=style)


def _line(text: str) -> str:
    """Return *text* on one line, as it may be printed."""
    return " ".join(_safe(text).split())


def _inert(text: str) -> str:
    line = _line(text)
    return f"'{line}" if line.startswith(_FORMULA) else line


def _safe(text: str) -> str:
    """Return *text* with its control characters made visible, but for the ends of lines."""
    return "".join(
        character if character.isprintable() or character == "\n" else ascii(character)[1:-1] for character in text
    )
