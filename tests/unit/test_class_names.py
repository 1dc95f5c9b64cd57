import ast
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("layers", "functions", "shepherdctl", "simulator", "agent", "bench")
# Names that stand more than once, each with the reason.
EXCEPTIONS = {"Source": "simulator/providers/__init__.py finds the one of a provider by this name"}


def test_a_class_name_stands_once() -> None:
    """Who reads a name need not ask in which module it stands."""
    names = Counter(
        node.name
        for folder in FOLDERS
        for file in (ROOT / folder).rglob("*.py")
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
    )
    assert {name for name, times in names.items() if times > 1} == set(EXCEPTIONS)
