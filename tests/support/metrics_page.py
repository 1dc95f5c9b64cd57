"""The tables of docs/metrics.md."""

from pathlib import Path

from shepherd_core.settings.functions.specs import LOOPS

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")


def documented(section: str) -> dict[str, list[str]]:
    """Return the rows of a section's table by their first cells."""
    text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:3] == "| `"]
    return {row[0].strip("`"): row[1:] for row in rows}


def loops_of(column: str) -> set[str]:
    return set(LOOPS) if column == "all" else {name.lower() for name in column.split(", ")} - {"none"}
