"""
Which statements a function can run: those whose names stand in code that its builder reaches.

Reading the code finds the statements of every branch, also of those that no test
takes. Followed are all names in the body of a function that mean a function or
class of ours, whether called or passed on; of a class, all its methods. So the
result may be too large, and is never too small.
"""

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from shepherd_core.bmdb.statements import statements

ROOT = Path(__file__).parents[4]
_SOURCES = {"shepherd_core": ROOT / "layers" / "shepherd_core", "shepherdctl": ROOT}
_BMDB = "shepherd_core.bmdb."

Definition = ast.FunctionDef | ast.ClassDef


@dataclass
class _Module:
    name: str
    definitions: dict[str, Definition] = field(default_factory=dict)
    imports: dict[str, str] = field(default_factory=dict)
    """The full name of each imported module or thing, by its name here."""


@cache
def _modules() -> dict[str, _Module]:
    return {name: module for package in _SOURCES for name, module in _modules_of(package).items()}


@cache
def _modules_of(package: str) -> dict[str, _Module]:
    found = {}
    folder = _SOURCES[package]
    for path in (folder / package).rglob("*.py"):
        name = ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__")
        module = found[name] = _Module(name)
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                module.imports |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
            for part in {"annotation", "returns"} & set(node._fields):
                setattr(node, part, None)  # it names what others pass
        module.definitions |= {node.name: node for node in tree.body if isinstance(node, Definition)}
    return found


def _meant(module: _Module, node: ast.AST) -> str | None:
    """Return the full name of what a name or ``module.name`` means, if it is defined in one of our modules."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        full = f"{module.name}.{node.id}" if node.id in module.definitions else module.imports.get(node.id, "")
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        full = f"{module.imports.get(node.value.id, '')}.{node.attr}"
    else:
        return None
    owner, _, name = full.rpartition(".")
    return full if owner in _modules() and name in _modules()[owner].definitions else None


def reachable(roots: Iterable[str]) -> set[str]:
    """Return the names of the statements in code that *roots*, full names of functions and classes, reach."""
    pending, seen, found = list(roots), set[str](), set[str]()
    while pending:
        full = pending.pop()
        if full in seen:
            continue
        seen.add(full)
        owner, _, name = full.rpartition(".")
        module = _modules()[owner]
        for node in ast.walk(module.definitions[name]):
            if (meant := _meant(module, node)) is not None:
                pending.append(meant)
            if owner.startswith(_BMDB) and isinstance(node, ast.Constant) and node.value in statements():
                found.add(str(node.value))
    return found


def definitions(package: str) -> set[str]:
    """Return the full names of all functions and classes of a package: a key of ``_SOURCES``."""
    return {f"{module.name}.{name}" for module in _modules_of(package).values() for name in module.definitions}
