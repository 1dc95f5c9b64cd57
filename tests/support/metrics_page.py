import re
from pathlib import Path

from shepherd_core.settings.functions.specs import LOOPS

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")


def documented(section: str) -> dict[str, list[str]]:
    """Return the rows of a section's table by their first cells."""
    text = re.split(r"\n##+ ", PAGE.partition(f"# {section}\n")[2])[0]
    rows = [re.split(r"(?<!\\)\|", line.strip("|")) for line in text.splitlines() if line.startswith("| ")]
    cells = [[cell.strip().replace("\\|", "|") for cell in row] for row in rows[1:]]
    return {row[0].strip("`"): row[1:] for row in cells}


def loops_of(column: str) -> set[str]:
    return set(LOOPS) if column == "all" else {name.lower() for name in column.split(", ")} - {"none"}
