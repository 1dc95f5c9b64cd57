"""
The test files that reach what changed: ``make test-changed``.

    python -m tests.mutants.changed [BASE]

Compares the working tree with the commit where it left BASE (default: main). A
changed file of the core package is reached by the test files that did when
``make mutants`` recorded them; one that was not recorded is taken whenever the
core changed. Any other file is reached by those that import it, themselves or
through others, or mention its name. Modules named at run time are not seen.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.mutants.copies import PACKAGE, ROOT
from tests.mutants.in_sql import MARK
from tests.mutants.reach import kept, test_files, trials, users

_NAME = re.compile(r"\b(?:agent|bench|functions|shepherdctl|simulator|tests)(?:\.\w+)+")


def changed_files(base: str) -> set[Path]:
    def git(*command: str) -> list[str]:
        return subprocess.run(["git", *command], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.split()

    (fork,) = git("merge-base", base, "HEAD")
    return {ROOT / name for name in (*git("diff", "--name-only", fork), *git("ls-files", "-o", "--exclude-standard"))}


def reaching(changed: set[Path], tests: list[Path]) -> list[Path]:
    places = {place for path in changed if PACKAGE in path.parents for place in _places(path)}
    words = [path.name for path in changed if path.suffix != ".py"]

    def recorded(test: Path) -> bool:
        if not kept(test).exists():
            return True
        reached = {place for trial in trials(kept(test).read_text()) for place in trial.reached}
        return not places.isdisjoint(reached | {place.partition(":")[0] for place in reached})

    def imported(test: Path) -> bool:
        files = _imported(test)
        return not changed.isdisjoint(files) or any(word in _text(path) for path in files for word in words)

    return [test for test in tests if imported(test) or (places and recorded(test))]


def _places(path: Path) -> Iterator[str]:
    """Return what the record names of a file of the package: a module, or the statements that stand or occur in it."""
    if path.suffix != ".sql":
        yield str(path.relative_to(PACKAGE))
    elif path.exists():
        for name in MARK.findall(_text(path)):
            yield from (f"sql:{each}" for each in users(name))


def _imported(test: Path) -> set[Path]:
    """Return a test file, the conftest.py of its folders, and what these import, outside of the package."""
    pending = [test, *(folder / "conftest.py" for folder in test.parents if ROOT in folder.parents)]
    found: set[Path] = set()
    while pending:
        path = pending.pop()
        if path not in found and path.is_file():
            found.add(path)
            pending += _named(path)
    return found


@cache
def _named(path: Path) -> set[Path]:
    """Return the files, existing or not, that a module's imports and dotted names may mean."""
    names = set(_NAME.findall(_text(path)))
    for node in ast.walk(ast.parse(_text(path))):
        if isinstance(node, ast.ImportFrom):
            above = path.relative_to(ROOT).parts[: -node.level] if node.level else ()
            module = ".".join([*above, *filter(None, [node.module])])
            names |= {f"{module}.{each.name}" for each in node.names}
    files = set()
    for name in names:
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            place = ROOT.joinpath(*parts[:end])
            files |= {place.with_suffix(".py"), place / "__init__.py"}
    return files


@cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


if __name__ == "__main__":
    chosen = reaching(changed_files(*(sys.argv[1:] or ["main"])), test_files())
    sys.stdout.write("".join(f"{path.relative_to(ROOT)}\n" for path in chosen))
