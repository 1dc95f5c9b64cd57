"""
The code that each test reaches: for each mutant, the tests that can notice it.

Every test file runs once on a copy of the package in which each function, and
each SQL statement that is run, tells its name; what its tests reached is kept
in build/ until the file changes.
"""

import ast
import hashlib
import json
import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from shepherd_core.bmdb.statements import fragments, statements

from tests.mutants.copies import ROOT, run_in_copy
from tests.mutants.in_python import functions
from tests.mutants.mutant import Mutant

RECORDS = ROOT / "build" / "mutants"
PLUGIN = ("-p", "tests.mutants.plugin")

_TELL = """
import builtins as _builtins, os as _os, pathlib as _pathlib

def _reached(place):
    if place not in _reached.seen:
        _reached.seen.add(place)
        to = _os.open(_reached.file, _os.O_WRONLY | _os.O_APPEND | _os.O_CREAT)
        _os.write(to, (place + chr(10)).encode())
        _os.close(to)

_reached.seen, _reached.file = set(), _pathlib.Path(__file__).with_name("reached.txt")
_builtins._reached = _reached
"""


@dataclass(frozen=True)
class Trial:
    name: str
    seconds: float
    reached: frozenset[str]

    @property
    def file(self) -> str:
        return self.name.partition("::")[0]


def talkative(package: Path) -> None:
    """Make every function and SQL statement of a copy of the package record that it was reached."""
    for path in package.rglob("*.py"):
        file = str(path.relative_to(package))
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for name, function in functions(tree):
            at = 1 if ast.get_docstring(function) is not None else 0
            told = f"_reached({f'{file}:{name}'!r})"
            if (file, name) == ("bmdb/connection.py", "Connection._send"):
                told += "; _reached('sql:' + name)"
            function.body[at:at] = ast.parse(told).body
        text = ast.unparse(tree)
        path.write_text(text + _TELL if file == "__init__.py" else text, encoding="utf-8")


def recorded(at_once: int, tell: Callable[[str], None]) -> list[Trial]:
    """Return all tests; those of files that changed since are recorded again, *at_once* of the files."""
    files = [path for path in test_files() if path.name != "test_mutants.py"]  # which changes the package itself
    RECORDS.mkdir(parents=True, exist_ok=True)
    records = {file: kept(file) for file in files}  # of now: somebody may work on a test meanwhile
    missing = [file for file in files if not records[file].exists()]
    if missing:
        tell(f"recording what the tests of {len(missing)} files reach, once")
    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(lambda file: records[file].write_text(record(str(file.relative_to(ROOT)))), missing))
    return [trial for file in files for trial in trials(records[file].read_text())]


def test_files() -> list[Path]:
    return [path for kind in ("unit", "integration") for path in sorted(ROOT.glob(f"tests/{kind}/**/test_*.py"))]


def kept(file: Path) -> Path:
    """Return where the record of a test file is: as it is now, or was when it was made."""
    stem = ".".join(file.relative_to(ROOT).with_suffix("").parts)
    return RECORDS / f"{stem}-{hashlib.sha256(file.read_bytes()).hexdigest()[:12]}.json"


def record(tests: str) -> str:
    """Run tests on a copy that records what they reach, and return that as JSON."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "record.json"
        done = run_in_copy(Path(folder), talkative, *PLUGIN, tests, environment={"MUTANTS_RECORD": str(file)})
        assert file.exists(), done.output
        return file.read_text()


def trials(text: str) -> list[Trial]:
    found = json.loads(text)
    shared = found["shared"]
    return [Trial(name, seconds, frozenset([*reached, *shared])) for name, (seconds, reached) in found["tests"].items()]


def reaching(mutant: Mutant, tests: Iterable[Trial]) -> list[Trial]:
    """
    Return the tests that can notice the mutant.

    Those that reach its function or run its statement (or one that contains its
    fragment), or are named after the statement; of what is in neither, such as a
    constant, those that reach any function of the module, or import it.
    """
    if mutant.file.endswith(".sql"):
        names = users(mutant.place)
        return [
            test for test in tests if any(f"sql:{name}" in test.reached or f"[{name}]" in test.name for name in names)
        ]
    place = f"{mutant.file}:{mutant.place}"
    found = [test for test in tests if place in test.reached] if mutant.place else []
    if found:
        return found
    import_of = re.compile(rf"^ *(from|import) .*\b{Path(mutant.file).stem}\b", re.MULTILINE)
    files = {test.file for test in tests}
    importing = {file for file in files if import_of.search((ROOT / file).read_text(encoding="utf-8"))}
    return [
        test
        for test in tests
        if test.file in importing or any(each.startswith(f"{mutant.file}:") for each in test.reached)
    ]


def users(place: str) -> set[str]:
    """Return the statements that contain the fragment of this name, or the one statement of this name."""
    if place not in fragments():
        return {place}
    return {name for name, text in statements().items() if fragments()[place] in text}


def ordered(tests: Iterable[Trial], seconds: float, module: str = "") -> dict[str, float]:
    """Return tests and their times, as *seconds* allow: of files named after the *module* first, then of unit tests."""
    by_file: dict[str, list[Trial]] = {}
    for test in tests:
        by_file.setdefault(test.file, []).append(test)

    def rank(file: str) -> tuple[bool, bool, float]:
        return f"_{module}" not in file, "/unit/" not in file, sum(test.seconds for test in by_file[file])

    chosen: dict[str, float] = {}
    for file in sorted(by_file, key=rank):
        for test in sorted(by_file[file], key=lambda test: test.seconds):
            if not chosen or sum(chosen.values()) + test.seconds <= seconds:
                chosen[test.name] = test.seconds
    return chosen
