"""docs/cli.md: every command with its options, and what it prints about a small fleet."""

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from typer.core import TyperArgument, TyperOption

from shepherdctl.options import PROVIDERS
from shepherdctl.output.json_fields import FIELDS
from shepherdctl.people import Person
from tests.support.command_line import CommandLine, every_command, without_styles

_WIDTH = 118
_SHARED = 3
"""An option of more commands than this is described once."""
_TIMES = re.compile(r"\d{4}-\d\d-\d\d([T ])\d\d:\d\d:\d\d(?:\.\d+)?(Z|\+00:00)?")
_HEAD = """# The command line

`make cli-page` writes this page from the code and from what the commands print; a test fails when it is out of date.
The words are those of the [glossary](glossary.md). The [how-to](how-to/README.md) pages begin with a symptom or a wish.

## For programs

With `-o json`, a command prints one document on standard output: an object that begins with its `version` and has each
list under the name of its things, such as `machines`. Within a version, fields are only added. A field means the same
in all documents: see [the fields](#the-fields). Here, documents are on few lines, with the first entry of each list.

For whom a command is: [people](how-to/people.md) says what makes you a reader, an operator or an administrator.

Exit status: 0 success, 1 failure, 2 wrong usage, 3 something is left to do or to look at (`status`, `reconcile`,
`machine retire`, `machine wait`).

## Options of several commands

"""


def commands() -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command once, with its words."""
    return ((words, command) for words, command in every_command().items() if not command.hidden)


def page(
    special: Mapping[str, CommandLine], usual: CommandLine, examples: Mapping[str, tuple[str, int]], folder: Path
) -> str:
    """Return the page; an example has the arguments of a command, and its exit status. Files are in *folder*."""
    found = list(commands())
    counts = Counter(option.opts[0] for _, command in found for option in _options(command))
    shared = {
        option.opts[0]: option
        for _, command in found
        for option in _options(command)
        if counts[option.opts[0]] > _SHARED
    }
    parts = [_HEAD, *(_option(shared[name], "") for name in sorted(shared)), "\n"]
    for words, command in found:
        name = " ".join(words)
        about, _, _ = str(command.help).partition("Examples:")
        own = [_option(option, name) for option in _options(command) if option.opts[0] not in shared]
        shown = _shown(special.get(words[0], usual), name, examples.get(name), folder)
        synopsis = _synopsis(name, command)
        whose = f" For {command.person}{'' if command.person is Person.ANYBODY else 's'}."
        parts += [f"## {name}\n`{synopsis}`: {' '.join(about.split())}{whose}\n", *own, shown, "\n"]
    parts.append("## The fields\n\nA field without a value is `null`. Ids are texts, times ISO 8601 in UTC.\n\n")
    rows = (f"| `{name}` | {' | '.join(text.partition(': ')[::2])} |\n" for name, text in FIELDS.items())
    text = "".join([*parts, "| field | type | meaning |\n|---|---|---|\n", *rows])
    return text.replace(f"<{'|'.join(PROVIDERS)}>", "PROVIDER")


def _options(command: Any) -> list[Any]:
    return [one for one in command.params if isinstance(one, TyperOption) and one.opts[0] not in ("--help", "-h")]


def _option(option: Any, command: str) -> str:
    names = " / ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    value = "" if option.is_flag or not option.metavar else f" `{option.metavar}`"
    about = option.help if command != "" or option.opts[0] != "--output" else "A table, or one JSON document."
    return f"- {names}{value}: {about}\n"


def _synopsis(name: str, command: Any) -> str:
    arguments = [
        one.metavar if one.required else f"[{str(one.metavar).strip('[]')}]"
        for one in command.params
        if isinstance(one, TyperArgument)
    ]
    options = [
        one.opts[0] if one.is_flag else f"{one.opts[0]} {one.metavar or 'VALUE'}"
        for one in _options(command)
        if one.required
    ]
    optional = any(not one.required for one in _options(command))
    return " ".join(["shepherdctl", name, *map(str, arguments), *options, *(["[OPTIONS]"] if optional else [])])


def _shown(command_line: CommandLine, name: str, example: tuple[str, int] | None, folder: Path) -> str:
    if example is None:
        return ""
    arguments, status = example
    given = (str(folder / word) if word.endswith(".toml") else word for word in shlex.split(arguments))
    words = (*name.split(), *given)
    table = without_styles(command_line.on_terminal(_WIDTH, *words, status=status)).replace("\r", "")
    typed = f"shepherdctl {name} {arguments}".rstrip()
    lines = [f"$ {typed}", *(line.rstrip() for line in table.splitlines())]
    if any(one.opts[0] == "--output" for one in _options(dict(commands())[tuple(name.split())])):
        document = json.loads(command_line.read(*words, "-o", "json", status=status))
        lines += [f"$ {typed} -o json", *_packed(_first(document))]
    text = "\n".join(["```", *lines, "```", ""])
    return _TIMES.sub(lambda found: f"2026-01-01{found[1]}00:00:00" + "Z" * found[0].endswith("Z"), text)


def _packed(document: Mapping[str, Any]) -> list[str]:
    """Return *document* on few lines, which end between its fields."""
    lines = ["{"]
    for name, value in document.items():
        field = f"{json.dumps(name)}: {json.dumps(value)}, "
        if len(lines[-1]) > 1 and len(lines[-1]) + len(field) > _WIDTH:
            lines.append(" ")
        lines[-1] += field
    return [*(line.rstrip() for line in lines[:-1]), lines[-1].removesuffix(", ") + "}"]


def _first(value: Any) -> Any:
    """Return *value* with the first of each list."""
    if isinstance(value, list):
        return [_first(each) for each in value[:1]]
    return {name: _first(part) for name, part in value.items()} if isinstance(value, dict) else value
