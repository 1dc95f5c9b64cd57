"""
Printing: data goes to standard output, as tables, JSON or CSV; messages go to standard error.

Text from machines and providers cannot control the terminal: it is printed
without markup and without control characters.
"""

import csv
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Generic, TextIO, TypeVar

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from shepherdctl.output.formats import iso
from shepherdctl.output.json_fields import VERSION, in_words

T = TypeVar("T")

_UNLIMITED = 100_000
"""The width of what is not a terminal: every record stays on one line, for grep and similar tools."""

_FORMULA = ("=", "+", "-", "@")
_SHORTEST_ID = 8
_GAP = 2
_PROSE = 24
"""The narrowest width that prose is wrapped to while other columns can still be left out."""


class Form(StrEnum):
    """The format in which data is printed."""

    TABLE = "table"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class OneOf(Generic[T]):
    """A parser for an option that accepts one of *names*; *of* turns the name into the value."""

    names: tuple[str, ...]
    of: Callable[[str], T]

    def __call__(self, text: str) -> T:
        """
        Return the value.

        Raises:
            BadParameter: *text* is not one of the names.
        """
        if text not in self.names:
            message = f"{text!r} is not one of {', '.join(self.names)}."
            raise typer.BadParameter(message)
        return self.of(text)


def one_of(*names: str) -> OneOf[str]:
    """Return a parser for an option that accepts one of *names*."""
    return OneOf(names, str)


def output_option(form: type[StrEnum], about: str) -> Any:
    """Return the option for the format in which a command prints its data."""
    return typer.Option(
        "--output",
        "-o",
        parser=OneOf(tuple(form), form),
        metavar=f"<{'|'.join(form)}>",
        help=about,
    )


Output = Annotated[Form, output_option(Form, "A human-readable table, or one JSON document.")]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    title: str
    spare: int = 0
    """On a narrow terminal, columns with the highest number are left out first; 0: never."""
    prose: bool = False
    """May be wrapped if that makes room for other columns."""
    number: bool = False
    """Is aligned to the right."""


def ids(full: Iterable[object]) -> list[str]:
    """Return ids as they are printed: shortened on a terminal, as far as they stay distinct; otherwise whole."""
    names = ["" if identity is None else str(identity) for identity in full]
    if not sys.stdout.isatty():
        return names
    length = _SHORTEST_ID
    while len({name[:length] for name in names}) < len(set(names)):
        length += 1
    return [name[:length] for name in names]


def table(columns: Sequence[Column], rows: Sequence[Sequence[object]], *, short: bool = False) -> None:
    """
    Print *rows*; a Text keeps its style, None is left blank.

    Empty columns are left out. Without rows nothing is printed. *short*: each row on one line, with its prose cut.
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
    fits = needed() <= console.width  # if not, every column may be wrapped
    room = console.width - needed() + sum(min(widths[i], _PROSE) for i in shown if columns[i].prose)
    grid = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for index in shown:
        column = columns[index]
        grid.add_column(
            column.title,
            justify="right" if column.number else "left",
            overflow="ellipsis" if short else "fold",
            no_wrap=fits and (short or not column.prose),
            max_width=room if short and column.prose else None,
        )
    for row in cells:
        grid.add_row(*(row[index] for index in shown))
    _print(console, grid)


def facts(rows: Sequence[tuple[str, object]]) -> None:
    """Print the facts about one thing, one on each line; those that are None are left out."""
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


def document(value: Mapping[str, object]) -> None:
    """Print *value* as one JSON document, after its version."""
    sys.stdout.write(json.dumps(plain({"version": VERSION, **value}), indent=2) + "\n")


def spreadsheet(titles: Sequence[str], rows: Iterable[Sequence[str | int | None]], file: TextIO | None = None) -> None:
    """
    Print *rows* as CSV (RFC 4180), or write them to *file*: a header, lines that end in CR LF, one line a row.

    Without *titles* there is no header.

    A text that a spreadsheet would take for a formula gets an apostrophe in front.
    """
    writer = csv.writer(file or sys.stdout)
    if titles:
        writer.writerow(titles)
    for row in rows:
        writer.writerow([_inert(value) if isinstance(value, str) else value for value in row])


def note(message: str) -> None:
    """Print a message on standard error."""
    Console(stderr=True, highlight=False).print(Text(visible(message)), soft_wrap=True)


def print_error(message: str) -> None:
    """Print the reason why the command failed."""
    Console(stderr=True, highlight=False).print(
        Text.assemble(("error: ", "bold red"), visible(message)), soft_wrap=True
    )


def columns(row: Any) -> dict[str, Any]:
    """Return a record of the BMDB as a dict."""
    return {each.name: getattr(row, each.name) for each in fields(row)}


def plain(value: object) -> Any:
    """Return *value* in the types of JSON."""
    match value:
        case None | bool() | int() | float():
            return None if value == math.inf else value  # JSON has no infinity
        case datetime():
            return iso(value)
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case _ if is_dataclass(value):
            return plain(in_words(value))
        case _:
            return str(value)


def _stdout() -> Console:
    console = Console(highlight=False)
    if not sys.stdout.isatty():  # FORCE_COLOR makes the console claim to be one
        console.width = _UNLIMITED
    return console


def _print(console: Console, grid: Table) -> None:
    """Print *grid* without trailing blanks."""
    with console.capture() as captured:
        console.print(grid)
    for line in captured.get().splitlines():
        sys.stdout.write(line.rstrip() + "\n")


def _cell(value: object) -> Text:
    style = value.style if isinstance(value, Text) else ""
    return Text(one_line("" if value is None else str(value)), style=style)


def one_line(text: str) -> str:
    """Return *text* on one line, safe to print."""
    return " ".join(visible(text).split())


def _inert(text: str) -> str:
    line = one_line(text)
    return f"'{line}" if line.startswith(_FORMULA) else line


def visible(text: str) -> str:
    """Return *text* with its control characters, except line ends, as visible escapes."""
    return "".join(
        character if character.isprintable() or character == "\n" else ascii(character)[1:-1] for character in text
    )
