"""
The table of all settings in the docs.

``python -m shepherdctl.descriptions.settings_table FILE`` writes the table again, between its
marks in FILE (``make settings``).
"""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic.fields import FieldInfo
from shepherd_core.settings.base import PREFIX
from shepherd_core.settings.deployment import DeploymentSettings, OperatorSettings
from shepherd_core.settings.functions import FUNCTIONS
from shepherd_core.settings.functions.bmdb import BmdbSettings
from shepherd_core.settings.functions.shared import ProviderChoice
from shepherd_core.settings.keys import BMDB, TOP, bounds, path, readers, tables

from shepherdctl.descriptions.blank_document import as_toml, at_top, function_name

BEGIN, END = "<!-- settings: begin -->\n", "<!-- settings: end -->\n"


def markdown() -> str:
    """Return the table of all settings: key, variable, who reads it, default, range, meaning."""
    lines = [
        "| key | variable | read by | default | range | meaning |",
        "|---|---|---|---|---|---|",
    ]
    for reader, key, name, field in _rows():
        lines.append(
            f"| {f'`{key}`' if key else 'none'} | `{PREFIX}{name.upper()}` | {reader} | {_default(field)} | "
            f"{bounds(field) or ''} | {field.description} |"
        )
    return "\n".join(lines) + "\n"


def _rows() -> Iterator[tuple[str, str, str, FieldInfo]]:
    """Yield reader, key, name and field of each setting once, or once for each default."""
    for name, field in ProviderChoice.model_fields.items():
        yield "loops", "", name, field
    for table, keys in tables().items():
        for name, field in keys.items():
            if table == TOP and at_top(name):
                yield _readers(readers(name)), name, name, field
            elif table not in {TOP, *FUNCTIONS} or (table in FUNCTIONS and not at_top(name)):
                yield _reader_of(table, name), path(table, name), name, field
    for name, field in DeploymentSettings.model_fields.items():
        yield "deployment", "", name, field
    for name, field in OperatorSettings.model_fields.items():
        yield "operators", "", name, field


def _reader_of(table: str, name: str) -> str:
    if table in FUNCTIONS:
        return function_name(table)
    if table == BMDB:
        return _readers(readers(name)) if name in BmdbSettings.model_fields else "check"
    return table.removeprefix("provider.")


def _readers(functions: Iterable[str]) -> str:
    found = tuple(functions)
    groups = {tuple(FUNCTIONS): "all", tuple(FUNCTIONS)[:4]: "loops"}
    return groups.get(found) or ", ".join(map(function_name, found))


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if isinstance(field.default, str):
        return f"`{field.default}`"
    return "unset" if field.default is None else f"`{as_toml(field.default)}`"


def rewritten(page: str) -> str:
    """Return *page* with the table between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{markdown()}{END}{after}"


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(rewritten(file.read_text(encoding="utf-8")), encoding="utf-8")
