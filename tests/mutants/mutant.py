import difflib
import hashlib
import tomllib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.mutants import in_python, in_sql
from tests.mutants.copies import PACKAGE


@cache
def source(file: str) -> str:
    return (PACKAGE / file).read_text(encoding="utf-8")


@dataclass(frozen=True)
class Mutant:
    file: str
    """In the package."""
    place: str
    """The function or the SQL statement that it changes, by name; empty: neither."""
    start: int
    end: int
    new: str

    @property
    def old(self) -> str:
        return source(self.file)[self.start : self.end]

    @property
    def line(self) -> int:
        return source(self.file).count("\n", 0, self.start) + 1

    @property
    def changed(self) -> str:
        text = source(self.file)
        return text[: self.start] + self.new + text[self.end :]

    @property
    def name(self) -> tuple[str, str, str, str]:
        """Return the identity of this mutant: file, place, and its lines before and after the change."""
        before = self._lines(source(self.file), self.end)
        return self.file, self.place, before, self._lines(self.changed, self.start + len(self.new))

    @property
    def diff(self) -> str:
        lines = difflib.unified_diff(source(self.file).splitlines(), self.changed.splitlines(), n=2)
        return "\n".join(list(lines)[2:])

    def apply(self, package: Path) -> None:
        (package / self.file).write_text(self.changed, encoding="utf-8")

    def _lines(self, text: str, end: int) -> str:
        return " ".join(text[text.rfind("\n", 0, self.start) + 1 : text.index("\n", end)].split())


def files() -> list[str]:
    """Return the files that have mutants: all of the package except generated code and migrations."""
    found = [*PACKAGE.rglob("*.py"), *PACKAGE.glob("bmdb/*.sql"), *PACKAGE.glob("bmdb/*/*.sql")]
    return sorted({str(path.relative_to(PACKAGE)) for path in found if "pb" not in path.parts})


@cache
def mutants_of(file: str) -> tuple[Mutant, ...]:
    changes = (in_sql if file.endswith(".sql") else in_python).changes(source(file))
    return tuple(Mutant(file, *change) for change in changes)


def drawn(seed: int, wanted: Callable[[str], bool]) -> list[Mutant]:
    """Return all mutants of the chosen files, ordered by seed and own text: a change elsewhere draws no others."""
    ranked: list[tuple[str, Mutant]] = []
    for file in filter(wanted, files()):
        same: Counter[tuple[str, ...]] = Counter()
        for mutant in mutants_of(file):
            same[mutant.name] += 1
            text = repr((seed, same[mutant.name], mutant.name))
            ranked.append((hashlib.sha256(text.encode()).hexdigest(), mutant))
    return [mutant for _, mutant in sorted(ranked, key=lambda pair: pair[0])]


@cache
def equivalent() -> dict[tuple[str, str, str, str], str]:
    """Return the identities of the equivalent mutants, each with the reason."""
    text = Path(__file__).with_name("equivalent.toml").read_text(encoding="utf-8")
    entries = tomllib.loads(text)["mutant"]
    names = {(e["file"], e["place"], e["before"], e["after"]): e["reason"] for e in entries}
    assert len(names) == len(entries), "an equivalent mutant is listed twice"
    return names
