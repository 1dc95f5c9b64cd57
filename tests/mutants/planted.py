"""Planted bugs: each check must fail on the bug that it exists for, by the name of the promise that the bug breaks."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.mutants.copies import run_in_copy
from tests.mutants.mutant import Mutant, source

PLANTED = Path(__file__).with_name("planted.toml")


@dataclass(frozen=True)
class PlantedBug:
    bug: str
    edits: tuple[Mutant, ...]
    check: str
    """The test that must fail."""
    promise: str
    """The name in the failure: of an invariant, or of the test itself."""
    quick: bool

    def plant(self, package: Path) -> None:
        for edit in sorted(self.edits, key=lambda edit: edit.start, reverse=True):
            edit.apply(package)

    def try_out(self) -> tuple[bool, str]:
        """Return whether the check fails by the promise's name, and what it prints."""
        with TemporaryDirectory() as folder:
            outcome = run_in_copy(Path(folder), self.plant, "-x", self.check)
        return outcome.status == 1 and self.promise in outcome.named(), outcome.output


def edit(file: str, old: str, new: str, statement: str = "") -> Mutant:
    """
    Return the change of the *old* text of a file, or of a statement in it, to the *new* one.

    Raises:
        AssertionError: the old text does not occur exactly once.
    """
    text, start, end = source(file), 0, len(source(file))
    if statement:
        mark = f"-- name: {statement}\n"
        assert mark in text, f"{file} has no statement {statement}"
        start = text.index(mark) + len(mark)
        end = (text + "-- name: ").index("-- name: ", start)
    found = text.count(old, start, end)
    assert found == 1, f"{file} has this {found} times, not once: {old!r}"
    at = text.index(old, start)
    return Mutant(file, statement, at, at + len(old), new)


def planted_bugs() -> list[PlantedBug]:
    return [
        PlantedBug(
            entry["bug"],
            tuple(edit(**each) for each in entry["edits"]),
            entry["check"],
            entry.get("promise") or entry["check"].split("::")[1].partition("[")[0],
            entry.get("quick", False),
        )
        for entry in tomllib.loads(PLANTED.read_text(encoding="utf-8"))["bug"]
    ]
