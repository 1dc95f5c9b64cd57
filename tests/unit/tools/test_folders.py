"""Folders stay small enough to be read at a glance."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MOST = 12


@pytest.mark.parametrize("name", ["agent", "bench", "functions", "layers", "shepherdctl", "simulator", "tests"])
def test_a_folder_of_code_has_at_most_twelve_entries(name: str) -> None:
    """A reader finds a module by its name; ``__init__.py`` and the like are not looked for."""
    inner = (path for path in (ROOT / name).rglob("*") if path.is_dir() and path.name != "__pycache__")
    folders = [ROOT / name, *inner]
    counts = {folder: sum(not each.name.startswith(("__", ".")) for each in folder.iterdir()) for folder in folders}
    assert {str(folder): count for folder, count in counts.items() if count > MOST} == {}
