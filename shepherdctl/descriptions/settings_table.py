"""
The table of all settings in the docs.

``python -m shepherdctl.descriptions.settings_table FILE`` writes the table again, between its
marks in FILE (``make settings``).
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from pydantic.fields import FieldInfo
from shepherd_core.settings.base import PREFIX, ProviderSettings, variable
from shepherd_core.settings.deployment import DeploymentSettings, OperatorSettings
from shepherd_core.settings.functions.shared import ProviderChoice
from shepherd_core.settings.functions.specs import FUNCTIONS, LOOPS
from shepherd_core.settings.keys import bounds, path, readers, tables
from shepherd_core.settings.providers import BUILT_IN, find

from shepherdctl.descriptions.blank_document import as_toml, function_name

BEGIN, END = "<!-- settings: begin -->\n", "<!-- settings: end -->\n"


def markdown() -> str:
    """Return the table of all settings, one for each variable: variable, key, who reads it, default, range, meaning."""
    lines = [
        "| variable | key | read by | default | range | meaning |",
        "|---|---|---|---|---|---|",
    ]
    for name, field in ProviderChoice.model_fields.items():
        lines.append(_line(PREFIX + name.upper(), "", "loops", [("", field)]))
    for table, keys in tables().items():
        for name, field in keys.items():
            reader = _readers(readers(name)) or "check"
            lines.append(_line(PREFIX + name.upper(), path(table, name), reader, [("", field)]))
    specs = [find(name) for name in BUILT_IN]
    for name in dict.fromkeys(name for spec in specs for name in spec.settings.model_fields):
        found = [(each.name, each.settings.model_fields[name]) for each in specs if name in each.settings.model_fields]
        own = variable(ProviderSettings, name)
        lines.append(_line(own, path("provider.NAME", name), ", ".join(each for each, _ in found), found))
    for reader, settings_type in (("deployment", DeploymentSettings), ("operators", OperatorSettings)):
        for name, field in settings_type.model_fields.items():
            lines.append(_line(PREFIX + name.upper(), "", reader, [("", field)]))
    return "\n".join(lines) + "\n"


def _line(own: str, key: str, reader: str, fields: Sequence[tuple[str, FieldInfo]]) -> str:
    """Return the row of a setting, which providers may have each with its own default, range and meaning."""
    shown = f"`{key}`" if key else "none"
    told = (_joined(fields, each) for each in (_default, bounds, lambda field: str(field.description)))
    return f"| `{own}` | {shown} | {reader} | {' | '.join(told)} |"


def _joined(fields: Sequence[tuple[str, FieldInfo]], tell: Callable[[FieldInfo], str]) -> str:
    """Return what *tell* says of a field; if it differs between providers, of each by its name."""
    told = {name: tell(field) for name, field in fields}
    if len(set(told.values())) == 1:
        return next(iter(told.values()))
    return "; ".join(f"{name}: {text.removesuffix('.')}" for name, text in told.items() if text)


def _readers(functions: Iterable[str]) -> str:
    found = tuple(functions)
    groups = {tuple(FUNCTIONS): "all", LOOPS: "loops"}
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
