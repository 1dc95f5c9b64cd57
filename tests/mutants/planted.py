"""Planted bugs: each check must fail on the bug that it exists for, by the name of the promise that the bug breaks."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.mutants.copies import run_in_copy


@dataclass(frozen=True)
class Edit:
    file: str
    old: str
    new: str
    statement: str = ""
    """The one of the file in which the old text stands; empty: anywhere."""

    def apply(self, package: Path) -> None:
        """Change the old text of a file in a copy of the package, in which it must occur exactly once."""
        text, mark, start = (package / self.file).read_text(encoding="utf-8"), "-- name: ", 0
        end = len(text)
        if self.statement:
            start = text.index(f"{mark}{self.statement}\n")
            end = (text + mark).index(mark, start + 1)
        found = text.count(self.old, start, end)
        assert found == 1, f"{self.file} has this {found} times, not once: {self.old!r}"
        changed = text[:start] + text[start:end].replace(self.old, self.new) + text[end:]
        (package / self.file).write_text(changed, encoding="utf-8")


@dataclass(frozen=True)
class PlantedBug:
    bug: str
    edits: tuple[Edit, ...]
    check: str
    """The test that must fail."""
    promise: str
    """The name in the failure: of an invariant, or of the test itself."""
    quick: bool

    def plant(self, package: Path) -> None:
        for edit in self.edits:
            edit.apply(package)

    def try_out(self) -> tuple[bool, str]:
        """Return whether the check fails by the promise's name, and what it prints."""
        with TemporaryDirectory() as folder:
            outcome = run_in_copy(Path(folder), self.plant, "-x", self.check)
        return outcome.status == 1 and self.promise in outcome.named(), outcome.output


def planted_bugs() -> list[PlantedBug]:
    text = Path(__file__).with_name("planted.toml").read_text(encoding="utf-8")
    return [
        PlantedBug(
            entry["bug"],
            tuple(Edit(**each) for each in entry["edits"]),
            entry["check"],
            entry.get("promise") or entry["check"].split("::")[1].partition("[")[0],
            entry.get("quick", False),
        )
        for entry in tomllib.loads(text)["bug"]
    ]
